"""Priors: one file for each kind of latent."""

from ..distributions.log_uniform import ImproperLogUniform
from ..distributions.mixture import NormalMixture
from .ard import ARD, EmpiricalNormal
from .base import Latent, LayerPrior, LayerShape, WeightPrior
from .depth import Cost, DepthPrior, Geometric, Poisson, Uniform, Vector, parse
from .gaussian_mixture import GaussianMixture
from .group_horseshoe import GroupHorseshoe
from .group_normal_jeffreys import GroupNormalJeffreys
from .half_cauchy import GroupHalfCauchy
from .log_uniform import LogUniform
from .normal import Normal, normal_optimum
from .parsing import parse_weights
from .spike_slab import SpikeSlab
from .structure import (
    Bernoulli,
    Categorical,
    Dirichlet,
    EdgePrior,
    GumbelSoftmax,
    RelaxedBernoulli,
    StructurePrior,
    parse_structure,
)
from .student_t import StudentT

__all__ = [
    "ARD",
    "Bernoulli",
    "Categorical",
    "Cost",
    "DepthPrior",
    "Dirichlet",
    "EdgePrior",
    "EmpiricalNormal",
    "GaussianMixture",
    "Geometric",
    "GroupHalfCauchy",
    "GroupHorseshoe",
    "GroupNormalJeffreys",
    "GumbelSoftmax",
    "ImproperLogUniform",
    "Latent",
    "LayerPrior",
    "LayerShape",
    "LogUniform",
    "Normal",
    "NormalMixture",
    "Poisson",
    "RelaxedBernoulli",
    "SpikeSlab",
    "StructurePrior",
    "StudentT",
    "Uniform",
    "Vector",
    "WeightPrior",
    "normal_optimum",
    "parse",
    "parse_structure",
    "parse_weights",
]
