"""The way from a model and a guide to a posterior, a structure and a smaller network."""

import importlib
import warnings
from typing import Any

from ..models.threads import Busy
from . import (
    arviz,
    cutting,
    diagnostics,
    distributed,
    draw_coding,
    elbo,
    figures,
    marginal_likelihood,
    packing,
    posterior,
    pruning,
    selection,
)
from .comparison import side_by_side, swap
from .elbo.estimator import EnumMeanFieldELBO
from .fits.fitting import fit, fit_repeats
from .fits.result import Fit, Repeats
from .marginal_likelihood import description_length, evidence
from .pruning import compress, discretise, narrow, prune
from .selection import path, select, within
from .storage.checkpoint import CheckpointError
from .storage.network_folder import load, save
from .training.settings import Settings
from .training.step import CompileFallback, TrainingStep
from .training.trainer import Interrupted, NonFiniteLoss

__all__ = [
    "Busy",
    "CheckpointError",
    "CompileFallback",
    "EnumMeanFieldELBO",
    "Fit",
    "Interrupted",
    "NonFiniteLoss",
    "Repeats",
    "Settings",
    "TrainingStep",
    "arviz",
    "compress",
    "cutting",
    "description_length",
    "diagnostics",
    "discretise",
    "distributed",
    "draw_coding",
    "elbo",
    "evidence",
    "figures",
    "fit",
    "fit_repeats",
    "load",
    "marginal_likelihood",
    "narrow",
    "packing",
    "path",
    "posterior",
    "prune",
    "pruning",
    "save",
    "select",
    "selection",
    "side_by_side",
    "swap",
    "within",
]

# What this package itself handed on before it had rooms.
_ROOMS_OF = {
    "arviz": ("PosteriorDraws", "PriorDraws", "draw_posterior", "draw_prior"),
    "cutting": ("seconds_per_batch",),
    "elbo": ("Evidence", "bound"),
    "figures": ("style",),
    "posterior": (
        *("Curvature", "DrawnNetwork", "EnsembleNetwork", "Uncertainty", "choose_depth"),
        *("exact_depth_posterior", "metrics", "out_of_domain", "rounded_mean"),
        *("total_variation", "uncertainty"),
    ),
    "pruning": (
        *("Compressed", "bytes_by_part", "choose_structure", "input_use"),
        *("mean_costs", "prune_weights", "random_structures", "remains", "scale_intervals"),
        *("share_weights", "splice_weights", "without_means"),
    ),
    "selection": ("Against", "InverseGamma", "Level", "Selection"),
}
_RENAMED = {"Structure": "posterior.DepthStructure", "pruned_weights": "pruning.kept_depth_probs"}


def __getattr__(name: str) -> Any:
    """A name that moved to a room, with a warning that says where it is.

    Raises:
        AttributeError: for any other name.
    """
    places = _RENAMED | {n: f"{room}.{n}" for room, names in _ROOMS_OF.items() for n in names}
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room, _, own = places[name].partition(".")
    warnings.warn(
        f"inference.{name} moved, and will go: use inference.{room}.{own}.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module(f".{room}", __name__), own)
