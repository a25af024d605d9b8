r"""Gradients of one objective through the optimisation of another (bilevel problems).

.. math:: \max_h Q(θ^*(h), h), \qquad θ^*(h) = \arg\max_θ L(θ, h)

Parameters θ and hyperparameters h are dicts of tensors, of any shapes. ``inner`` (L) and ``outer``
(Q) are called as ``f(theta, h, key)`` and return a scalar. They may be random only through ``key``,
anything that fixes the noise, such as a seed: the same key has to give the same noise. (Where a
call is traced, take the noise itself: a graph draws anew in each run from a generator that was
seeded while it was traced.) What an objective does not use has a zero gradient.

==================  ===================================  ===================================
function            takes θ*(h) to be                    products :math:`∇^2 L \, v` it needs
==================  ===================================  ===================================
:func:`one_step`    the end of one gradient step         1
:func:`unrolled`    the end of T steps of an optimiser   T, and the memory of T steps
:func:`drmad`       the same, on a straight line         T, or 2 T / k for ``every=k``
:func:`implicit`    a maximum                            1 in an iteration, 2 beside them
==================  ===================================  ===================================

:func:`drmad` saves memory, not time. A line stays near the start for longer than most paths do, and
the result can be many times too large where L is not concave there: ``skip`` can help, and a
comparison with :func:`unrolled` on a small case tells.

Nothing returned carries a graph. All functions raise :class:`NonFiniteGradient`, which names the
quantity, and ``ValueError`` for what is out of range. ``check=False`` leaves out the former: it
spares synchronisations with the device, and a traced function needs it.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.func import grad, vjp

from .conjugate_gradient import (
    NonFiniteGradient,
    Solution,
    Tensors,
    conjugate_gradient,
    dot,
    finite,
    need,
    plus,
    require,
)

__all__ = [
    "Implicit",
    "IndefiniteCurvature",
    "NonFiniteGradient",
    "Objective",
    "Solution",
    "Tensors",
    "Update",
    "adam",
    "ascend",
    "conjugate_gradient",
    "drmad",
    "gradient_ascent",
    "implicit",
    "one_step",
    "unrolled",
]

Objective = Callable[[dict[str, Tensor], dict[str, Tensor], Any], Tensor]
# (theta, gradient, state) to (theta, state). The state is None at first, then a tree of tensors.
Update = Callable[[Tensors, Tensors, Any], tuple[dict[str, Tensor], Any]]


class IndefiniteCurvature(UserWarning):
    """The parameters are at no maximum of the inner objective: its system was not solved."""


def gradient_ascent(lr: float) -> Update:
    """Plain steps ``θ + lr ∇L``."""
    need(lr > 0, "lr", "positive", lr)
    return lambda theta, slope, state: (plus(theta, lr, slope), ())


def adam(lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> Update:
    """The steps of :class:`torch.optim.Adam`, upwards.

    The first step is ``lr`` times the sign of the gradient, which does not change with h: where
    few steps are unrolled, pass on the state.
    """
    need(lr > 0, "lr", "positive", lr)

    def update(theta: Tensors, slope: Tensors, state: Any) -> tuple[dict[str, Tensor], Any]:
        if state is None:
            zeros = {n: torch.zeros_like(t) for n, t in theta.items()}
            device = next(iter(theta.values())).device
            state = torch.zeros((), dtype=torch.float64, device=device), zeros, zeros
        count, mean, square = state
        count = count + 1
        mean = {n: m + (1 - betas[0]) * (slope[n] - m) for n, m in mean.items()}
        square = {n: s + (1 - betas[1]) * (slope[n] ** 2 - s) for n, s in square.items()}
        scale, width = 1 - betas[0] ** count, (1 - betas[1] ** count).sqrt()
        moved = {}
        for n, t in theta.items():
            # The root has no derivative at zero; there it does not matter, for the mean is zero.
            used = square[n] > 0
            root = torch.where(used, torch.where(used, square[n], 1.0).sqrt(), 0.0)
            moved[n] = t + lr * (mean[n] / scale) / (root / width + eps)
        return moved, (count, mean, square)

    return update


@torch.no_grad()
def ascend(
    inner: Objective,
    theta: Tensors,
    h: Tensors,
    *,
    steps: int,
    update: Update,
    state: Any = None,
    key: Any = None,
    keys: Sequence[Any] | None = None,
    check: bool = True,
) -> tuple[dict[str, Tensor], Any]:
    """The inner optimisation by itself: θ after it, and the state of the optimiser.

    Arguments:
        steps: how many, T.
        update: :func:`gradient_ascent`, :func:`adam`, or another pure function like them.
        state: of the optimiser, from an earlier call.
        key, keys: one of all steps, or one for each.
    """
    each = _keys(steps, key, keys)
    _, end, late = deque(_path(inner, theta, h, update, state, each), maxlen=1).pop()
    if check and not finite(end):
        _explain(_path(inner, theta, h, update, state, each), steps)
    return end, late


@torch.no_grad()
def one_step(
    inner: Objective,
    outer: Objective,
    theta: Tensors,
    h: Tensors,
    *,
    lr: float,
    key: Any = None,
    check: bool = True,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    r"""The greedy hypergradient: exact, through one gradient step :math:`θ^+ = θ + η ∇_θ L`.

    .. math:: ∇_h Q(θ^+, h) + η \, (∇^2_{θh} L)^T ∇_θ Q(θ^+, h)

    Arguments:
        lr: η.
        key: of both objectives.

    Returns:
        the gradient in h, and θ⁺.

    References:
        Luketina et al. 2016, arXiv:1511.06727 (T1-T2, which they approximate); Liu, Simonyan, Yang
        2019, DARTS, arXiv:1806.09055, whose second order takes a finite difference instead.
    """
    need(lr > 0, "lr", "positive", lr)
    theta, h = dict(theta), dict(h)
    linear: Any = vjp(lambda g: grad(inner)(theta, g, key), h)
    slope, mixed = linear
    moved = plus(theta, lr, slope)
    v, direct = grad(outer, argnums=(0, 1))(moved, h, key)
    gradient = plus(direct, lr, mixed(v)[0])
    if check and not finite(moved, gradient):
        _explain(iter([(slope, moved, ())]), 1, (v, direct))
    return gradient, moved


@torch.no_grad()
def unrolled(
    inner: Objective,
    outer: Objective,
    theta: Tensors,
    h: Tensors,
    *,
    steps: int,
    update: Update,
    state: Any = None,
    key: Any = None,
    keys: Sequence[Any] | None = None,
    check: bool = True,
) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
    """The hypergradient through T steps of an optimiser, exact; θ and the state at their start
    count as constants.

    Arguments:
        steps, update, state, keys: as for :func:`ascend`.
        key: of Q, and of all steps unless there are ``keys``.

    Returns:
        the gradient in h, θ after the steps, and the state of the optimiser.

    References:
        Maclaurin, Duvenaud, Adams 2015, arXiv:1502.03492.
    """
    each = _keys(steps, key, keys)

    def run(g: dict[str, Tensor]) -> tuple[Tensor, Any]:
        _, end, late = deque(_path(inner, theta, g, update, state, each), maxlen=1).pop()
        return outer(end, g, key), (end, late)

    gradient, (end, late) = grad(run, has_aux=True)(dict(h))
    if check and not finite(end, gradient):
        parts = grad(outer, argnums=(0, 1))(end, dict(h), key)
        _explain(_path(inner, theta, h, update, state, each), steps, parts)
    return gradient, end, late


@torch.no_grad()
def drmad(
    inner: Objective,
    outer: Objective,
    start: Tensors,
    theta: Tensors,
    h: Tensors,
    *,
    steps: int,
    lr: float,
    skip: float = 0.0,
    every: int = 1,
    key: Any = None,
    keys: Sequence[Any] | None = None,
    check: bool = True,
) -> dict[str, Tensor]:
    r"""The hypergradient through T gradient steps, on a straight line instead of their path.

    From :math:`v = ∇_θ Q(θ_T, h)`, :math:`g = ∇_h Q(θ_T, h)`, for t = T - 1, ..., 0:

    .. math:: g \leftarrow g + η \, (∇^2_{θh} L)^T v, \qquad v \leftarrow v + η \, ∇^2_θ L \, v
        \qquad \text{at } θ_0 + \tfrac{t}{T} (θ_T - θ_0),

    in place of θ_t, where step t + 1 took its gradient. So it is exact for one step, and where the
    second derivatives of L do not depend on θ.

    With ``every=k``, k steps share the derivatives at the middle of them (those left over at the
    beginning, too). The product :math:`(I + η ∇^2_θ L)^k v` is taken to second order: what it lacks
    begins with :math:`\tbinom{k}{3} (η ∇^2_θ L)^3 v`, which is nothing for k = 2. v grows where a
    curvature λ has :math:`k η λ > 2`; the inner steps themselves allow :math:`η λ < 2`.

    Arguments:
        start, theta: θ before and after the inner optimisation.
        steps, lr: T and η of it.
        skip: share of the steps, the first ones, whose dependence on h is left out. Later ones have
            mostly forgotten them; Bakhteev and Strijov take 0.05.
        every: k.
        key: of Q, and of all steps unless there are ``keys``, one for each.

    References:
        Fu et al. 2016, arXiv:1601.00917; Bakhteev and Strijov 2020, Annals of Operations Research
        289, for ``skip`` and ``every``.
    """
    need(lr > 0, "lr", "positive", lr)
    need(0.0 <= skip < 1.0, "skip", "in [0, 1)", skip)
    need(every >= 1, "every", "at least 1", every)
    each = _keys(steps, key, keys)
    shapes, before = ({n: tuple(t.shape) for n, t in one.items()} for one in (theta, start))
    need(shapes == before, "start", f"of the shapes of theta, {shapes}", before)
    theta, h = dict(theta), dict(h)
    v, direct = grad(outer, argnums=(0, 1))(theta, h, key)
    gradient, adjoint = direct, v  # g and v
    first, stop = min(round(skip * steps), steps - 1), steps
    while stop > first:
        size = min(every, stop - first)
        middle = stop - size + (size - 1) / 2
        at = {n: torch.lerp(start[n], t, middle / steps) for n, t in theta.items()}
        product = _second(inner, at, h, each[int(middle)])
        # The mean of v over these steps, to first order; its products are right to second order.
        mean = plus(adjoint, lr * (size - 1) / 2, product(adjoint)[0]) if size > 1 else adjoint
        along, mixed = product(mean)
        gradient = plus(gradient, lr * size, mixed)
        adjoint = plus(adjoint, lr * size, along)
        stop -= size
    if check and not finite(gradient):
        _explain(iter(()), 0, (v, direct))
    return gradient


@dataclass(frozen=True)
class Implicit:
    """What :func:`implicit` found.

    Attributes:
        gradient: in h.
        slope: the norm of the inner gradient; zero at the maximum that the formula assumes.
        solution: of the linear system.
    """

    gradient: dict[str, Tensor]
    slope: float
    solution: Solution


@torch.no_grad()
def implicit(
    inner: Objective,
    outer: Objective,
    theta: Tensors,
    h: Tensors,
    *,
    damping: float = 0.0,
    tol: float = 1e-6,
    max_iter: int = 100,
    start: Tensors | None = None,
    key: Any = None,
) -> Implicit:
    r"""The hypergradient at a maximum of the inner objective, by the implicit function theorem.

    .. math:: ∇_h Q + (∇^2_{θh} L)^T v, \qquad (δ I - ∇^2_θ L) \, v = ∇_θ Q

    Away from a maximum the system need not be positive definite. Conjugate gradients stop where
    they see that, with a warning; v is what they had reached, which may be zero. Much damping makes
    it :math:`∇_θ Q / δ`, as in :func:`one_step` with a rate of 1 / δ, but at θ.

    Arguments:
        theta: near a maximum of L.
        damping: δ.
        tol, max_iter, start: of :func:`conjugate_gradient`. ``solution.x`` from a near h is a good
            start.
        key: of both objectives.

    References:
        Pedregosa 2016, arXiv:1602.02355 (HOAG).
    """
    need(damping >= 0, "damping", "at least 0", damping)
    theta, h = dict(theta), dict(h)
    # Reverse over reverse: all products share one graph, which makes them 3 to 9 times faster than
    # forward over reverse (on small networks, one core); and the Hessian is symmetric.
    linear: Any = vjp(lambda t: grad(inner)(t, h, key), theta)
    inner_gradient, product = linear
    require(inner_gradient, "The inner gradient", "take a smaller lr in the inner optimisation")
    v, direct = grad(outer, argnums=(0, 1))(theta, h, key)
    for part in (v, direct):
        require(part, "The outer gradient", "look at the outer objective at this theta")

    def system(p: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: damping * p[n] - along for n, along in product(p)[0].items()}

    found = conjugate_gradient(system, v, tol=tol, max_iter=max_iter, start=start)
    slope = math.sqrt(dot(inner_gradient, inner_gradient))
    if found.indefinite:
        warnings.warn(
            f"The inner objective is not concave at this theta, where its gradient has norm "
            f"{slope:.3g}: conjugate gradients stopped after {found.iterations} iterations. This "
            f"is no gradient through a maximum: do more inner steps, or give a damping above "
            f"{damping:g}.",
            IndefiniteCurvature,
            stacklevel=3,  # no_grad is a frame of its own
        )
    gradient = plus(direct, 1.0, _second(inner, theta, h, key)(found.x)[1])
    require(gradient, "The product with mixed derivatives", "raise damping")
    return Implicit(gradient, slope, found)


def _second(
    inner: Objective, theta: dict[str, Tensor], h: dict[str, Tensor], key: Any
) -> Callable[[Tensors], tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """v to ``(∇²_θ L v, (∇²_θh L)ᵀ v)``."""
    found: Any = vjp(lambda t, g: grad(inner)(t, g, key), theta, h)[1]
    return found


def _path(
    inner: Objective, theta: Tensors, h: Tensors, update: Update, state: Any, keys: Sequence[Any]
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor], Any]]:
    """Of each step its gradient, and θ and the state of the optimiser after it."""
    theta, h = dict(theta), dict(h)
    for key in keys:
        slope = grad(inner)(theta, h, key)
        theta, state = update(theta, slope, state)
        yield slope, theta, state


def _keys(steps: int, key: Any, keys: Sequence[Any] | None) -> Sequence[Any]:
    need(steps >= 1, "steps", "at least 1", steps)
    if keys is None:
        return [key] * steps
    need(len(keys) == steps, "keys", f"one for each of {steps} steps", len(keys))
    return keys


def _explain(
    path: Iterator[tuple[Tensors, Tensors, Any]], steps: int, outer: Sequence[Tensors] = ()
) -> NoReturn:
    """Raise for what was the first to be not finite on the way to a result that is not."""
    for step, (slope, theta, _) in enumerate(path, 1):
        for what, values in (("The inner gradient", slope), ("The new theta", theta)):
            require(values, f"{what} of step {step} of {steps}", "take a smaller lr")
    for part in outer:
        require(part, "The outer gradient", "look at the outer objective at the new theta")
    raise NonFiniteGradient(
        "A Hessian product is not finite although the gradients are: take a smaller lr, or fewer "
        "steps at a time."
    )
