"""Posteriors of single sites."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal, NamedTuple, cast

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data import PyroccamError
from ..models.distributions import RelaxedGate, base
from ..models.priors import LayerPrior

_NEAR = math.exp(-1.5)  # |mean| / deviation at log alpha = 3


class Evidence(NamedTuple):
    """Evidence of a posterior on whether its numbers are needed.

    Attributes:
        kind: ``normal``, ``log-normal`` or ``gate``.
        q: the distribution of the single numbers.
    """

    kind: Literal["normal", "log-normal", "gate"]
    q: Any


class Factor(nn.Module):
    """The posterior of one site; its parameters are real numbers.

    Attributes:
        is_point: it has one value.
        no_density: why ratios to its density would mean nothing, or ``None`` if they do not.
    """

    is_point: bool = False
    no_density: str | None = None

    def forward(self) -> Any:
        """The distribution, with the event shape of the site."""
        raise NotImplementedError

    def moments(self, power: float) -> tuple[Tensor, Tensor]:
        """``E[v^p]`` and ``E[v^{2p}]``, elementwise."""
        q = base(self())
        if power != 1.0:
            raise PyroccamError(f"moments of a {type(q).__name__} to the power {power}", "1")
        return q.mean, q.mean.square() + q.variance

    def evidence(self) -> Evidence | None:
        """Evidence by which its numbers are kept or cut; ``None`` without a spread."""
        return None

    def cdf(self, value: Tensor) -> Tensor | None:
        """``P(v < value)`` of each number, float64, or ``None`` where only draws can say it."""
        return None

    def copied(self, prior: LayerPrior) -> Factor:
        """A copy for a layer with this prior, of another model or of the same."""
        return copy.deepcopy(self)

    @property
    def centre(self) -> nn.Parameter:
        """The parameter that moves the posterior of a real site."""
        return cast(nn.Parameter, self.loc)


class GaussianFactor(Factor):
    """Independent normals, whatever their parameters are."""

    def evidence(self) -> Evidence | None:
        return Evidence("normal", base(self()))

    def cdf(self, value: Tensor) -> Tensor | None:
        q = base(self())
        return torch.special.ndtr((value.double() - q.loc.double()) / q.scale.double())


class NormalFactor(GaussianFactor):
    """Independent normals, or, of something positive, log-normals, whose scale never exceeds a
    limit."""

    def __init__(
        self, loc: Tensor, scale: float, *, positive: bool = False, max_scale: float = math.inf
    ) -> None:
        super().__init__()
        if not 0 < scale <= max_scale:
            raise PyroccamError(f"A scale must begin in (0, {max_scale}], got {scale}.")
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
        scale = log_scale.exp()
        return kind(self.located(scale), scale, validate_args=False).to_event(self.loc.dim())

    def located(self, scale: Tensor) -> Tensor:
        """The location, beside this scale."""
        return self.loc

    def moments(self, power: float) -> tuple[Tensor, Tensor]:
        if not self.positive:
            return super().moments(power)
        q = base(self())
        mean, variance = power * q.loc, (power * q.scale).square()
        return (mean + 0.5 * variance).exp(), (2 * mean + 2 * variance).exp()

    def evidence(self) -> Evidence | None:
        return Evidence("log-normal", base(self())) if self.positive else super().evidence()

    def cdf(self, value: Tensor) -> Tensor | None:
        return super().cdf(value.log() if self.positive else value)


class Lent:
    """A module that a factor looks at. A copy of the factor looks at the same, unless that was
    copied before it in the same call, as in ``copy.deepcopy((model, guide))``."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __deepcopy__(self, memo: dict[int, Any]) -> Lent:
        return Lent(memo.get(id(self.module), self.module))


class BandFactor(NormalFactor):
    """Independent normals of weights that gather around levels: their means stay near them.

    A mean is between minus and plus the largest level and 0.223 standard deviations, where it is
    beside that level what it is beside zero at log alpha = 3. Beyond it the weights would be far
    from what they are rounded to in the end, under as much noise as the network bears. A mean that
    is moved across the limit is reflected: under a clamp it would have no gradient, and with that
    of what is clamped it would run away. The limit has a gradient, so the data, too, move the
    level.

    References:
        Achterhold et al. 2018, Variational network quantization, who clip after each step, and
        learn levels by the KL alone.
    """

    def __init__(
        self, loc: Tensor, scale: float, prior: LayerPrior, *, max_scale: float = math.inf
    ) -> None:
        super().__init__(loc, scale, max_scale=max_scale)
        # Not a submodule: what the prior learns has one name, in the state of the model.
        self.lent = Lent(prior)
        with torch.no_grad():
            limit = self._limit(self.log_scale.exp())
            self.loc.copy_(torch.minimum(torch.maximum(self.loc, -limit), limit))

    def _limit(self, scale: Tensor) -> Tensor:
        levels = self.lent.module()["weight"].levels
        assert levels is not None
        return levels[-1] + _NEAR * scale.detach()

    def copied(self, prior: LayerPrior) -> BandFactor:
        found = copy.deepcopy(self)
        found.lent = Lent(prior)
        return found

    def located(self, scale: Tensor) -> Tensor:
        limit = self._limit(scale)
        inside = torch.minimum(torch.maximum(self.loc, -limit), limit)
        reflected = 2.0 * inside - self.loc
        # More than three limits away it would be across the other one.
        return torch.minimum(torch.maximum(reflected, -limit), limit)


class GateFactor(Factor):
    """Relaxed gates with logits of their own; the KL to a prior is in closed form where the
    temperature is the same number."""

    temperature: float | Tensor

    def __init__(self, logits: Tensor, temperature: float | Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.detach().clone())
        if isinstance(temperature, Tensor):
            self.register_buffer("temperature", temperature.detach().clone())
        else:
            self.temperature = temperature

    def forward(self) -> Any:
        fn: Any = RelaxedGate(self.temperature, logits=self.logits, validate_args=False)
        return fn.to_event(self.logits.dim())

    def moments(self, power: float) -> tuple[Tensor, Tensor]:
        """Moments of the Bernoulli that it relaxes: both are its probability."""
        q = base(self())
        return q.probs, q.probs

    def evidence(self) -> Evidence | None:
        return Evidence("gate", base(self()))
