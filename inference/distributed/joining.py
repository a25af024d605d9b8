"""The group of processes that :func:`~pyroccam.inference.distributed.launch` has started."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from .group import Group
from .ranks import ALONE, Ranks

HEARD_WITHIN = 600.0
"""Seconds in which a process has to answer. One that dies is noticed at once; this is longer than
the first process takes to write any file."""

_group: Group | None = None
_apart = False


def joined() -> Ranks:
    """The processes with which this one trains, if it was launched as one of several; itself alone,
    if not."""
    return ALONE if _apart or _group is None else _group


@contextmanager
def apart() -> Iterator[None]:
    """Within it this process trains alone, whatever group it is in."""
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


def says() -> bool:
    """True if no other process of the group has told of an error yet; the next who asks is told
    that one has."""
    return _group is None or _group.says()


def join(store: dist.Store, rank: int, size: int) -> None:
    """Join the others, and wait until all are there."""
    global _group
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=dist.PrefixStore("pyroccam", store),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=HEARD_WITHIN),
    )
    atexit.register(leave)
    _group = Group(store)
    _group.meet()  # none leaves while another is still on its way


def leave() -> None:
    """Leave the group, as a process does at its end."""
    if dist.is_initialized():
        dist.destroy_process_group()
