"""Networks, priors, likelihoods and the Pyro models made of them."""

from . import networks, primitives, priors, pruned
from .bayesian import BayesianLayer, BayesianNetwork
from .depth import FixedDepth, LearntDepth
from .graph import StructureGraph
from .likelihoods import Classification, Likelihood, Regression
from .local import LocalReparameterization
from .pruned import PrunedNetwork
from .scaling import Floored, NonCentred
from .stack import DepthStack, match_adapters
from .structured import StructuredNetwork
from .temperature import Annealed

__all__ = [
    "Annealed",
    "BayesianLayer",
    "BayesianNetwork",
    "Classification",
    "DepthStack",
    "FixedDepth",
    "Floored",
    "LearntDepth",
    "Likelihood",
    "LocalReparameterization",
    "NonCentred",
    "PrunedNetwork",
    "Regression",
    "StructureGraph",
    "StructuredNetwork",
    "match_adapters",
    "networks",
    "primitives",
    "priors",
    "pruned",
]
