"""Knowledge of a trained pair: moments, draws, predictions, their scores and spread."""

from . import metrics
from .depth import (
    DepthStructure,
    choose_depth,
    exact_depth_posterior,
    rounded_mean,
    total_variation,
)
from .draws import DrawnNetwork, draw_outputs
from .ensemble import EnsembleNetwork
from .mean_propagation import Curvature, curvature, to_sample
from .uncertainties import Uncertainty, out_of_domain, uncertainty
from .weight_moments import mean_network, moments

__all__ = [
    "Curvature",
    "DepthStructure",
    "DrawnNetwork",
    "EnsembleNetwork",
    "Uncertainty",
    "choose_depth",
    "curvature",
    "draw_outputs",
    "exact_depth_posterior",
    "mean_network",
    "metrics",
    "moments",
    "out_of_domain",
    "rounded_mean",
    "to_sample",
    "total_variation",
    "uncertainty",
]
