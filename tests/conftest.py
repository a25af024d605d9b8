"""How the tests are shared among processes, and what they begin with."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cuda", help="of tests/gpu: cuda, cuda:<n> or cpu")


def pytest_configure(config: pytest.Config) -> None:
    """Signals act as on a terminal, though tests may run in the background of a shell that ignores
    them. With ``-n``: half of the tests each, in their order, and what is left is taken over.

    What the tests of a module share (a fit, mostly) is then made in one process, not in all. Each
    process computes with one thread: those of several processes get into each other's way.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if getattr(config.option, "numprocesses", None):
        config.option.dist = "worksteal"
    if hasattr(config, "workerinput"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported


@pytest.fixture
def clean() -> Iterator[None]:
    """A seed, and nothing in Pyro's store of parameters, before and after."""
    import pyro
    import torch

    torch.manual_seed(0)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()
