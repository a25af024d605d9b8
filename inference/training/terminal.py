"""The progress bar of a fit: loss and time left, silent where nobody watches."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

__all__ = ["FitProgress"]


class FitProgress:
    """A bar on standard error over the steps of a fit.

    Arguments:
        label: what is being fitted.
        total: steps.
        show: ``None`` shows it on a terminal only.
        start: steps done before (a resumed run).
    """

    def __init__(self, label: str, total: int, show: bool | None = None, start: int = 0) -> None:
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not (console.is_terminal if show is None else show),
        )
        self.task = self.bar.add_task(label, total=total, completed=start, loss="")
        self.next_update = 0.0

    def __enter__(self) -> FitProgress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and not self.bar.disable:
            self.bar.update(self.task, completed=self.bar.tasks[0].total)
        self.bar.stop()

    def say(self, text: str) -> None:
        """What is happening, in the place of the loss."""
        self.bar.update(self.task, loss=text, refresh=True)

    def step(self, done: int, loss_sum: Tensor, part: float) -> None:
        """After a step; looks at the loss (which waits for the device) at most 5 times a second."""
        if self.bar.disable or time.perf_counter() < self.next_update:
            return
        self.next_update = time.perf_counter() + 0.2
        loss = float(loss_sum.mean()) / max(part, 1e-9)
        self.bar.update(self.task, completed=done, loss=f"loss {loss:.4f}")

    def evaluated(self, rows: list[dict[str, float]]) -> None:
        """After an evaluation on the validation split; the mean of several replicates."""
        loss, val = (sum(row[name] for row in rows) / len(rows) for name in ("loss", "val_nll"))
        if val == val:
            self.bar.update(self.task, loss=f"loss {loss:.4f} val {val:.4f}")
