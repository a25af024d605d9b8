"""A network in a small file, as a draw of a posterior that is trained for the size."""

from .draw_file import decoded, is_draw, read
from .drawn import code_draw, code_posterior
from .sample import CodeWord, Drawn, Sample

__all__ = [
    "CodeWord",
    "Drawn",
    "Sample",
    "code_draw",
    "code_posterior",
    "decoded",
    "is_draw",
    "read",
]
