"""Distributions around others: those that are weighed, and the way back to what is inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyro.distributions import ExpandedDistribution, TorchDistribution
from torch import Tensor
from torch.distributions import Independent


class WithHyperprior(TorchDistribution):
    """A distribution whose density is multiplied by that of its own parameters.

    As a function of the value it is normalised to that factor, not to one. A learnt parameter is
    no site: so its prior is counted wherever the density of the value is, in any bound, and once.

    Arguments:
        base_dist: of the values.
        log_density: of the parameters, ``()``.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)

    def __init__(self, base_dist: Any, log_density: Tensor) -> None:
        self.base_dist, self.log_density = base_dist, log_density
        shapes = base_dist.batch_shape, base_dist.event_shape
        super().__init__(*shapes, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> WithHyperprior:
        return type(self)(self.base_dist.expand(batch_shape), self.log_density)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``."""
        log_prob: Tensor = self.base_dist.log_prob(value) + self.log_density
        return log_prob

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of the values, given the parameters."""
        values: Tensor = self.base_dist.sample(sample_shape)
        return values


class Weighted(TorchDistribution):
    """Targets of which each row counts as often as its weight says: densities to that power.

    They are the terms of a weighted likelihood, and normalised only where the weight is one.
    Draws are those of the distribution itself.

    Arguments:
        base_dist: of the targets, of batch shape ``(*, B)``.
        weights: of the rows, ``(B,)``.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)

    def __init__(self, base_dist: Any, weights: Tensor) -> None:
        self.base_dist, self.weights = base_dist, weights
        shapes = base_dist.batch_shape, base_dist.event_shape
        super().__init__(*shapes, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Weighted:
        return type(self)(self.base_dist.expand(batch_shape), self.weights)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*, B)``."""
        log_prob: Tensor = self.weights * self.base_dist.log_prob(value)
        return log_prob

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of the targets, whatever their weights are."""
        values: Tensor = self.base_dist.sample(sample_shape)
        return values


def base(fn: Any) -> Any:
    """The distribution of the single numbers, without what only reshapes or weighs it."""
    while isinstance(fn, Independent | ExpandedDistribution | WithHyperprior):
        fn = fn.base_dist
    return fn
