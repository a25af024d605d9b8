"""Networks, priors, likelihoods and the Pyro models made of them."""

from . import networks, priors
from .bayesian import BayesianNetwork
from .distributions.temperature import Annealed
from .layers.bayesian_layer import BayesianLayer
from .layers.local_reparameterisation import LocalReparameterization
from .learnt_depth import FixedDepth, LearntDepth
from .likelihoods import Classification, Likelihood, Regression
from .networks import primitives
from .networks.stack import DepthStack, match_adapters
from .networks.structure_graph import StructureGraph
from .plain import pruned
from .plain.pruned import PrunedNetwork
from .priors.scaling import Floored, NonCentred
from .structured import StructuredNetwork

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
