"""Several processes that train one pair: what each computes, what they add up, how they begin."""

from .joining import joined
from .launching import launch
from .ranks import Ranks, RanksError

__all__ = ["Ranks", "RanksError", "joined", "launch"]
