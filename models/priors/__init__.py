"""Priors: one file for each kind of latent."""

from .depth import DepthPrior, Geometric, Poisson, Uniform, Vector, parse

__all__ = ["DepthPrior", "Geometric", "Poisson", "Uniform", "Vector", "parse"]
