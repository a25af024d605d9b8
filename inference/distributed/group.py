"""Processes that train together by ``torch.distributed``.

Lightning Fabric and Accelerate were tried: both wrap a module in DDP, which reduces gradients in
buckets that it keeps itself, while gradients here lie in one row already, so that one reduction of
torch's own is the whole of it. Torch's launcher also starts processes again after one has died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .ranks import Ranks, RanksError

__all__ = ["Group"]

T = TypeVar("T")

ASKED_EVERY = 0.5
"""Seconds between two questions whether to stop or to save, about."""


HEARD_LATER = 0.5
"""Seconds before a process ends because another has: what launched them then sees the cause first,
and names it."""


class Group(Ranks):
    """This process, in the group of torch that all of them have joined.

    Tensors pass through the backend of their device (NCCL on CUDA, gloo elsewhere); what is no
    tensor passes through gloo.

    Arguments:
        store: of the group, by which processes that fail tell who has said why.
        attempt: how often the processes were started again.
        local_rank: number of this process on its machine.
        hosts: this process holds the store.

    Raises:
        RanksError: of every method that waits for the others, if one of them is gone.
    """

    def __init__(
        self,
        store: dist.Store | None = None,
        attempt: int = 0,
        local_rank: int = 0,
        *,
        hosts: bool = False,
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.world = dist.group.WORLD
        self._store, self._said_in = store, f"pyroccam/said/{attempt}"
        self._local_rank, self._hosts, self._spoke = local_rank, hosts, False
        with self._lost():
            on_host = "gloo" in dist.get_backend_config()
            self._host: Any = None if on_host else dist.new_group(backend="gloo")
        self._left = 0  # steps before the next question
        self._since: tuple[int, float] | None = None  # steps asked for, and when

    def device(self, device: torch.device) -> torch.device:
        """The device of this process: its own GPU, by its number on this machine.

        Raises:
            RanksError: if there are fewer GPUs than processes here.
        """
        if device.type != "cuda":
            return device
        if device.index is not None:
            alone = os.environ.get("LOCAL_WORLD_SIZE", "1") == "1"
            if alone or device.index == self._local_rank:
                return device
            raise RanksError(
                f"this is process {self._local_rank + 1} of its machine, and was given {device}",
                "a GPU for each process",
                "device='cuda' (--device cuda), and CUDA_VISIBLE_DEVICES for which ones",
            )
        count = torch.cuda.device_count()
        if self._local_rank >= count:
            raise RanksError(
                f"there are {count} GPUs on this machine, and this is process "
                f"{self._local_rank + 1} of those on it",
                "a GPU for each process",
                f"at most {count} processes a machine, or device='cpu' (--device cpu)",
            )
        torch.cuda.set_device(self._local_rank)
        return torch.device("cuda", self._local_rank)

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """What torch says of a process that is gone, as an error that says what to do."""
        try:
            yield
        except RanksError:
            raise
        except RuntimeError as error:  # of gloo, NCCL and the store, all of them
            time.sleep(HEARD_LATER)
            raise RanksError(
                f"rank {self.rank} of {self.size} waits in vain for another, which has ended or "
                "cannot be reached any more",
                hint="see what the other said; the same command with --resume (resume=True) goes "
                "on from the last checkpoint",
            ) from error

    # -- tensors ----------------------------------------------------------------------------------

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in place; one message for each kind of
        number and device."""
        for row, parts in _rows(tensors):
            with self._lost():
                dist.all_reduce(row)
            _put_back(row, parts)

    def spread_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process, in place."""
        for row, parts in _rows(tensors):
            with self._lost():
                dist.broadcast(row, src=0)
            _put_back(row, parts)

    # -- what is no tensor ------------------------------------------------------------------------

    def each(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        found: list[Any] = [None] * self.size
        with self._lost():
            dist.all_gather_object(found, value, group=self._host)
        return found

    def from_first(self, find: Callable[[], T]) -> T:
        """What the first process finds, for all of them; the others do not look. Where it fails, it
        raises, and the others end because it is gone."""
        box: list[Any] = [find() if self.first else None]
        with self._lost():
            dist.broadcast_object_list(box, src=0, group=self._host)
        given: T = box[0]
        return given

    def which(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag whether it is set in one of the processes."""
        found = torch.tensor(flags, dtype=torch.int32)
        with self._lost():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._host)
        return [bool(flag) for flag in found.tolist()]

    def told(self, stop: bool, due: bool) -> tuple[bool, bool]:
        """Whether to stop, and whether to save; asked after as many steps as the first process
        makes in half a second, a number that it gives to the others with the answers."""
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
        """Wait until all processes are here."""
        self.any(False)

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Refuse to go on where processes know different facts.

        Raises:
            RanksError: in all of them, naming the fact and two ranks.
        """
        found = self.each({name: repr(value) for name, value in facts.items()})
        for rank, theirs in enumerate(found):
            for name in dict.fromkeys([*found[0], *theirs]):
                a, b = (one.get(name, "nothing") for one in (found[0], theirs))
                if a != b:
                    a, b = _odd(a, b)
                    raise RanksError(
                        f"the processes disagree: {name} is {a} on rank 0, and {b} on rank {rank}",
                        "one command, one set of data and one installation for all",
                        "the same arguments everywhere, or separate processes for separate fits",
                    )

    def says(self) -> bool:
        """True in the process that is the first to tell of an error."""
        if self._store is None:
            return True
        try:
            self._spoke = self._store.add(self._said_in, 1) == 1
        except RuntimeError:  # the store is gone with the process that held it
            return True
        return self._spoke

    def linger(self) -> None:
        """Wait a little until all have asked who has told of an error, if this process holds the
        store and has."""
        end = time.monotonic() + 2.0
        while self._store is not None and self._hosts and self._spoke and time.monotonic() < end:
            if self._store.add(self._said_in, 0) >= self.size:
                return
            time.sleep(0.05)


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


def _odd(a: str, b: str, most: int = 60) -> tuple[str, str]:
    """Two descriptions, long ones only from where they begin to differ."""
    first = next((i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), 0)
    start = max(0, first - 20) if max(len(a), len(b)) > most else 0
    return a[start : start + most], b[start : start + most]
