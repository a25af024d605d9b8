"""Self-tuning: the posterior as a function of h, learnt beside h itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from ...data import Count, NotNegative, Positive, PyroccamError, Whole
from .hypergradient import Tensors
from .levels import Key, Objectives
from .methods import Method
from .search import Search

FEW = 32
"""Numbers of a tensor of h up to which every parameter responds to each of them."""


class _Kept(NamedTuple):
    """What goes from one outer step to the next, beside θ and h."""

    slopes: dict[str, Tensor]
    log_spread: dict[str, Tensor]
    steps: int


@dataclass(frozen=True)
class SelfTuning(Method):
    r"""Parameters that are linear functions of h around where it is, trained at perturbed h: the
    hypergradient goes through them, without second derivatives.

    .. math:: θ(h + δ) = θ + S δ, \qquad \max_{θ, S} E_{δ \sim N(0, σ^2)} \, L(θ(h + δ), h + δ),
        \qquad \max_h Q(θ(h), h)

    Every few steps of θ and of its slopes S, h moves by the gradient
    :math:`∇_h Q + S^T ∇_θ Q`, and θ with it by :math:`S \, Δh`, so that the function stays the
    same. For a quadratic L with a perturbation that is small S is the derivative of the best θ. A
    step takes δ and -δ, in which the noise of the gradient at h itself cancels.

    To each number of a tensor of up to 32 (the scale of a layer, the noise of a regression, the
    logits of an edge) every parameter has a slope of its own, which takes the memory of one more
    guide. Of larger tensors each number has slopes of the parameters at its own place, in tensors
    of its shape: a weight responds to its own precision, and not to those of others. That is exact
    where the curvature of L is diagonal; elsewhere the slopes are those of a network whose other
    weights stay, and what is found is near the optimum only where Q has one that each weight can
    reach by itself.

    Arguments:
        steps: of θ for each of h.
        spread: σ at first, and at most, of all numbers of h (logarithms of scales, and logits).
        entropy: weight, in nats a row, of the logarithm of each σ beside Q, by which each is learnt
            at perturbed h. ``None`` leaves them as they are, and takes Q at h itself.
        warmup: steps of θ before h moves, while S becomes worth something.

    References:
        Lorraine, Duvenaud 2018, arXiv:1802.09419 (local optimisation, Alg. 3); MacKay, Vicol,
        Lorraine, Duvenaud, Grosse 2019, Self-tuning networks, arXiv:1903.03088, with σ that is
        learnt; Bae, Grosse 2020, Delta-STN, arXiv:2010.13514, for functions that are centred at h.
    """

    steps: Count = 2
    spread: Positive = 0.5
    entropy: NotNegative | None = 1e-3
    warmup: Whole = 100

    @property
    def least(self) -> int:
        return (self.warmup // self.steps + 1) * self.steps

    def check(self, objectives: Objectives) -> None:
        found = {by for _, by in _slopes(objectives)}
        for name, value in objectives.h.items():
            if name not in found:
                raise PyroccamError(
                    f"SelfTuning() of {name!r} with {value.numel()} numbers",
                    f"at most {FEW}, or a parameter of the guide of its shape",
                )

    def step(self, search: Search) -> None:
        kept: _Kept = search.kept or self._begin(search)
        slopes, log_spread, count = kept
        for key in search.keys(0, search.steps):
            offset = {n: t.exp() * torch.randn_like(t) for n, t in log_spread.items()}
            search.theta, slopes, search.state = search.traced(
                self._train(search), search.theta, slopes, search.state, search.h, key, offset
            )
            count += 1
            if count <= self.warmup or count % self.steps:
                continue
            (key_q,) = search.keys(1, 1)
            noise = {n: torch.randn_like(t) for n, t in log_spread.items()}
            search.theta, search.h, log_spread, search.state_h = search.traced(
                self._tune(search), search.theta, slopes, search.h, log_spread, search.state_h,
                key_q, noise,
            )  # fmt: skip
        search.kept = _Kept(slopes, log_spread, count)

    def _begin(self, search: Search) -> _Kept:
        slopes = {}
        for name, by in _slopes(search.objectives):
            t, g = search.theta[name], search.h[by]
            shape = (*(g.shape if _few(g) else ()), *t.shape)
            slopes[_key(name, by)] = torch.zeros(shape).to(t)
        log_spread = {n: torch.full_like(t, math.log(self.spread)) for n, t in search.h.items()}
        return _Kept(slopes, log_spread, 0)

    def _train(self, search: Search) -> Any:
        """A step of θ and S, at δ and at -δ."""
        made, move = search.objectives, search.move

        def train(
            theta: Tensors, slopes: Tensors, state: Any, h: Tensors, key: Key, offset: Tensors
        ) -> Any:
            def value(theta: dict[str, Tensor], slopes: dict[str, Tensor]) -> Tensor:
                one, other = (
                    made.inner(_moved(theta, slopes, delta), _plus(h, delta), key)
                    for delta in (offset, _minus(offset))
                )
                return (one + other) / 2

            own, more = grad(value, argnums=(0, 1))(dict(theta), dict(slopes))
            found, state = move({**theta, **slopes}, {**own, **more}, state)
            return {n: found[n] for n in theta}, {n: found[n] for n in slopes}, state

        return train

    def _tune(self, search: Search) -> Any:
        """A step of h, and of the spread if it is learnt."""
        made, move, entropy = search.objectives, search.move_h, self.entropy
        most = math.log(self.spread)

        def tune(
            theta: Tensors, slopes: Tensors, h: Tensors, log_spread: Tensors, state: Any, key: Key,
            noise: Tensors,
        ) -> Any:  # fmt: skip
            def at(offset: Tensors) -> Tensor:
                return made.outer(_moved(theta, slopes, offset), _plus(h, offset), key)

            def value(shift: dict[str, Tensor], logs: dict[str, Tensor]) -> Tensor:
                if entropy is None:
                    return at(shift)
                around = {n: t.exp() * noise[n] for n, t in logs.items()}
                both = at(_plus(shift, around)) + at(_plus(shift, _minus(around)))
                return both / 2 + entropy * sum(t.sum() for t in logs.values())

            zero = {n: torch.zeros_like(t) for n, t in h.items()}
            slope, of_spread = grad(value, argnums=(0, 1))(zero, dict(log_spread))
            spreads = {} if entropy is None else {f"spread of {n}": n for n in h}
            found, state = move(
                {**h, **{s: log_spread[n] for s, n in spreads.items()}},
                {**slope, **{s: of_spread[n] for s, n in spreads.items()}},
                state,
            )
            moved = {n: found[n] for n in h}
            learnt = {**log_spread, **{n: found[s].clamp(max=most) for s, n in spreads.items()}}
            return _moved(theta, slopes, _plus(moved, _minus(h))), moved, learnt, state

        return tune


def _few(t: Tensor) -> bool:
    return t.numel() <= FEW


def _key(parameter: str, by: str) -> str:
    return f"{parameter} by {by}"


def _slopes(objectives: Objectives) -> list[tuple[str, str]]:
    """Parameters and tensors of h, by name, whose slopes are learnt, in the order of θ. Of h with
    many numbers they are tensors of its shape, one for each fold where θ is stacked."""
    h = objectives.h
    return [
        (parameter, by)
        for parameter, t in objectives.theta.items()
        for by, g in h.items()
        if _few(g) or g.shape == t.shape[objectives.stacked :]
    ]


def _moved(theta: Tensors, slopes: Tensors, offset: Tensors) -> dict[str, Tensor]:
    """θ at h + ``offset``."""
    found = dict(theta)
    for name, (by, shift) in itertools.product(theta, offset.items()):
        if (slope := slopes.get(_key(name, by))) is not None:
            along = (
                torch.tensordot(shift, slope, dims=shift.dim()) if _few(shift) else shift * slope
            )
            found[name] = found[name] + along
    return found


def _plus(x: Tensors, y: Tensors) -> dict[str, Tensor]:
    return {n: t + y[n] for n, t in x.items()}


def _minus(x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: -t for n, t in x.items()}
