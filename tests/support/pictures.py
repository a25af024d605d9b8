"""Figures that are made but not rendered, which takes longer than the small runs of tests."""

from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from matplotlib.figure import Figure


def _leave_a_file(figure, target, **options):
    Path(target).touch()


@contextmanager
def unrendered():
    """Files of figures are empty."""
    with patch.object(Figure, "savefig", _leave_a_file):
        yield
