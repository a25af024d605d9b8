"""A fit in a terminal: its progress bar, and signals as a flag that the loop reads."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn
from torch import Tensor

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class FitProgress(Progress):
    """A bar on standard error over the steps of a fit, or of something else that takes long; with
    ``show=None`` on a terminal only. It begins at the steps that were done before."""

    def __init__(self, label: str, total: int, show: bool | None = None, start: int = 0) -> None:
        console = Console(stderr=True)
        super().__init__(
            *self.get_default_columns(),
            TextColumn("{task.fields[loss]}"),
            console=console,
            disable=not (console.is_terminal if show is None else show),
        )
        self.task = self.add_task(label, total=total, completed=start, loss="")
        self.next_update = 0.0
        self.begun = False

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None and not self.disable:
            self.update(self.task, completed=self.tasks[0].total)
        super().__exit__(kind, error, traceback)

    def say(self, text: str) -> None:
        """Say what is happening, in the place of the loss."""
        self.update(self.task, loss=text, refresh=True)

    def next(self, text: str) -> None:
        """Go on to the next of the steps of something that is no fit, and say what it is."""
        self.advance(self.task, 1.0 if self.begun else 0.0)
        self.begun = True
        self.say(text)

    def step(self, done: int, loss_sum: Tensor, part: float) -> None:
        """After a step; looks at the loss (which waits for the device) at most 5 times a second."""
        if self.disable or time.perf_counter() < self.next_update:
            return
        self.next_update = time.perf_counter() + 0.2
        loss = float(loss_sum.mean()) / max(part, 1e-9)
        self.update(self.task, completed=done, loss=f"loss {loss:.4f}")

    def evaluated(self, rows: list[dict[str, float]]) -> None:
        """After an evaluation on the validation split; the mean of several replicates."""
        loss, val = (sum(row[name] for row in rows) / len(rows) for name in ("loss", "val_nll"))
        if val == val:
            self.update(self.task, loss=f"loss {loss:.4f} val {val:.4f}")


class StopSignal:
    """While active, the first signal of ``SIGNALS`` sets a flag; a second SIGINT acts as usual.

    A signal that is ignored, as by ``nohup``, stays so. Signals can be handled in the main thread
    alone: elsewhere the flag is never set.

    Arguments:
        patient: a second SIGINT is another of the same: the launcher of several processes passes on
            to them what the terminal has sent to them already.
    """

    def __init__(self, patient: bool = False) -> None:
        self.received, self.patient = False, patient
        self._former: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.received

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                former = signal.getsignal(number)
                # None is of a handler that was not set from Python, and could not be put back.
                if former is not None and former != signal.SIG_IGN:
                    self._former[number] = former
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT and not self.patient:
            usual = self._former[number]
            if not callable(usual):
                raise KeyboardInterrupt
            usual(number, frame)
        self.received = True
