"""Run an experiment, or print the tables of all of them.

python -m experiments NAME [OPTIONS]
python -m experiments tables
"""

from __future__ import annotations

import sys

from .published import tables

if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or [""]
    known = {module.rpartition(".")[2]: module for module in tables.MODULES}
    if name == "tables":
        tables.main()
    elif name in known:
        tables.find(known[name]).main(arguments)
    else:
        sys.exit(f"{(__doc__ or '').strip()}\n\nNAME is one of {', '.join(known)}.")
