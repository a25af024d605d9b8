"""Posteriors as ArviZ wants them: draws and densities in, an `InferenceData` out."""

from typing import TYPE_CHECKING

from ...data.door import lazy_names

if TYPE_CHECKING:
    from .densities import draw_prior
    from .groups import to_arviz

__all__ = [
    "draw_prior",
    "to_arviz",
]

__getattr__, __dir__ = lazy_names(__name__)
