"""How the tests are shared among processes."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """With ``-n``: half of the tests each, in their order, and what is left is taken over.

    What the tests of a module share (a fit, mostly) is then made in one process, not in all.
    """
    if getattr(config.option, "numprocesses", None):
        config.option.dist = "worksteal"
