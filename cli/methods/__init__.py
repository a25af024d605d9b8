"""Methods by name: each takes options, makes the pairs of a run, and reports on it in the end."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .base import FOLDER, Finished, Method, Pair, Stage
    from .options import Threshold, taken
    from .table import METHODS, find
    from .weights import (
        DRAW,
        FILE,
        SEARCHED,
        OverWeights,
        compress_run,
        cut_of,
        draw_run,
        evaluate,
        file_of,
        network_of_file,
        said_of_file,
    )

__all__ = [
    "METHODS",
    "Method",
    "find",
]

__getattr__, __dir__ = lazy_names(__name__)
