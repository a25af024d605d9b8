"""Several processes that train one pair: what each computes, what they add up, how they begin."""

from .joining import apart, joined
from .launching import launch

__all__ = ["apart", "joined", "launch"]
