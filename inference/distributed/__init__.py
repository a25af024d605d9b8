"""Several processes that train one pair: what each computes, what they add up, how they begin."""

from .joining import apart, joined
from .launching import launch
from .ranks import Ranks, RanksError

__all__ = ["Ranks", "RanksError", "apart", "joined", "launch"]
