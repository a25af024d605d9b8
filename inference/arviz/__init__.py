"""Posteriors as ArviZ wants them: draws and densities in, an `InferenceData` out."""

from .densities import draw_prior
from .groups import to_arviz

__all__ = [
    "draw_prior",
    "to_arviz",
]
