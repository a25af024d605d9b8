"""Rows of a stream that can only be gone through: an iterable, a loader, shards of WebDataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from .. import DataError, generator
from .pairs import Columns, Pairs
from .placed import Placed
from .shuffle import Chunk, Parts, Places, cut, edges_of

CHUNK = 256
"""Rows that an iterable without batches is asked for at a time."""


class Passing(Pairs):
    """A stream of rows, with N given.

    Each epoch is one pass through the stream, which has to give N rows. Where it has the method
    `set_epoch`, that is told the number of the epoch, by which many shuffle themselves. What the
    stream draws with torch is a function of seed and epoch, as it is seeded apart from all else.
    An epoch that is taken up again is gone through from its beginning, without training on what
    came before.
    """

    def __init__(
        self, source: Any, rows: int | None, held: int, columns: Columns, workers: int | None
    ) -> None:
        super().__init__(type(getattr(source, "dataset", source)).__name__, columns)
        self.source, self.held = source, held
        self.loader = source
        if not isinstance(source, DataLoader):
            own = source if isinstance(source, IterableDataset) else _Iterable(source)
            self.loader = DataLoader(own, CHUNK, num_workers=workers or 0)
        elif rows is None:
            rows = _rows_of(source)
        if not isinstance(source, DataLoader) and iter(source) is source:
            raise DataError(f"{self.name} can be gone through once", "a pass for each epoch")
        if rows is None:
            raise DataError(f"{self.name} is a stream without a length", "rows=N")
        self.rows = rows

    def places(self, rows: Places) -> Places:
        """Those in a pass are the numbers of its rows."""
        return rows

    @property
    def edges(self) -> Places:
        """One block of all rows: where a stream shuffles itself, a place in a pass is another row
        each time."""
        return edges_of(self.rows, self.rows)

    def in_order(self) -> Iterator[Chunk]:
        """One pass, as the stream has it: places in it, inputs and targets."""
        yield from self._counted(0, 0)

    def batches(self, seed: int, epoch: int, bounds: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
        """Batches of one pass, whose rows are shuffled among as many as are held; see
        :meth:`~pyroccam.data.Dataset.batches`."""
        yield from cut(self._shuffled(seed, epoch), 0, bounds)

    def take(self, rows: Places) -> Parts:
        """Rows by their numbers in the pass of :meth:`in_order`, which is gone through for them."""
        order = np.argsort(rows, kind="stable")
        wanted, place = rows[order], np.argsort(order)
        found: list[Parts] = []
        for numbers, *parts in self.in_order():
            first, last = int(numbers[0]), int(numbers[-1])
            own = torch.from_numpy(wanted[(wanted >= first) & (wanted <= last)] - first)
            found.append(tuple(part[own] for part in parts))
        back = torch.from_numpy(place)
        return tuple(torch.cat(part)[back] for part in zip(*found, strict=True))

    def _shuffled(self, seed: int, epoch: int) -> Iterator[Chunk]:
        held: list[Chunk] = []
        count, number = 0, 0
        for chunk in self._counted(seed, epoch + 1):
            held.append(chunk)
            count += len(chunk[0])
            if count >= self.held:
                yield self._mixed(held, seed, epoch, number)
                held, count, number = [], 0, number + 1
        if held:
            yield self._mixed(held, seed, epoch, number)

    def _mixed(self, held: list[Chunk], seed: int, epoch: int, number: int) -> Chunk:
        whole = [torch.cat(parts) for parts in zip(*held, strict=True)]
        noise = generator(seed, f"rows of piece {number} of epoch {epoch}")
        order = torch.randperm(len(whole[0]), generator=noise)
        return tuple(part[order] for part in whole)

    def _counted(self, seed: int, turn: int) -> Iterator[Chunk]:
        """Chunks of a pass; refuses one that is not of N rows."""
        tellable: list[Any] = [self.source, getattr(self.source, "dataset", None)]
        for one in tellable:
            if hasattr(one, "set_epoch"):
                one.set_epoch(turn)
        noise = generator(seed, f"turn {turn} of a loader")
        for own in _generators(self.loader):  # beside torch's, which is set apart
            own.manual_seed(noise.initial_seed())
        count = 0
        for batch in _seeded_apart(lambda: iter(self.loader), seed, turn):
            parts = self.paired(batch)
            if count + len(parts[0]) > self.rows:
                raise DataError(f"{self.name} gives more rows in a pass", f"rows={self.rows}")
            yield torch.arange(count, count + len(parts[0])), *parts
            count += len(parts[0])
        if count < self.rows:
            raise DataError(f"{self.name} gave {count} rows in a pass", f"rows={self.rows}")


class _Iterable(IterableDataset):
    """Whatever can be iterated, for a loader."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)


def is_passing(source: Any) -> bool:
    """True for a loader, and for what can be iterated and has no places."""
    if isinstance(source, DataLoader | IterableDataset):
        return True
    return hasattr(source, "__iter__") and not hasattr(source, "__getitem__")


def _rows_of(loader: DataLoader) -> int | None:
    """How many rows a pass of a loader has, where that can be known."""
    if loader.batch_size is None or loader.drop_last or isinstance(loader.dataset, IterableDataset):
        return None
    return len(loader.sampler) if isinstance(loader.sampler, Sized) else None


def _generators(loader: Any) -> list[torch.Generator]:
    """Generators of a loader's own, by which it would go on from pass to pass."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    holders = [loader, *samplers, getattr(samplers[1], "sampler", None)]
    found = (getattr(holder, "generator", None) for holder in holders)
    return [one for one in found if isinstance(one, torch.Generator)]


def _seeded_apart(begin: Callable[[], Iterator[Any]], seed: int, turn: int) -> Iterator[Any]:
    """An iterator whose draws by torch come from a stream of their own."""
    state = generator(seed, f"turn {turn} of a stream").get_state()
    found: Iterator[Any] | None = None
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            found = begin() if found is None else found
            item = next(found, _END)
            state = torch.get_rng_state()
        if item is _END:
            return
        yield item


_END = object()

Reader = Placed | Passing
"""Training rows, as they are in their source."""
