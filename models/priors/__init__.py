"""Priors: one file for each kind of latent."""

from .ard import ARD, EmpiricalNormal
from .depth import Cost, DepthPrior, Geometric, Poisson, Uniform, Vector, parse
from .gaussian_mixture import GaussianMixture, NormalMixture
from .group_horseshoe import GroupHorseshoe
from .group_normal_jeffreys import GroupNormalJeffreys
from .half_cauchy import GroupHalfCauchy
from .log_uniform import ImproperLogUniform, LogUniform
from .normal import Normal, normal_optimum
from .spike_slab import SpikeSlab
from .student_t import StudentT
from .weights import Latent, LayerPrior, LayerShape, WeightPrior
from .words import parse_weights

__all__ = [
    "ARD",
    "Cost",
    "DepthPrior",
    "EmpiricalNormal",
    "GaussianMixture",
    "Geometric",
    "GroupHalfCauchy",
    "GroupHorseshoe",
    "GroupNormalJeffreys",
    "ImproperLogUniform",
    "Latent",
    "LayerPrior",
    "LayerShape",
    "LogUniform",
    "Normal",
    "NormalMixture",
    "Poisson",
    "SpikeSlab",
    "StudentT",
    "Uniform",
    "Vector",
    "WeightPrior",
    "normal_optimum",
    "parse",
    "parse_weights",
]
