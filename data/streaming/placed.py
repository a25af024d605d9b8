"""Training rows of a source that has places, read ahead by a loader of torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from .. import DataError, Fields, OwnFiles, generator
from .shuffle import Chunk, Parts, Places, Shuffle, cut

MOST_WORKERS = 4
"""Processes that read items, at most, where nobody says how many."""


class Source(Protocol):
    """Rows that are read by their places.

    Attributes:
        name: What to call them.
        rows: How many there are.
        edges: Places at which blocks begin that are read side by side, and their end.
        by_piece: It is fast to read whole blocks, and slow to read a row here and there.
    """

    name: str
    rows: int
    by_piece: bool

    @property
    def edges(self) -> Places: ...

    def read(self, places: Places) -> Parts:
        """Inputs and targets of rows, as they are there, and their weights if they have some."""
        ...


class _Unit(NamedTuple):
    """What is read at once.

    Arguments:
        rows: Numbers of training rows.
        places: Theirs in the source.
        order: In which they are given; None as they are read.
        seed: Of whatever the source draws with torch meanwhile.
    """

    rows: Places
    places: Places
    order: Places | None
    seed: int


def read_apart(source: Source, places: Places, seed: int = 0) -> Parts:
    """Parts of rows, where what a source draws with torch meanwhile is a function of a
    seed alone: it does not matter who reads them, and what was read before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # only what is put back afterwards
        return source.read(places)


class _Reading(TorchDataset):
    """A source, for the processes of a loader."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __reduce__(self) -> tuple[Any, ...]:  # for a process that is not forked
        return _reading, (OwnFiles(), self.source)

    def __getitem__(self, unit: _Unit) -> Chunk | DataError:
        try:
            parts = read_apart(self.source, unit.places, unit.seed)
        except DataError as error:  # raised there, a loader would put a stack into its words
            return error
        rows = torch.from_numpy(unit.rows)
        if unit.order is None:
            return rows, *parts
        order = torch.from_numpy(unit.order)
        # Whole rows are copied, where x[order] takes number by number.
        return rows[order], *(part.index_select(0, order) for part in parts)


def _reading(files: OwnFiles, source: Source) -> _Reading:
    return _Reading(source)


class _Plan:
    """What a loader is to read next."""

    units: Iterable[_Unit] = ()

    def __iter__(self) -> Iterator[_Unit]:
        return iter(self.units)


class Placed:
    """Training rows of a source that has places, as they are there.

    Attributes:
        name: What to call them.
        rows: N.
        edges: Rows at which blocks begin that come together in an epoch, and N.
        fields: What stands where, of several inputs; None of one.

    Arguments:
        source: Of all rows.
        without: Places of those that are for validation and tests, ascending.
        held: Rows in memory at a time.
        workers: Processes that read; 0 for this one.
        pinned: Batches come in memory from which a CUDA device copies by itself.
    """

    def __init__(
        self, source: Source, without: Places, held: int, workers: int, pinned: bool = False
    ) -> None:
        self.source, self.without, self.workers, self.pinned = source, without, workers, pinned
        self.name = source.name
        edges = source.edges
        self.edges: Places = np.unique(edges - np.searchsorted(without, edges))
        self.rows = int(self.edges[-1])
        self.shuffle = Shuffle(self.edges, held)
        self._before = without - np.arange(len(without))
        self._loaders: dict[str, tuple[DataLoader, _Plan]] = {}

    @property
    def fields(self) -> Fields | None:
        return getattr(self.source, "fields", None)

    def places(self, rows: Places) -> Places:
        """Where rows are in their source, for a message."""
        found: Places = rows + np.searchsorted(self._before, rows, side="right")
        return found

    def in_order(self) -> Iterator[Chunk]:
        """All rows once, in pieces that fit into memory."""
        units = (_Unit(rows, self.places(rows), None, 0) for rows in self.shuffle.in_order())
        return self._read("in order", units)

    def take(self, rows: Places) -> Parts:
        """Rows by their numbers."""
        return read_apart(self.source, self.places(rows))

    def batches(self, seed: int, epoch: int, bounds: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
        """Batches of an epoch: see :meth:`~pyroccam.data.Dataset.batches`."""
        place = bounds[0][0]
        left = self.shuffle.pieces(seed, epoch, place)
        first = next(left)
        pieces = chain([first], left)
        stream = generator(seed, f"items of epoch {epoch}").initial_seed() >> 1
        if self.source.by_piece:
            units = (
                _Unit(one.rows, self.places(one.rows), one.order, stream + one.number)
                for one in pieces
            )
            yield from cut(self._read("training", units), first.first, bounds)
            return
        numbers = ((torch.from_numpy(one.rows[one.order]),) for one in pieces)
        units = (
            _Unit(rows.numpy(), self.places(rows.numpy()), None, stream + start)
            for (rows,), (start, _) in zip(cut(numbers, first.first, bounds), bounds, strict=True)
        )
        yield from self._read("training", units)

    def _read(self, what: str, units: Iterable[_Unit]) -> Iterator[Chunk]:
        """Read units, in their order. The processes that do so stay for the next time."""
        if what not in self._loaders:
            plan = _Plan()
            loader: DataLoader = DataLoader(
                _Reading(self.source),
                batch_size=None,
                sampler=plan,
                num_workers=self.workers,
                pin_memory=self.pinned,
                persistent_workers=self.workers > 0,
                generator=torch.Generator().manual_seed(0),  # not that of the fit
            )
            self._loaders[what] = loader, plan
        loader, plan = self._loaders[what]
        plan.units = units
        for chunk in loader:
            if isinstance(chunk, DataError):
                raise chunk
            yield chunk


def usual_workers(source: Source) -> int:
    """How many processes read a source: none where it is read by pieces, which takes less time
    than to hand them over; of items, one for each core but that of the training."""
    if source.by_piece:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST_WORKERS, (cores or 1) - 1)
