"""The way from a model and a guide to a posterior, a structure and a smaller network."""

from typing import TYPE_CHECKING

from ..data.door import lazy_names

if TYPE_CHECKING:
    from . import (
        arviz,
        cutting,
        diagnostics,
        distributed,
        elbo,
        figures,
        marginal_likelihood,
        files as packing,
        posterior,
        shrinking as pruning,
        selection,
    )
    from .diagnostics.comparison import side_by_side, swap
    from .draws.options import Draw
    from .elbo.estimator import EnumMeanFieldELBO
    from .training.fitting import fit, fit_repeats
    from .training.result import Fit, Repeats
    from .marginal_likelihood.estimators import evidence
    from .marginal_likelihood.message import description_length
    from .shrinking.small import Small
    from .shrinking.narrowing import narrow
    from .shrinking.options import (
        ByValidation,
        Codebook,
        Digits,
        Noise,
        Search,
        Steps,
        Thresholds,
        Valley,
    )
    from .selection.bilevel import select
    from .shrinking.weight_path import Bytes, Milliseconds, path
    from .shrinking.small_networks import load, shrink
    from .storage.checkpoint import CheckpointError
    from .training.settings import Settings
    from .training.step import CompileFallback, TrainingStep
    from .training.trainer import Interrupted, NonFiniteLoss

__all__ = [
    "ByValidation",
    "Bytes",
    "CheckpointError",
    "Codebook",
    "CompileFallback",
    "Digits",
    "Draw",
    "EnumMeanFieldELBO",
    "Fit",
    "Interrupted",
    "Milliseconds",
    "Noise",
    "NonFiniteLoss",
    "Repeats",
    "Search",
    "Settings",
    "Small",
    "Steps",
    "Thresholds",
    "TrainingStep",
    "Valley",
    "arviz",
    "cutting",
    "description_length",
    "diagnostics",
    "distributed",
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
    "pruning",
    "select",
    "selection",
    "shrink",
    "side_by_side",
    "swap",
]

__getattr__, __dir__ = lazy_names(__name__)
