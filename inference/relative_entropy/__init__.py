"""Relative entropy coding: a draw of a posterior is sent at about the price of its KL."""

from .base import Code, Proposals
from .minimal_random import MinimalRandom
from .ordered_random import AStar, OrderedRandom
from .rejection import GreedyRejection
from .target import Target

__all__ = [
    "CODES",
    "AStar",
    "Code",
    "GreedyRejection",
    "MinimalRandom",
    "OrderedRandom",
    "Proposals",
    "Target",
]

CODES: dict[str, Code] = {
    code.word: code for code in (MinimalRandom(), OrderedRandom(), AStar(), GreedyRejection())
}
"""The codes by their words; a file says which by its place here."""
