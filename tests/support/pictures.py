"""Figures that are not drawn, and times that are taken thrice, in small runs of tests: either takes
longer than the run."""

from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from matplotlib.figure import Figure
from pyroccam.inference import figures
from pyroccam.inference.cutting import cost

MEASURE = cost._rounds


def _leave_a_file(figure, target, **options):
    Path(target).touch()


def _measure_shortly(nets, x, rounds, least_seconds, fields=None):
    return MEASURE(nets, x, min(rounds, 3), 1e-9, fields)


@contextmanager
def unrendered():
    """Figures are empty, and so are their files; what they are given is still computed."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(Figure, "savefig", _leave_a_file))
        stack.enter_context(patch.object(cost, "_rounds", _measure_shortly))
        for name in {*figures.__all__} - {"save"}:
            stack.enter_context(patch.object(figures, name, lambda *a, **k: Figure()))
        yield
