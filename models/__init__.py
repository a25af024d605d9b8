"""Networks, priors, likelihoods and the Pyro models made of them."""

from . import networks, priors, pruned
from .bayesian import BayesianLayer, BayesianNetwork
from .depth import FixedDepth, LearntDepth
from .likelihoods import Classification, Likelihood, Regression
from .local import LocalReparameterization
from .pruned import PrunedNetwork
from .stack import DepthStack, match_adapters

__all__ = [
    "BayesianLayer",
    "BayesianNetwork",
    "Classification",
    "DepthStack",
    "FixedDepth",
    "LearntDepth",
    "Likelihood",
    "LocalReparameterization",
    "PrunedNetwork",
    "Regression",
    "match_adapters",
    "networks",
    "priors",
    "pruned",
]
