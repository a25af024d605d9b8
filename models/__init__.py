"""Networks, priors, likelihoods and the Pyro models made of them."""

from . import networks, priors
from .bayesian import BayesianNetwork
from .bayesian_stack import BayesianStack
from .distributions.temperature import Annealed
from .layers.bayesian_layer import BayesianLayer
from .layers.local_reparameterisation import LocalReparameterization
from .learnt_depth import LearntDepth
from .likelihoods import (
    Classification,
    Heteroscedastic,
    Likelihood,
    MultiLabel,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Regression,
    StudentT,
)
from .networks import primitives
from .networks.stack import DepthStack, match_adapters
from .networks.structure_graph import StructureGraph
from .plain import pruned
from .plain.pruned import PrunedNetwork
from .plain_network import PlainNetwork
from .priors.scaling import Floored, NonCentred
from .structured import StructuredNetwork

__all__ = [
    "Annealed",
    "BayesianLayer",
    "BayesianNetwork",
    "BayesianStack",
    "Classification",
    "DepthStack",
    "Floored",
    "Heteroscedastic",
    "LearntDepth",
    "Likelihood",
    "LocalReparameterization",
    "MultiLabel",
    "NegativeBinomial",
    "NonCentred",
    "Ordinal",
    "PlainNetwork",
    "Poisson",
    "PrunedNetwork",
    "Regression",
    "StructureGraph",
    "StructuredNetwork",
    "StudentT",
    "match_adapters",
    "networks",
    "primitives",
    "priors",
    "pruned",
]
