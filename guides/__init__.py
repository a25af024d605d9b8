"""Posterior families: one file for each."""

from .depth import CategoricalDepth, Deterministic, Marginal

__all__ = ["CategoricalDepth", "Deterministic", "Marginal"]
