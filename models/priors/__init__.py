"""Priors: one file for each kind of latent."""

# All are imported: those of a kind are found by it.
from .ard import ARD
from .base import Latent, LayerPrior, LayerShape, WeightPrior
from .depth import Cost, DepthPrior, Geometric, Poisson, Uniform, Vector, parse
from .gaussian_mixture import GaussianMixture
from .group_horseshoe import GroupHorseshoe
from .group_normal_jeffreys import GroupNormalJeffreys
from .half_cauchy import GroupHalfCauchy
from .integers import Integers
from .log_uniform import LogUniform
from .multi_spike import MultiSpike
from .normal import Normal
from .parsing import parse_weights
from .pretrained import Pretrained
from .scaling import Floored, NonCentred, Scaling, Share
from .shared_normal import SharedNormal
from .spike_slab import SpikeSlab
from .structure import (
    Bernoulli,
    Categorical,
    DepthEdge,
    Dirichlet,
    EdgePrior,
    GumbelSoftmax,
    RelaxedBernoulli,
    StructurePrior,
    parse_structure,
)
from .student_t import StudentT
from .unsquared_norm import UnsquaredNorm

__all__ = [
    "ARD",
    "Bernoulli",
    "Categorical",
    "Cost",
    "DepthPrior",
    "Dirichlet",
    "EdgePrior",
    "GaussianMixture",
    "Geometric",
    "GroupHalfCauchy",
    "GroupHorseshoe",
    "GroupNormalJeffreys",
    "GumbelSoftmax",
    "Integers",
    "Latent",
    "LayerPrior",
    "LayerShape",
    "LogUniform",
    "MultiSpike",
    "Normal",
    "Poisson",
    "Pretrained",
    "RelaxedBernoulli",
    "SharedNormal",
    "SpikeSlab",
    "StructurePrior",
    "StudentT",
    "Uniform",
    "UnsquaredNorm",
    "Vector",
    "WeightPrior",
    "parse",
    "parse_structure",
    "parse_weights",
]
