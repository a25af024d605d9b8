"""Many runs: every combination of settings, each a process in a folder of its own."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .driver import run_sweep
    from .plan import parse_lists, trials_of
    from .results import finished_cells

__getattr__, __dir__ = lazy_names(__name__)
