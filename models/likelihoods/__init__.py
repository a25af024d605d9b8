"""Likelihoods, one file for each kind of target: from outputs of a network to a distribution."""

from .amounts import Heteroscedastic, Regression, StudentT
from .base import Likelihood, TargetSpec
from .choosing import checked, for_data, has_weights, parse, precision, words
from .classes import Classification, MultiLabel, Ordinal
from .counts import NegativeBinomial, Poisson

__all__ = [
    "Classification",
    "Heteroscedastic",
    "Likelihood",
    "MultiLabel",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Regression",
    "StudentT",
    "TargetSpec",
    "checked",
    "for_data",
    "has_weights",
    "parse",
    "precision",
    "words",
]
