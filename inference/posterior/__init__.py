"""Knowledge of a trained pair: moments, draws, predictions, their scores and spread."""

from . import metrics
from .depth import (
    DepthStructure,
    choose_depth,
    exact_depth_posterior,
    rounded_mean,
    total_variation,
)
from .draws import DrawnNetwork
from .ensemble import EnsembleNetwork
from .layers import Layer
from .mean_propagation import Curvature, Curvatures
from .posteriors import DepthPosterior, Posterior, WeightPosterior, posterior_of
from .structures import EdgeStructure, Structure
from .uncertainties import Uncertainty, out_of_domain, uncertainty

__all__ = [
    "Curvature",
    "Curvatures",
    "DepthPosterior",
    "DepthStructure",
    "DrawnNetwork",
    "EdgeStructure",
    "EnsembleNetwork",
    "Layer",
    "Posterior",
    "Structure",
    "Uncertainty",
    "WeightPosterior",
    "choose_depth",
    "exact_depth_posterior",
    "metrics",
    "out_of_domain",
    "posterior_of",
    "rounded_mean",
    "total_variation",
    "uncertainty",
]
