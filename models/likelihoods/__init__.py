"""Likelihoods, one file for each kind of target: from outputs of a network to a distribution."""

# All are imported: those of a kind are found by it.
from .amounts import ClosedForm, Embedding, Heteroscedastic, Regression, StudentT
from .base import Likelihood, TargetSpec
from .choosing import checked, for_data, has_weights, parse, precision, words
from .classes import Classification, MultiLabel, Ordinal
from .counts import NegativeBinomial, Poisson
from .noise import LEAST_ROWS, learns_noise, noise_of_rows, set_noise
