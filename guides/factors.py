"""Posteriors of single sites."""

from __future__ import annotations

import math
from typing import Any, cast

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..models.distributions.relaxed import RelaxedGate

__all__ = ["Factor", "GateFactor", "NormalFactor"]


class Factor(nn.Module):
    """The posterior of one site; its parameters are real numbers."""

    def forward(self) -> Any:
        """The distribution, with the event shape of the site."""
        raise NotImplementedError

    @property
    def centre(self) -> nn.Parameter:
        """The parameter that moves the posterior of a real site."""
        return cast(nn.Parameter, self.loc)


class NormalFactor(Factor):
    """Independent normals, or, of something positive, log-normals.

    Arguments:
        loc: at the start, of the shape of the site; of the logarithm, where ``positive``.
        scale: at the start.
        positive: log-normal.
        max_scale: the scale never exceeds it.
    """

    def __init__(
        self, loc: Tensor, scale: float, *, positive: bool = False, max_scale: float = math.inf
    ) -> None:
        super().__init__()
        if not 0 < scale <= max_scale:
            raise ValueError(f"A scale must begin in (0, {max_scale}], got {scale}.")
        self.loc = nn.Parameter(loc.detach().clone())
        self.log_scale = nn.Parameter(torch.full_like(self.loc, math.log(scale)))
        self.positive = positive
        self.max_log_scale = math.log(max_scale) if max_scale < math.inf else math.inf

    def forward(self) -> Any:
        log_scale: Tensor = self.log_scale
        if self.max_log_scale < math.inf:
            # With the gradient of the limit: by that of a clamp, zero, it would never come back.
            log_scale = log_scale - (log_scale - self.max_log_scale).clamp(min=0.0).detach()
        kind = dist.LogNormal if self.positive else dist.Normal
        return kind(self.loc, log_scale.exp(), validate_args=False).to_event(self.loc.dim())


class GateFactor(Factor):
    """Relaxed gates with logits of their own.

    Arguments:
        logits: at the start.
        temperature: of the relaxation. The KL to a prior is in closed form where this is the same
            number.
    """

    temperature: float | Tensor

    def __init__(self, logits: Tensor, temperature: float | Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.detach().clone())
        if isinstance(temperature, Tensor):
            self.register_buffer("temperature", temperature.detach().clone())
        else:
            self.temperature = temperature

    def forward(self) -> Any:
        fn = RelaxedGate(self.temperature, logits=self.logits, validate_args=False)
        return fn.to_event(self.logits.dim())
