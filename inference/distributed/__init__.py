"""Several processes that train one pair: what each computes, what they add up, how they begin."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .joining import apart, joined
    from .launching import Ended, launch, refuse_device
    from .ranks import ALONE, Part, Ranks
    from .reduction import add_up, average_

__all__ = [
    "apart",
    "joined",
    "launch",
]

__getattr__, __dir__ = lazy_names(__name__)
