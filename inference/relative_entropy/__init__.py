"""Relative entropy coding: a draw of a posterior is sent at about the price of its KL."""

from .base import Code, Proposals
from .minimal_random import MinimalRandom
from .ordered_random import OrderedRandom
from .target import Target

__all__ = ["CODES", "WORDS", "Code", "MinimalRandom", "OrderedRandom", "Proposals", "Target"]

CODES: dict[str, Code] = {code.word: code for code in (MinimalRandom(), OrderedRandom())}
"""The codes by their words."""

WORDS = ("minimal-random", "ordered-random", "a-star", "greedy-rejection")
"""All that files were written by, which say it by the place here; the last two are
read as the second is, and no longer written."""
