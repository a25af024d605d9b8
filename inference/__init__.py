"""From a model and a guide to a posterior, a structure and a smaller network."""

from ..models.turns import Busy
from . import cutting, diagnostics, figures, metrics, packing
from .compress import Compressed, compress
from .curvature import Curvature, curvature, to_sample
from .discrete import StructureChoice, choose_structure, discretise, random_structures
from .draws import DrawnNetwork, draw_outputs
from .elbo import EnumMeanFieldELBO, bound
from .ensemble import EnsembleNetwork
from .evidence import Evidence, evidence
from .fit import Fit, Repeats, fit, fit_repeats
from .magnitude import prune_weights, share_weights, splice_weights
from .narrow import narrow
from .network_folder import load, save
from .posterior import mean_network
from .posterior_draws import PosteriorDraws, PriorDraws, draw_posterior, draw_prior
from .prune import prune, seconds_per_batch
from .remains import bytes_by_part, input_use, remains
from .run_directory import CheckpointError
from .scale_intervals import scale_intervals
from .select import Selection, select
from .settings import Settings
from .step import CompileFallback, TrainingStep
from .structure import (
    Structure,
    choose_depth,
    exact_depth_posterior,
    pruned_weights,
    rounded_mean,
    total_variation,
)
from .swap import side_by_side, swap
from .trainer import Interrupted, NonFiniteLoss
from .two_level import Against, InverseGamma, Level
from .uncertainty import Uncertainty, out_of_domain, uncertainty
from .zero_mean import mean_costs, without_means

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
