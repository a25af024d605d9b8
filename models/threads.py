"""Turns, one at a time, at what a process has once: Pyro's handlers and torch's randomness."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..data import PyroccamError

PATIENCE = 300.0  # seconds to wait for a turn: a fit gives way after each step, and compiles in one


class Busy(PyroccamError, RuntimeError):
    """Another thread is at what a process can do once at a time."""


class _State:
    """Who has the turn, how often over, how many wait for it, and which thread fits."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.counting = threading.Lock()
        self.depth = 0  # of the turn, written by who has it
        self.waiting = 0
        self.fitting: threading.Thread | None = None
        self.trained: list[object] = []  # by the fit, and by those it is nested in


_state = _State()


def _afresh() -> None:
    global _state
    _state = _State()  # of a forked process: the threads that had a turn are not in it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


@contextmanager
def turn() -> Iterator[None]:
    """Wait for the turn of this thread, and have it; a thread that has it has it at once."""
    state = _state
    if not state.lock.acquire(blocking=False):
        with state.counting:
            state.waiting += 1
        try:
            if not state.lock.acquire(timeout=PATIENCE):
                raise Busy(
                    f"thread {threading.current_thread().name!r} waited {PATIENCE:.0f} s for "
                    "another that computes with random numbers or Pyro",
                    "one at a time in a process",
                    "processes in place of threads",
                )
        finally:
            with state.counting:
                state.waiting -= 1
    state.depth += 1
    try:
        yield
    finally:
        state.depth -= 1
        state.lock.release()


@contextmanager
def fitting(*trained: object) -> Iterator[None]:
    """Have the turn for a fit of some modules; a fit in another thread refuses at once. Within a
    fit, of a callback for one, another may run."""
    state, me = _state, threading.current_thread()
    with state.counting:
        outer = state.fitting
        if outer is not None and outer is not me:
            raise Busy(
                f"a fit is running in thread {outer.name!r}, this one is {me.name!r}",
                "one fit at a time in a process: they share a stream of random numbers",
                "wait for it, inference.fit_repeats for several together, or processes",
            )
        if any(one is other for one in trained for other in state.trained):
            found = "a model or guide that is being trained by the fit around this one"
            raise PyroccamError(found, "a copy.deepcopy of the pair")
        state.fitting = me
        state.trained.extend(trained)
    try:
        with turn():
            yield
    finally:
        with state.counting:
            state.fitting = outer
            del state.trained[len(state.trained) - len(trained) :]


def give_way() -> None:
    """Let another thread have its turn, if one waits: between two steps of a fit."""
    state = _state
    if state.waiting and state.depth == 1:
        state.depth -= 1
        state.lock.release()
        time.sleep(1e-3)  # else this thread has the lock again before the other has woken
        state.lock.acquire()
        state.depth += 1
