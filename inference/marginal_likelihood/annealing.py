"""The evidence by annealing draws from the prior to the posterior: dear, and the referee."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ...data import Between, Count, PyroccamError
from ...models import seeded
from ...models.layers import convolves
from ..compilation import graph_of, lean, of_lists
from ..posterior import at_once
from .estimator import DensityEstimator, LogEvidence
from .joint import Joint

KEPT = 0.8  # effective share of particles that a step of temperature leaves
LEAPS = 8  # of a trajectory
WANTED = 0.8  # acceptance
POOREST = 0.4  # acceptance that is believed
WIDEST = 1.0  # standard deviation of log evidences of runs that is believed
MOST_TEMPERATURES = 500


@dataclass(frozen=True, kw_only=True)
class Annealed(DensityEstimator):
    r"""Sequential Monte Carlo from the prior to the posterior.

    .. math:: \hat Z = \prod_k \frac{1}{P} \sum_i p(y | θ_i^{k-1})^{β_k - β_{k-1}}, \qquad
        0 = β_0 < \dots < β_K = 1

    Particles begin as draws from the prior. At each temperature they are weighed by the likelihood,
    resampled, and moved by Hamiltonian Monte Carlo under :math:`p(y | θ)^β p(θ)`. A first run,
    which is not counted, chooses the temperatures (each leaves four fifths of the particles
    effective), the sizes of the steps (four fifths of the moves are accepted) and the scales.
    Further runs take them over, so that the evidence of each is unbiased, and its logarithm is
    below in expectation. They share nothing else: the error is that of their mean.

    It finds all peaks that draws from the prior lead to, and needs no guide: what was fitted is
    not looked at, but for what is held as a number.

    Arguments:
        particles: P.
        repeats: runs beside the first. Of four the error itself is known within a factor of two.
        moves: at each temperature, of 8 steps.

    References:
        Del Moral, Doucet, Jasra 2006, Sequential Monte Carlo samplers; Neal 2001, Annealed
        importance sampling; Zhou, Johansen, Aston 2016, arXiv:1303.3123, for the temperatures.
    """

    name = "annealed"

    particles: Annotated[int, Between(16)] = 256
    repeats: Annotated[int, Between(2)] = 8
    moves: Count = 3

    def of_density(self, density: Joint) -> LogEvidence:
        places = _Places(density, self.particles)
        schedule = _pilot(places, self.moves)
        runs = [_run(places, self.moves, schedule) for _ in range(self.repeats)]
        values = [value for value, _ in runs]
        accepted = min(rate for _, rate in runs)
        value, error = log_mean(values)
        spread = float(torch.tensor(values).std())
        return LogEvidence(
            value=value,
            error=error,
            doubt=_doubt(spread, accepted),
            details={
                "temperatures": float(len(schedule)), "least accepted": accepted, "spread": spread,
            },
        )  # fmt: skip


def log_mean(values: list[float]) -> tuple[float, float]:
    """``log mean exp`` of independent estimates of a logarithm, and its standard error by the delta
    method, ``sd(w) / (mean(w) sqrt R)`` with ``w = exp(value)``.

    Example:
        >>> log_mean([0.0, 0.0])
        (0.0, 0.0)
    """
    count = len(values)
    top = max(values)
    ratios = [math.exp(v - top) for v in values]
    mean = sum(ratios) / count
    variance = sum((r - mean) ** 2 for r in ratios) / (count - 1)
    return top + math.log(mean), math.sqrt(variance / count) / mean


def _doubt(spread: float, accepted: float) -> str | None:
    if spread > WIDEST:
        return (
            f"Runs differ by {spread:.1f} nats (standard deviation): a single lucky one decides. "
            "Take more particles= or moves=."
        )
    if accepted < POOREST:
        return (
            f"At one temperature only {accepted:.0%} of the moves were accepted: particles may "
            "lag behind. Take more moves=."
        )
    return None


class _Temperature(NamedTuple):
    power: float
    step: float
    scale: Tensor


class _Particles(NamedTuple):
    """Where particles are, ``(P, n)``, with their likelihood and prior ``(P,)``, and the gradients
    of both ``(P, n)``."""

    theta: Tensor
    likelihood: Tensor
    prior: Tensor
    by_likelihood: Tensor
    by_prior: Tensor

    def chosen(self, positions: Tensor) -> _Particles:
        return _Particles(*(part[positions] for part in self))

    def where(self, other: _Particles, taken: Tensor) -> _Particles:
        """The other where taken ``(P,)``."""
        both = zip(self, other, strict=True)
        return _Particles(
            *(torch.where(taken[:, None] if b.dim() > 1 else taken, b, a) for a, b in both)
        )


class _Places:
    """Particles of a density, at any θ.

    What a network does is a graph where it agrees with the network itself at other draws from the
    prior: the same numbers, without the Python around them. Convolutions on a CPU take one network
    after the other, and a graph would hold each of them."""

    def __init__(self, density: Joint, count: int) -> None:
        self.density, self.count = density, count
        self.graph: Callable[[Tensor], list[Any]] | None = None
        many = density.device.type == "cpu" and convolves(density.model)
        whole = at_once(density.numbers, density.rows) >= count and not density.data.streamed
        if whole and not many:
            self.graph = self._traced()

    def begin(self) -> _Particles:
        return self.at(self.density.draw_prior(self.count))

    def at(self, theta: Tensor) -> _Particles:
        if self.graph is None:
            return _Particles(theta, *self._terms(theta))
        self.density.passes += len(theta)
        return _Particles(theta, *self.graph(theta)[0])

    def _terms(self, theta: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            parts = self.density.log_likelihood(theta), self.density.log_prior(theta)
            slopes = [torch.autograd.grad(part.sum(), theta)[0] for part in parts]
        return [*(part.detach() for part in parts), *slopes]

    def _traced(self) -> Callable[[Tensor], list[Any]] | None:
        passes, call = self.density.passes, None
        with seeded(0, self.density.device):  # the draws of the estimate stay what they are
            first, other = (self.density.draw_prior(self.count) for _ in range(2))
            try:
                graph = lean(graph_of(lambda theta: self._terms(theta), first), [])
                found = of_lists(graph, 4)
                pairs = zip(found(other)[0], self._terms(other), strict=True)
                if all(torch.allclose(a, b, rtol=1e-9, equal_nan=True) for a, b in pairs):
                    call = found
            except Exception:  # whatever a network does that no graph can hold
                call = None
        self.density.passes = passes
        return call


def _pilot(places: _Places, moves: int) -> list[_Temperature]:
    found: list[_Temperature] = []
    at, power, step = places.begin(), 0.0, 0.5 * places.density.size**-0.25
    while power < 1.0:
        following = _next(at.likelihood, power)
        at = at.chosen(_resampled((following - power) * at.likelihood))
        power = following
        scale = at.theta.std(0).clamp_min(1e-8)
        for _ in range(3 * moves):
            at, rate = _moved(places, at, _Temperature(power, step, scale))
            step *= 2.718281828 ** (rate - WANTED)
        found.append(_Temperature(power, step, at.theta.std(0).clamp_min(1e-8)))
        if len(found) == MOST_TEMPERATURES:
            given = f"a likelihood to the power of {power:.2g} after {len(found)} temperatures"
            raise PyroccamError(given, "1", "more particles, or a prior nearer to the weights")
    return found


def _run(places: _Places, moves: int, schedule: list[_Temperature]) -> tuple[float, float]:
    at, power, total, least = places.begin(), 0.0, 0.0, 1.0
    for one in schedule:
        log_w = (one.power - power) * at.likelihood
        total += float(log_w.logsumexp(0) - math.log(places.count))
        at, power = at.chosen(_resampled(log_w)), one.power
        rates = []
        for _ in range(moves):
            at, rate = _moved(places, at, one)
            rates.append(rate)
        least = min(least, sum(rates) / moves)
    return total, least


def _next(likelihood: Tensor, power: float) -> float:
    """The next power, of which the weights leave a share of the particles effective."""

    def share(step: float) -> float:
        w = (step * likelihood).softmax(0)
        return 1.0 / float(w.square().sum()) / len(w)

    low, high = 0.0, 1.0 - power
    if share(high) >= KEPT:
        return 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= KEPT else (low, middle)
    return power + max(low, 1e-12)


def _resampled(log_w: Tensor) -> Tensor:
    """Positions ``(P,)`` by systematic resampling."""
    count = len(log_w)
    places = (
        torch.arange(count, device=log_w.device) + torch.rand((), device=log_w.device)
    ) / count
    found = torch.searchsorted(log_w.softmax(0).cumsum(0), places.to(log_w))
    return found.clamp_max(count - 1)


def _moved(places: _Places, at: _Particles, one: _Temperature) -> tuple[_Particles, float]:
    """Particles after a trajectory each, and the share of them that accepted it."""

    def energy(p: _Particles, momentum: Tensor) -> Tensor:
        return 0.5 * momentum.square().sum(1) - one.power * p.likelihood - p.prior

    def slope(p: _Particles) -> Tensor:
        return (one.power * p.by_likelihood + p.by_prior) * one.scale

    jitter = 0.8 + 0.4 * torch.rand((), device=at.theta.device).double()
    step = float(one.step * jitter)
    momentum = torch.randn_like(at.theta)
    before, now = energy(at, momentum), at
    momentum = momentum + 0.5 * step * slope(now)
    for leap in range(LEAPS):
        now = places.at(now.theta + step * one.scale * momentum)
        momentum = momentum + (1.0 if leap < LEAPS - 1 else 0.5) * step * slope(now)
    log_ratio = (before - energy(now, momentum)).nan_to_num(nan=-torch.inf)
    taken = torch.rand_like(log_ratio).log() < log_ratio
    return at.where(now, taken), float(log_ratio.exp().clamp_max(1.0).mean())
