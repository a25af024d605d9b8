"""Networks, priors, likelihoods and the Pyro models made of them."""

from . import networks, priors
from .bayesian import BayesianNetwork
from .bayesian_stack import BayesianStack
from .distributions.temperature import Annealed
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
from .networks.stack import DepthStack
from .networks.structure_graph import StructureGraph
from .plain_network import PlainNetwork
from .priors.scaling import Floored, NonCentred
from .structured import StructuredNetwork

__all__ = [
    "Annealed",
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
    "Regression",
    "StructureGraph",
    "StructuredNetwork",
    "StudentT",
    "networks",
    "priors",
]
