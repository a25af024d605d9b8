"""Posteriors as ArviZ wants them: draws and densities in, an `InferenceData` out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .adapter import power_scaling, psis, rhat, stacking, write
    from .densities import PosteriorDraws, draw_posterior, draw_prior, even_rows
    from .groups import shown_values, to_arviz

__all__ = [
    "draw_prior",
    "to_arviz",
]

__getattr__, __dir__ = lazy_names(__name__)
