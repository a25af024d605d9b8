"""The way from a model and a guide to a posterior, a structure and a smaller network."""

from typing import TYPE_CHECKING

from ..data import lazy_names

if TYPE_CHECKING:
    from . import (
        arviz,
        certificates,
        cutting,
        diagnostics,
        distributed,
        elbo,
        figures,
        files,
        marginal_likelihood,
        posterior,
        rounding,
        selection,
        shrinking,
    )
    from .certificates import certify
    from .diagnostics import side_by_side, swap
    from .draws import Draw
    from .elbo import EnumMeanFieldELBO
    from .files import Small
    from .marginal_likelihood import description_length, evidence
    from .selection import select
    from .shrinking import (
        Bytes,
        ByValidation,
        Codebook,
        Digits,
        Milliseconds,
        Noise,
        Search,
        Steps,
        Thresholds,
        Valley,
        load,
        narrow,
        path,
        shrink,
    )
    from .storage import CheckpointError
    from .training import (
        CompileFallback,
        Fit,
        Interrupted,
        NonFiniteLoss,
        Repeats,
        Settings,
        TrainingStep,
        as_fit,
        fit,
        fit_repeats,
    )

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
    "as_fit",
    "certificates",
    "certify",
    "cutting",
    "description_length",
    "diagnostics",
    "distributed",
    "elbo",
    "evidence",
    "figures",
    "files",
    "fit",
    "fit_repeats",
    "load",
    "marginal_likelihood",
    "narrow",
    "path",
    "posterior",
    "rounding",
    "select",
    "selection",
    "shrink",
    "shrinking",
    "side_by_side",
    "swap",
]

__getattr__, __dir__ = lazy_names(__name__)
