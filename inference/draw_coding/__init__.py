"""A network in a small file, as a draw of a posterior that is trained for the size."""

from .draw_file import decoded, is_draw, read
from .drawn import draw, draw_own
from .options import CodeWord, DrawReport

__all__ = ["CodeWord", "DrawReport", "decoded", "draw", "draw_own", "is_draw", "read"]
