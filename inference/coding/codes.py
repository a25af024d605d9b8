"""The codes by their words, and the words that files were ever written by."""

from .minimal_random import MinimalRandom
from .ordered_random import OrderedRandom
from .relative_entropy import Code

__all__ = ["CODES", "WORDS"]

CODES: dict[str, Code] = {code.word: code for code in (MinimalRandom(), OrderedRandom())}
"""The codes by their words."""

WORDS = ("minimal-random", "ordered-random", "a-star", "greedy-rejection")
"""All that files were written by, which say it by the place here; the last two are
read as the second is, and no longer written."""
