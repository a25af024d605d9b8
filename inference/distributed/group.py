"""Processes that train together by ``torch.distributed``.

Lightning Fabric and Accelerate were tried: both wrap a module in DDP, which reduces gradients in
buckets that it keeps itself, while gradients here lie in one row already, so that one reduction of
torch's own is the whole of it. Torch's launcher also starts processes again after one has died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .ranks import Part, Ranks, RanksError

T = TypeVar("T")

ASKED_EVERY = 0.5
"""Seconds between two questions whether to stop or to save, about."""


HEARD_LATER = 20.0
"""Seconds that a process of torch's launcher waits before it ends because another has: the launcher
sees the cause first, names it, and ends all others at once."""


class Group(Ranks):
    """This process, in the group of those that were launched together on this machine.

    Tensors pass through the backend of their device (NCCL on CUDA, gloo elsewhere); what is no
    tensor passes through gloo.
    """

    def __init__(self, store: dist.Store) -> None:
        self.rank, self.size, self._store = dist.get_rank(), dist.get_world_size(), store
        with self._lost():
            on_host = "gloo" in dist.get_backend_config()
            self._host: Any = None if on_host else dist.new_group(backend="gloo")
        self._left = 0  # steps before the next question
        self._since: tuple[int, float] | None = None  # steps asked for, and when

    def part(self, rows: int, rank: int | None = None) -> Part:
        """As for one process.

        Parts differ by one row at most, and have two rows at least, because a batch normalisation
        needs two: where a batch has fewer, the processes that are left over take the rows of the
        first with a weight of zero, so that all make the same steps.
        """
        holders = max(1, min(self.size, rows // 2))
        rank = self.rank if rank is None else rank
        own = rank if rank < holders else 0
        start, stop = own * rows // holders, (own + 1) * rows // holders
        return Part(start, stop, (stop - start) / rows if rank < holders else 0.0)

    def device(self, device: torch.device) -> torch.device:
        """The device of this process: its own GPU, by its number."""
        if device.type != "cuda":
            return device
        count = torch.cuda.device_count()
        if device.index not in (None, self.rank) or self.rank >= count:
            given = f"{device} of {count} GPUs for process {self.rank + 1} of {self.size}"
            raise RanksError(given, "a GPU for each", "device='cuda' (--device cuda)")
        torch.cuda.set_device(self.rank)
        return torch.device("cuda", self.rank)

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """What torch says of a process that is gone, as an error of this package."""
        try:
            yield
        except RanksError:
            raise
        except RuntimeError as error:  # of gloo, NCCL and the store, all of them
            if dist.is_torchelastic_launched():
                time.sleep(HEARD_LATER)
            given = f"rank {self.rank} of {self.size} waits for another, which has ended"
            raise RanksError(given, hint="--resume (resume=True)") from error

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """One message for each kind of number and device."""
        for row, parts in _rows(tensors):
            with self._lost():
                dist.all_reduce(row)
            _put_back(row, parts)

    def spread_(self, tensors: Sequence[Tensor]) -> None:
        for row, parts in _rows(tensors):
            with self._lost():
                dist.broadcast(row, src=0)
            _put_back(row, parts)

    def each(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        with self._lost():
            dist.all_gather_object(found, value, group=self._host)
        return found

    def from_first(self, find: Callable[[], T]) -> T:
        """Where the first process fails, it raises, and the others end because it is gone."""
        box: list[Any] = [find() if self.first else None]
        with self._lost():
            dist.broadcast_object_list(box, src=0, group=self._host)
        given: T = box[0]
        return given

    def which(self, flags: Sequence[bool]) -> list[bool]:
        found = torch.tensor(flags, dtype=torch.int32)
        with self._lost():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._host)
        return [bool(flag) for flag in found.tolist()]

    def told(self, stop: bool, due: bool) -> tuple[bool, bool]:
        """Asked after as many steps as the first process makes in half a second, a number that it
        gives to the others with the answers."""
        self._left -= 1
        if self._left > 0:
            return False, False
        now = time.perf_counter()
        steps = 1
        if self._since is not None:
            made, then = self._since
            steps = max(1, min(2 * made, int(made * ASKED_EVERY / max(now - then, 1e-6)), 1000))
        found = torch.tensor(
            [stop, due and self.first, steps if self.first else 0], dtype=torch.int32
        )
        with self._lost():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._host)
        stopped, save, self._left = found.tolist()
        self._since = self._left, time.perf_counter()
        return bool(stopped), bool(save)

    def meet(self) -> None:
        self.any(False)

    def agree(self, facts: Mapping[str, Any]) -> None:
        found = self.each({name: repr(value) for name, value in facts.items()})
        for rank, theirs in enumerate(found):
            for name in dict.fromkeys([*found[0], *theirs]):
                a, b = (one.get(name, "nothing") for one in (found[0], theirs))
                if a != b:
                    a, b = _odd(a, b)
                    raise RanksError(
                        f"the processes disagree: {name} is {a} on rank 0, and {b} on rank {rank}",
                        "the same arguments for all",
                    )

    def says(self) -> bool:
        try:
            return self._store.add("pyroccam/said", 1) == 1
        except RuntimeError:  # the store is gone with the process that held it
            return True


def _rows(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Tensors of one kind and device as one row each; a lone one that can be, as it lies."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault((t.dtype, t.device), []).append(t.detach())
    for parts in kinds.values():
        if len(parts) == 1 and parts[0].is_contiguous():
            yield parts[0], []
        else:
            yield torch.cat([t.reshape(-1) for t in parts]), parts


def _put_back(row: Tensor, parts: Sequence[Tensor]) -> None:
    """Give tensors their values of a row."""
    for t, part in zip(parts, row.split([t.numel() for t in parts]) if parts else (), strict=True):
        t.copy_(part.view(t.shape))


def _odd(a: str, b: str) -> tuple[str, str]:
    """Two descriptions, long ones only from where they begin to differ."""
    first = next((i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), 0)
    start = max(0, first - 20) if max(len(a), len(b)) > 60 else 0
    return a[start : start + 60], b[start : start + 60]
