"""Figures that are small squares, and times that are taken thrice, in small runs of tests: either
takes longer than the run."""

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from matplotlib.figure import Figure
from PIL import Image
from pyroccam.inference import figures
from pyroccam.inference.cutting import cost

MEASURE = cost._rounds


def _leave_a_square(figure, target, *, format, **options):
    Image.new("RGB", (40, 20)).save(target, format)


def _measure_shortly(nets, x, rounds, least_seconds):
    return MEASURE(nets, x, min(rounds, 3), 1e-9)


@contextmanager
def unrendered(made=False):
    """Files of figures are squares, and unless they are ``made``, so are the figures; what they are
    given is still computed."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(Figure, "savefig", _leave_a_square))
        stack.enter_context(patch.object(cost, "_rounds", _measure_shortly))
        for name in () if made else {*figures.__all__} - {"save"}:
            stack.enter_context(patch.object(figures, name, lambda *a, **k: Figure()))
        yield
