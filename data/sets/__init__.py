"""Data sets by name, and toys."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .embedded import load_digits
    from .images import load_images
    from .toys import load_spirals, load_wiggle, spirals
    from .uci import UCI_ALIASES, load_uci

__getattr__, __dir__ = lazy_names(__name__)
