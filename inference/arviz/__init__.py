"""Posteriors as ArviZ wants them: draws and densities in, an `InferenceData` out."""

from .densities import PosteriorDraws, PriorDraws, draw_posterior, draw_prior
from .groups import to_arviz

__all__ = [
    "PosteriorDraws",
    "PriorDraws",
    "draw_posterior",
    "draw_prior",
    "to_arviz",
]
