"""A network as a draw of a posterior that is trained for the size of its file."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .drawn import draw, draw_own
    from .options import Basis, Draw

__getattr__, __dir__ = lazy_names(__name__)
