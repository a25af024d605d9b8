"""Contracts of priors and guides, as test classes that those of one's own derive from."""

from typing import TYPE_CHECKING

from ..data import lazy_names

if TYPE_CHECKING:
    from .guides import GuideCase
    from .means import assert_same_means
    from .priors import PriorCase

__all__ = ["GuideCase", "PriorCase", "assert_same_means"]

__getattr__, __dir__ = lazy_names(__name__)
