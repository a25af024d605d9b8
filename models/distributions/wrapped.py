"""Distributions around others: those that are weighed, and the way back to what is inside."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution, TorchDistribution
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.infer.inspect import TrackProvenance
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor
from torch.distributions import Independent


def _nobody_gets_draws() -> bool:
    """True where Pyro runs a model to begin a guide or a chain, to draw its graph, or, in a trace
    that is blocked, to count its plates."""
    around = [type(one) for one in _PYRO_STACK]
    if InitMessenger in around or TrackProvenance in around:
        return True
    return BlockMessenger in around and TraceMessenger in around[around.index(BlockMessenger) :]


class Alike(TorchDistribution):
    """A distribution whose parameters are the same for all of its batch."""

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        made = copy.copy(self)
        made._batch_shape = torch.Size(batch_shape)
        return made


class Improper(Alike):
    """A distribution without draws: its density has no finite integral, or depends on the
    posterior.

    Attributes:
        like: a number of the type and device of a value; torch's usual ones where it is ``None``.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)
    like: Tensor | None = None

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Refused by a NotImplementedError; but where Pyro runs a model for its shapes, or to begin
        somewhere, standard normals, ``(*sample, *batch, *event)``, stand in for draws."""
        if _nobody_gets_draws():
            shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
            return torch.randn(shape) if self.like is None else torch.randn(shape).to(self.like)
        raise NotImplementedError(
            f"{type(self).__name__} has no draws, as it has no finite integral or depends on the "
            "posterior; draw from a guides.MeanField."
        )

    rsample = sample


class _Around(TorchDistribution):
    """A distribution whose log densities are changed by a tensor; its draws are not."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)

    def __init__(self, base_dist: Any, by: Tensor) -> None:
        self.base_dist, self.by = base_dist, by
        shapes = base_dist.batch_shape, base_dist.event_shape
        super().__init__(*shapes, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        return type(self)(self.base_dist.expand(batch_shape), self.by)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of the distribution itself."""
        return cast(Tensor, self.base_dist.sample(sample_shape))


class WithHyperprior(_Around):
    """A distribution whose density is multiplied by that of its own parameters, of which ``by`` is
    the logarithm, ``()``.

    As a function of the value it is normalised to that factor, not to one. A learnt parameter is
    no site: so its prior is counted wherever the density of the value is, in any bound, and once.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``."""
        return cast(Tensor, self.base_dist.log_prob(value) + self.by)


class Weighted(_Around):
    """Targets of batch shape ``(*, B)`` of which each row counts as often as its weight in ``by``,
    ``(B,)``, says: densities to that power.

    They are the terms of a weighted likelihood, and normalised only where the weight is one.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*, B)``."""
        return cast(Tensor, self.by * self.base_dist.log_prob(value))


def base(fn: Any) -> Any:
    """The distribution of the single numbers, without what only reshapes, masks or weighs it."""
    while isinstance(fn, Independent | ExpandedDistribution | MaskedDistribution | WithHyperprior):
        fn = fn.base_dist
    return fn
