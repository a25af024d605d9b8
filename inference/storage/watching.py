"""What is told of a fit while it runs: each row of its history, to a file and to a function."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .checkpoint import HISTORY, read_history, write_history
from .lock import confirm

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
        self.path, self.watch = folder and folder / HISTORY, watch
        self.own: Row = {} if seed is None else {"seed": float(seed)}
        self.columns: dict[str, None] = {}  # of the file, in order, once it was written
        self.last = 0.0

    def begin(self, history: Sequence[Row]) -> None:
        """Go on from a checkpoint, with the rows that it has."""
        rows = [*history]
        if self.path is not None and rows:
            with suppress(ValueError):  # of a row that was cut off, say
                rows = read_history(self.path)
            if [row.get("epoch") for row in rows[: len(history)]] != [r["epoch"] for r in history]:
                rows = [*history]
        self.last = rows[-1]["epoch"] if rows else 0.0

    def tell(self, history: Sequence[Row]) -> None:
        """Tell the last row, unless the file had it."""
        row = history[-1]
        if row["epoch"] <= self.last:
            return
        self.last = row["epoch"]
        if self.path is not None:
            self._write(self.path, history)
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

    def _write(self, path: Path, history: Sequence[Row]) -> None:
        """Append the last row; all are written at the first of a sitting and for a new column."""
        if history[-1].keys() <= self.columns.keys() and path.is_file():
            confirm(path)
            with open(path, "a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.columns).writerow(history[-1])
        else:
            write_history(path, history)
            self.columns = dict.fromkeys(name for row in history for name in row)
