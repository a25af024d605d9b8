"""Networks, priors, likelihoods and the Pyro models made of them."""

from . import networks, priors, pruned
from .depth import FixedDepth, LearntDepth
from .likelihoods import Classification, Likelihood, Regression
from .pruned import PrunedNetwork
from .stack import DepthStack, match_adapters

__all__ = [
    "Classification",
    "DepthStack",
    "FixedDepth",
    "LearntDepth",
    "Likelihood",
    "PrunedNetwork",
    "Regression",
    "match_adapters",
    "networks",
    "priors",
    "pruned",
]
