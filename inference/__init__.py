"""From a model and a guide to a posterior, a structure and a smaller network."""

from ..models.turns import Busy
from . import cutting, diagnostics, figures, packing
from .arviz.densities import PosteriorDraws, PriorDraws, draw_posterior, draw_prior
from .comparison import side_by_side, swap
from .elbo.estimator import EnumMeanFieldELBO, bound
from .elbo.full_data import Evidence, evidence
from .fits.fitting import Fit, Repeats, fit, fit_repeats
from .posterior import metrics
from .posterior.depth import (
    Structure,
    choose_depth,
    exact_depth_posterior,
    pruned_weights,
    rounded_mean,
    total_variation,
)
from .posterior.draws import DrawnNetwork, draw_outputs
from .posterior.ensemble import EnsembleNetwork
from .posterior.mean_propagation import Curvature, curvature, to_sample
from .posterior.uncertainties import Uncertainty, out_of_domain, uncertainty
from .posterior.weight_moments import mean_network
from .pruning.compression import Compressed, compress
from .pruning.depth import prune, seconds_per_batch
from .pruning.graph import StructureChoice, choose_structure, discretise, random_structures
from .pruning.intervals import scale_intervals
from .pruning.inventory import bytes_by_part, input_use, remains
from .pruning.magnitude import prune_weights, share_weights, splice_weights
from .pruning.narrowing import narrow
from .pruning.variance_network import mean_costs, without_means
from .selection.bilevel import Selection, select
from .selection.levels import Against, InverseGamma, Level
from .storage.checkpoint import CheckpointError
from .storage.network_folder import load, save
from .training.settings import Settings
from .training.step import CompileFallback, TrainingStep
from .training.trainer import Interrupted, NonFiniteLoss

__all__ = [
    "Against",
    "Busy",
    "CheckpointError",
    "CompileFallback",
    "Compressed",
    "Curvature",
    "DrawnNetwork",
    "EnsembleNetwork",
    "EnumMeanFieldELBO",
    "Evidence",
    "Fit",
    "Interrupted",
    "InverseGamma",
    "Level",
    "NonFiniteLoss",
    "PosteriorDraws",
    "PriorDraws",
    "Repeats",
    "Selection",
    "Settings",
    "Structure",
    "StructureChoice",
    "TrainingStep",
    "Uncertainty",
    "bound",
    "bytes_by_part",
    "choose_depth",
    "choose_structure",
    "compress",
    "curvature",
    "cutting",
    "diagnostics",
    "discretise",
    "draw_outputs",
    "draw_posterior",
    "draw_prior",
    "evidence",
    "exact_depth_posterior",
    "figures",
    "fit",
    "fit_repeats",
    "input_use",
    "load",
    "mean_costs",
    "mean_network",
    "metrics",
    "narrow",
    "out_of_domain",
    "packing",
    "prune",
    "prune_weights",
    "pruned_weights",
    "random_structures",
    "remains",
    "rounded_mean",
    "save",
    "scale_intervals",
    "seconds_per_batch",
    "select",
    "share_weights",
    "side_by_side",
    "splice_weights",
    "swap",
    "to_sample",
    "total_variation",
    "uncertainty",
    "without_means",
]
