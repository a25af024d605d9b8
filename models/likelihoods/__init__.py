"""Likelihoods, one file for each kind of target: from outputs of a network to a distribution."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .amounts import Heteroscedastic, Regression, StudentT
    from .base import Likelihood, TargetSpec
    from .choosing import checked, for_data, has_weights, parse, precision, words
    from .classes import Classification, MultiLabel, Ordinal
    from .counts import NegativeBinomial, Poisson
    from .noise import LEAST_ROWS, learns_noise, noise_of_rows, set_noise

__getattr__, __dir__ = lazy_names(__name__)
