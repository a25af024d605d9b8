"""``pyroccam`` in a process that ends, as by SIGTERM, with the one that started it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_GRACE = 60.0  # seconds in which what is stopped may save


def leave_with(driver: int) -> None:
    """End once the other end of a pipe is gone."""

    def wait() -> None:
        while os.read(driver, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    leave_with(sys.stdin.fileno())
    from pyroccam.cli.main import main

    main()
