"""How a process joins the others: by the group that is there, or by what its launcher says."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from .group import Group
from .ranks import ALONE, Ranks, RanksError

__all__ = ["apart", "joined", "launched", "leave", "says"]

REACHED_WITHIN = 300.0
"""Seconds in which all processes have to be there."""

HEARD_WITHIN = 600.0
"""Seconds in which a process has to answer. One that dies is noticed at once; this is for a machine
that is cut off, and longer than the first process takes to write any file."""

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_group: Group | None = None
_apart = False


def launched() -> bool:
    """True if a launcher such as ``torchrun`` has started this process as one of several."""
    return all(name in os.environ for name in _NAMES) and os.environ["WORLD_SIZE"] != "1"


def joined() -> Ranks:
    """The processes with which this one trains, joined if it was launched as one of several; itself
    alone, if not.

    Raises:
        RanksError: if the others cannot be reached.
    """
    global _group
    if _apart or not (dist.is_available() and (dist.is_initialized() or launched())):
        return ALONE
    if not dist.is_initialized():
        _group = _join()
    elif _group is None or _group.world is not dist.group.WORLD:
        _group = Group(local_rank=_number("LOCAL_RANK", 0))
    return _group


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
    that one has. Joins nothing."""
    return _group is None or _group.says()


def _join() -> Group:
    """Join as the variables of a launcher say."""
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local, attempt = _number("LOCAL_RANK", 0), _number("TORCHELASTIC_RESTART_COUNT", 0)
    if not 0 <= rank < size:
        raise RanksError(
            f"RANK is {rank} of WORLD_SIZE {size}", "a rank below the size", "torchrun"
        )
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    # A launcher that may restart its processes holds the store itself.
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            _number("MASTER_PORT"),
            size,
            is_master=rank == 0 and not hosted,
            timeout=timedelta(seconds=REACHED_WITHIN),
        )
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=dist.PrefixStore(f"pyroccam/{attempt}", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=HEARD_WITHIN),
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise RanksError(
            f"rank {rank} cannot reach the others by {place} in {REACHED_WITHIN:.0f} s ({reason})",
            f"all {size} processes there, and an address of the first that others can reach",
            "the same MASTER_ADDR and MASTER_PORT for all (--rdzv-endpoint of torchrun), and an "
            "open port; to train in one process, unset RANK",
        ) from error
    atexit.register(leave)
    group = Group(store, attempt, local, hosts=rank == 0 and not hosted)
    group.meet()  # none leaves while another is still on its way
    return group


def leave() -> None:
    """Leave the group, as a process does at its end; one that holds the store lets the others ask
    first who has told of an error."""
    if _group is not None:
        _group.linger()
    if dist.is_initialized():
        dist.destroy_process_group()


def _number(name: str, otherwise: int | None = None) -> int:
    """A whole number from the environment."""
    given = os.environ.get(name, None if otherwise is None else str(otherwise))
    if given is None or not given.isdecimal():
        raise RanksError(f"{name} is {given!r}", "a whole number", "torchrun, which sets it")
    return int(given)
