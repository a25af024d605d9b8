"""Starting several processes on this machine, by torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Annotated, Any, TypeVar

import torch
import torch.distributed as dist

from ...data import Between, checked
from .joining import join
from .ranks import RanksError

T = TypeVar("T")

MOST = 1024
"""Processes on a machine: more than it has cores."""

FIRST_SAYS_IT = 20.0
"""Seconds that the other processes wait after a Ctrl-C before anything is done."""

_CTRL_C = (signal.SIGINT,)

_LOUD = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")


class Ended(RanksError):
    """A process that ended before its work was done.

    Attributes:
        code: with which it exited, or minus the number of the signal that ended it.
    """

    def __init__(self, rank: int, code: int, said: str = "") -> None:
        self.code = code
        how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        how = f"failed by {said}" if said else how
        super().__init__(
            f"the process of rank {rank} {how}",
            hint="--resume (resume=True), which goes on from the last checkpoint",
        )


@checked
def launch(
    function: Callable[..., T],
    processes: Annotated[int, Between(1, MOST)],
    args: Sequence[Any] = (),
) -> T:
    """Call a function in several new processes on this machine, which train together.

    In them :func:`pyroccam.inference.fit` is one fit of all: each takes its part of every batch.

    Arguments:
        function: of a module that can be imported, as ``multiprocessing`` needs it.
        args: of the function; they are pickled.

    Returns:
        what the function gave in the first process, which is pickled too.

    Raises:
        RanksError: if this torch has no distributed package.
        Ended: if one of them ended before it was done; all the others are ended, too.
    """
    if not dist.is_available():
        raise RanksError("this build of torch has no torch.distributed", "one that has it")
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        # Ctrl-C reaches all processes of a terminal: passed on, it would reach them twice.
        signals_to_handle="SIGTERM,SIGHUP,SIGQUIT",
    )
    with _quiet(), _variables(processes), _deaf():
        try:
            found = elastic_launch(config, _on_rank)(function, tuple(args))
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            # What a function raised is a dictionary; of others there is a sentence of torch's.
            told: Any = failure.message
            said = told["message"] if isinstance(told, dict) else ""
            # gloo may abort a process that ends by an error: the error is what counts.
            raise Ended(rank, 1 if said else failure.exitcode, said) from error
        except SignalException as error:
            raise KeyboardInterrupt(str(error)) from error
    given: T = found[0]
    return given


def refuse_device(device: str, processes: int) -> None:
    """Refuse, before anything starts, a device that so many processes of a machine cannot have."""
    if processes == 1 or device == "cpu":
        return
    if device.startswith("cuda:"):
        given = f"{processes} processes on {device}, which is one GPU"
        raise RanksError(given, "a GPU for each", "device='cuda' (--device cuda)")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto" and not count:
        return
    if processes > count:
        raise RanksError(f"{count} GPUs for {processes} processes", "a GPU for each")


def _on_rank(function: Callable[..., T], args: tuple[Any, ...]) -> T | None:
    """Join the others and call the function; its result, which the first process alone is asked."""
    names = ("MASTER_PORT", "RANK", "WORLD_SIZE")  # as the launcher, which holds the store, says
    port, rank, size = (int(os.environ[name]) for name in names)
    first = rank == 0
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)
        join(dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False), rank, size)
    except KeyboardInterrupt:
        if first:
            print("Stopped before anything was done.", file=sys.stderr)
        else:  # at the end of the first the launcher ends all others
            time.sleep(FIRST_SAYS_IT)
        sys.exit(128 + signal.SIGINT)
    found = function(*args)
    return found if first else None


@contextmanager
def _quiet() -> Iterator[None]:
    """What ended is an error of :func:`launch`, and needs no log beside it."""
    # Each module of torch's has a logger with a level of its own.
    names = [*_LOUD, *(name for name in logging.root.manager.loggerDict if name.startswith(_LOUD))]
    before = {name: logging.getLogger(name).level for name in names}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _variables(processes: int) -> Iterator[None]:
    """New processes share the cores, print no stacks of C++ beside an error in words, and look for
    no modules in the present folder, unless something else was asked for."""
    threads = str(max(1, torch.get_num_threads() // processes))
    wanted = {"OMP_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONSAFEPATH": "1"}
    new = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ |= new
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextmanager
def _deaf() -> Iterator[None]:
    """Wait out a Ctrl-C while the processes, which have heard it too, come to their end. They begin
    with it held back: whatever they import would end by a stack."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # which unblocks what is blocked, when it is started
    # A function is not handed down to new processes, as SIG_IGN would be; what is blocked is.
    former = signal.signal(signal.SIGINT, lambda number, frame: None)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _CTRL_C)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)  # what is held back is heard here
        signal.signal(signal.SIGINT, former)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
