"""The contract of processes that train together, of which one process alone is the least case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...data import PyroccamError

T = TypeVar("T")


class RanksError(PyroccamError, RuntimeError):
    """Processes that cannot train together, or no longer."""


@dataclass(frozen=True)
class Part:
    """The rows of a batch that one process takes.

    Attributes:
        start, stop: positions in the batch.
        weight: share of the batch; zero for rows that another process counts already.
    """

    start: int
    stop: int
    weight: float

    @property
    def rows(self) -> slice:
        """The positions, as an index."""
        return slice(self.start, self.stop)


class Ranks:
    """One process alone, which has nobody to add to or to wait for."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """True for the process that reads checkpoints, writes files and shows progress."""
        return self.rank == 0

    def part(self, rows: int, rank: int | None = None) -> Part:
        """The part of a batch that this process takes, or another one."""
        return Part(0, rows, 1.0)

    def seed(self, seed: int) -> int:
        """The seed of the noise of this process: that of the run for the first, and a number that
        is mixed from it and the rank for the others."""
        if self.first:
            return seed
        return int(np.random.SeedSequence([seed, self.rank]).generate_state(1, np.uint64)[0] >> 1)

    def device(self, device: torch.device) -> torch.device:
        """The device of this process, where all were asked for the same."""
        return device

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in place."""

    def spread_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process, in place."""

    def each(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        return [value]

    def from_first(self, find: Callable[[], T]) -> T:
        """What the first process finds, for all of them; the others do not look."""
        return find()

    def which(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag whether it is set in one of the processes."""
        return list(flags)

    def any(self, flag: bool) -> bool:
        """True if the flag is set in one of the processes."""
        return self.which([flag])[0]

    def told(self, stop: bool, due: bool) -> tuple[bool, bool]:
        """Whether to stop, as any process was told to, and whether the first one wants to save.

        Several processes ask each other twice a second or so, after the same steps; in between
        they are told neither.
        """
        return stop, due

    def meet(self) -> None:
        """Wait until all processes are here."""

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Refuse to go on where processes know different facts."""

    def says(self) -> bool:
        """True in the process that is the first to tell of an error."""
        return True


ALONE = Ranks()
"""One process."""
