"""The entry of the command line, which imports nothing before it can be stopped in words."""

from __future__ import annotations

import sys

from .streams import prepare


def main() -> None:
    """``pyroccam``, and ``python -m pyroccam.cli.main``."""
    prepare()
    try:
        from .commands import app

        app(prog_name="pyroccam")
    except KeyboardInterrupt:
        print("Stopped before anything was done.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
