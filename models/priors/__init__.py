"""Priors: one file for each kind of latent."""

from .depth import Cost, DepthPrior, Geometric, Poisson, Uniform, Vector, parse

__all__ = ["Cost", "DepthPrior", "Geometric", "Poisson", "Uniform", "Vector", "parse"]
