"""What is told of a fit while it runs: each row of its history, to a file and to a function."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .checkpoint import HISTORY, read_history, write_history
from .lock import confirm

__all__ = ["Watch", "Watched"]

Row = dict[str, float]

Watch = Callable[[Row], object] | None
"""A function of a row of the history, such as ``print``."""


class Watched:
    """The rows of one fit, on their way to ``history.csv`` and to who watches.

    The file is appended to at once, so that a kill loses no row. A fit that goes on from a
    checkpoint repeats the rows after it, to the same bits: those that the file has are told to
    nobody again. A function that fails is said, and not called again: no training is lost for it.
    """

    def __init__(
        self, folder: Path | None = None, watch: Watch = None, seed: int | None = None
    ) -> None:
        self.folder, self.watch = folder, watch
        self.own: Row = {} if seed is None else {"seed": float(seed)}
        self.columns: list[str] = []
        self.last = 0.0
        self.begun = False

    def begin(self, history: Sequence[Row]) -> None:
        """Before the first row of a sitting."""
        self.begun = True
        rows = [*history] if self.folder is None else self._rows_of_file(self.folder, history)
        self.last = rows[-1]["epoch"] if rows else 0.0

    def _rows_of_file(self, folder: Path, history: Sequence[Row]) -> list[Row]:
        """The rows that the file has beyond a checkpoint; it is made anew where it has others."""
        path = folder / HISTORY
        known = [row["epoch"] for row in history]
        rows: list[Row] = []
        whole = False
        if known and path.is_file():
            whole = path.read_bytes().endswith(b"\n")
            with suppress(ValueError):  # of a row that was cut off, say
                rows = read_history(path)[: None if whole else -1]
        if not known or [row.get("epoch") for row in rows[: len(known)]] != known:
            rows, whole = [*history], False
        if not whole:
            confirm(path)
            path.unlink(missing_ok=True)
            write_history(path, rows)
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        return rows

    def tell(self, row: Row) -> None:
        """Tell a row, unless the file had it."""
        if not self.begun:
            self.begin([])
        if row["epoch"] <= self.last:
            return
        self.last = row["epoch"]
        if self.folder is not None:
            self._append(self.folder / HISTORY, row)
        if self.watch is None:
            return
        try:
            self.watch({**self.own, **row})
        except Exception as error:  # of what writes somewhere else there is no end of errors
            warnings.warn(
                f"watch={self.watch!r:.60} failed ({type(error).__name__}: {str(error)[:200]}), "
                "and is not told more; history.csv has all rows.",
                stacklevel=2,
            )
            self.watch = None

    def _append(self, path: Path, row: Row) -> None:
        confirm(path)
        if not {*row} <= {*self.columns} or not path.is_file():
            rows = [*(read_history(path) if self.columns else []), row]
            self.columns = list(dict.fromkeys(name for one in rows for name in one))
            write_history(path, rows)
            return
        with open(path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerow(row)
