"""What is told of a fit while it runs: each row of its history, to a file and to trackers."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ...data.errors import PyroccamError
from .checkpoint import HISTORY, read_history, write_history
from .lock import confirm

__all__ = ["FolderTracker", "Tracker", "Watch", "Watched", "Watcher", "watchers"]

Row = dict[str, float]


class Tracker(Protocol):
    """What takes numbers by name at a step, as every logger of Lightning does.

    A tracker may have more of Lightning's methods: ``log_hyperparams`` gets the settings of the fit
    before its first row, ``finalize`` its end (``success``, ``aborted``, ``failed``).
    """

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Take the numbers of an evaluation, at an epoch."""
        ...  # pragma: no cover


class FolderTracker(Protocol):
    """What makes a tracker for each fit, in the folder of the fit."""

    def begin(self, folder: Path, history: Sequence[Row]) -> Tracker:
        """The tracker of a fit that begins, or goes on after the rows that it has."""
        ...  # pragma: no cover


Watcher = Tracker | FolderTracker | Callable[[Row], object]
"""A tracker, what makes one in a folder, or a function of a row of the history."""

Watch = Watcher | Sequence[Watcher] | None
"""One watcher, several or none."""


def watchers(watch: Watch) -> tuple[Watcher, ...]:
    """The watchers in what a person gave, each of which was looked at.

    Raises:
        PyroccamError: for one that can take no rows.
    """
    if watch is None:
        return ()
    found = tuple(watch) if isinstance(watch, list | tuple) else (watch,)
    for one in found:
        begins = callable(getattr(one, "begin", None))
        if not (callable(one) or begins or callable(getattr(one, "log_metrics", None))):
            raise PyroccamError(
                f"watch has {one!r:.60}, expected a function of a row or a tracker.\nGive "
                "watch=print, or an object with log_metrics(metrics, step), such as a logger of "
                "Lightning."
            )
    return found


class Watched:
    """The rows of one fit, on their way to ``history.csv`` and to watchers. It is a context, in
    which the fit runs.

    The file is appended to at once, so that a kill loses no row. A fit that goes on from a
    checkpoint repeats the rows after it, to the same bits: those that the file has are told to
    nobody again. A watcher that fails is said, and not called again: no training is lost for it.

    Arguments:
        folder: of the fit, or ``None``.
        watchers: that are told.
        settings: of the fit, for trackers that note them.
        seed: of a fit among repeats, whose numbers are told apart by it.

    Raises:
        PyroccamError: for a watcher that needs a folder, without one.
    """

    def __init__(
        self,
        folder: Path | None = None,
        watchers: Iterable[Watcher] = (),
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        self.folder, self.settings, self.seed = folder, dict(settings or {}), seed
        self.watchers: list[Any] = list(watchers)
        if folder is None and any(hasattr(one, "begin") for one in self.watchers):
            raise PyroccamError(
                "watch has a tracker that writes into the folder of the fit, which has none.\nGive "
                "the fit an out=, or leave the tracker out."
            )
        self.columns: list[str] = []
        self.last = 0.0
        self.begun = False

    def begin(self, history: Sequence[Row]) -> None:
        """Before the first row of a sitting.

        Arguments:
            history: rows that a checkpoint has; none of a fit that begins.
        """
        self.begun = True
        rows = [*history]
        if self.folder is not None:
            rows = self._rows_of_file(history)
        self.last = rows[-1]["epoch"] if rows else 0.0
        opened = []
        for one in self.watchers:
            try:
                opened.append(self._opened(one, rows))
            except Exception as error:
                _warn(one, error)
        self.watchers = opened
        for one in [*self.watchers]:
            self._call(one, "log_hyperparams", self.settings)

    def _opened(self, watcher: Any, rows: Sequence[Row]) -> Any:
        if not hasattr(watcher, "begin"):
            return watcher
        return watcher.begin(self.folder, rows)

    def _rows_of_file(self, history: Sequence[Row]) -> list[Row]:
        """The rows that the file has beyond a checkpoint; it is made anew where it has others."""
        assert self.folder is not None
        path = self.folder / HISTORY
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
        metrics = {name: value for name, value in row.items() if name != "epoch"}
        of = {} if self.seed is None else {"seed": float(self.seed)}
        prefix = "" if self.seed is None else f"seed-{self.seed}/"
        for one in [*self.watchers]:
            if hasattr(one, "log_metrics"):
                named = {f"{prefix}{name}": value for name, value in metrics.items()}
                self._call(one, "log_metrics", named, int(row["epoch"]))
            else:
                self._call(one, "__call__", {**of, **row})

    def _append(self, path: Path, row: Row) -> None:
        confirm(path)
        if not {*row} <= {*self.columns} or not path.is_file():
            rows = [*(read_history(path) if self.columns else []), row]
            self.columns = list(dict.fromkeys(name for one in rows for name in one))
            write_history(path, rows)
            return
        with open(path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def _call(self, watcher: Any, name: str, *arguments: Any) -> None:
        """Call a method of a watcher, if it has it."""
        method = getattr(watcher, name, None)
        if method is None:
            return
        try:
            method(*arguments)
        except Exception as error:  # a tracker somewhere else: of its errors there is no end
            self.watchers.remove(watcher)
            _warn(watcher, error)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        aborted = kind is not None and issubclass(kind, KeyboardInterrupt)
        status = "success" if kind is None else "aborted" if aborted else "failed"
        for one in [*self.watchers]:
            self._call(one, "finalize", status)


def _warn(watcher: Any, error: Exception) -> None:
    warnings.warn(
        f"The watcher {watcher!r:.60} failed ({type(error).__name__}: {str(error)[:200]}), "
        "and is not told more.\nThe training goes on; history.csv has all rows.",
        UserWarning,
        stacklevel=3,
    )
