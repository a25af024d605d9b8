"""Every experiment of the source documents, with its state, or one of them.

python -m experiments                         a list, by document and figure
python -m experiments NAME                    its table, from the committed results
python -m experiments NAME --again [OPTIONS]  trains, into runs/experiments or --out
python -m experiments tables                  all tables
"""

from __future__ import annotations

import sys

from .published import catalogue, tables

if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or [""]
    if not name:
        print("\n".join(catalogue.lines()))
    elif name == "tables":
        tables.main()
    elif name in tables.NAMES:
        tables.find(tables.NAMES[name]).main(arguments)
    else:
        sys.exit(f"{(__doc__ or '').strip()}\n\nNAME is one of {', '.join(tables.NAMES)}.")
