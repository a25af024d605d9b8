r"""Gradients of one objective through the optimisation of another (bilevel problems).

.. math:: \max_h Q(θ^*(h), h), \qquad θ^*(h) = \arg\max_θ L(θ, h)

Parameters θ and hyperparameters h are dicts of tensors, of any shapes. ``inner`` (L) and ``outer``
(Q) are called as ``f(theta, h, key)`` and return a scalar; they are random only through ``key``:
the same key has to give the same noise. What an objective does not use has a zero gradient.

Nothing returned carries a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vjp

from ...data import PyroccamError

Tensors = Mapping[str, Tensor]
Objective = Callable[[dict[str, Tensor], dict[str, Tensor], Any], Tensor]
# (theta, gradient, state) to (theta, state). The state is None at first, then a tree of tensors.
Update = Callable[[Tensors, Tensors, Any], tuple[dict[str, Tensor], Any]]


class NonFiniteGradient(PyroccamError, RuntimeError):
    """A gradient became NaN or infinite, or a training diverged."""


class Solution(NamedTuple):
    """The solution of a linear system ``A x = b``."""

    x: dict[str, Tensor]
    iterations: int
    indefinite: bool  # it ended at a direction p with pᵀ A p <= 0


def adam(lr: float) -> Update:
    """The steps of :class:`torch.optim.Adam`, upwards.

    The first step is ``lr`` times the sign of the gradient, which does not change with h: where
    few steps are unrolled, pass on the state.
    """

    def update(theta: Tensors, slope: Tensors, state: Any) -> tuple[dict[str, Tensor], Any]:
        if state is None:
            zeros = {n: torch.zeros_like(t) for n, t in theta.items()}
            device = next(iter(theta.values())).device
            state = torch.zeros((), dtype=torch.float64, device=device), zeros, zeros
        count, mean, square = state
        count = count + 1
        mean = {n: m + (1 - 0.9) * (slope[n] - m) for n, m in mean.items()}
        square = {n: s + (1 - 0.999) * (slope[n] ** 2 - s) for n, s in square.items()}
        scale, width = 1 - 0.9**count, (1 - 0.999**count).sqrt()
        moved = {}
        for n, t in theta.items():
            # The root has no derivative at zero; there it does not matter, for the mean is zero.
            used = square[n] > 0
            root = torch.where(used, torch.where(used, square[n], 1.0).sqrt(), 0.0)
            step = lr * (mean[n] / scale) / (root / width + 1e-8)
            moved[n] = t + step.to(t.dtype)  # the count would make a single number double
        return moved, (count, mean, square)

    return update


@torch.no_grad()
def ascend(
    inner: Objective,
    theta: Tensors,
    h: Tensors,
    *,
    keys: Sequence[Any],
    update: Update,
    state: Any = None,
) -> tuple[dict[str, Tensor], Any]:
    """θ after the inner optimisation, in a step for each key, and the state of the optimiser."""
    return _after(inner, theta, h, keys, update, state)


@torch.no_grad()
def unrolled(
    inner: Objective,
    outer: Objective,
    theta: Tensors,
    h: Tensors,
    *,
    keys: Sequence[Any],
    key: Any,
    update: Update,
    state: Any = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
    r"""The hypergradient through T steps of an optimiser, exact; θ and the state at their start
    count as constants. One step of :math:`θ^+ = θ + η ∇_θ L` is the greedy way:

    .. math:: ∇_h Q(θ^+, h) + η \, (∇^2_{θh} L)^T ∇_θ Q(θ^+, h)

    Returns:
        the gradient in h, θ after the steps, and the state of the optimiser.

    References:
        Maclaurin, Duvenaud, Adams 2015, arXiv:1502.03492. One step: Luketina et al. 2016,
        arXiv:1511.06727 (T1-T2, which they approximate); Liu, Simonyan, Yang 2019, DARTS,
        arXiv:1806.09055, whose second order takes a finite difference instead.
    """

    def run(g: dict[str, Tensor]) -> tuple[Tensor, Any]:
        end, late = _after(inner, theta, g, keys, update, state)
        return outer(end, g, key), (end, late)

    gradient, (end, late) = grad(run, has_aux=True)(dict(h))
    return gradient, end, late


@torch.no_grad()
def implicit(
    inner: Objective,
    outer: Objective,
    theta: Tensors,
    h: Tensors,
    *,
    inner_key: Any,
    key: Any,
    damping: float = 0.0,
    tol: float = 1e-6,
    max_iter: int = 50,
) -> tuple[dict[str, Tensor], Solution]:
    r"""The hypergradient at a maximum of the inner objective, by the implicit function theorem.

    .. math:: ∇_h Q + (∇^2_{θh} L)^T v, \qquad (δ I - ∇^2_θ L) \, v = ∇_θ Q

    Away from a maximum the system need not be positive definite: v is what conjugate gradients had
    reached when they saw that, which may be zero. Much damping makes it :math:`∇_θ Q / δ`.

    Returns:
        the gradient in h, and v.

    References:
        Pedregosa 2016, arXiv:1602.02355 (HOAG).
    """
    theta, h = dict(theta), dict(h)
    # Reverse over reverse: all products share one graph, which makes them 3 to 9 times faster than
    # forward over reverse (on small networks, one core); and the Hessian is symmetric.
    linear: Any = vjp(lambda t: grad(inner)(t, h, inner_key), theta)
    _, product = linear
    v, direct = grad(outer, argnums=(0, 1))(theta, h, key)

    def system(p: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: damping * p[n] - along for n, along in product(p)[0].items()}

    found = conjugate_gradient(system, v, tol=tol, max_iter=max_iter)
    second: Any = vjp(lambda t, g: grad(inner)(t, g, inner_key), theta, h)[1]  # (∇²_θh L)ᵀ v
    gradient = _plus(direct, 1.0, second(found.x)[1])
    if not all(bool(t.isfinite().all()) for t in (*v.values(), *gradient.values())):
        raise NonFiniteGradient("a gradient through the maximum of L that is not finite")
    return gradient, found


def _after(
    inner: Objective, theta: Tensors, h: Tensors, keys: Sequence[Any], update: Update, state: Any
) -> tuple[dict[str, Tensor], Any]:
    theta, h = dict(theta), dict(h)
    for key in keys:
        theta, state = update(theta, grad(inner)(theta, h, key), state)
    return theta, state


@torch.no_grad()
def conjugate_gradient(
    product: Callable[[dict[str, Tensor]], Tensors],
    b: Tensors,
    *,
    tol: float = 1e-6,
    max_iter: int = 100,
) -> Solution:
    """Solve ``A x = b`` with a symmetric, positive definite A of which only products are known, to
    a tolerance of ``|b - A x| / |b|``; rounding keeps that above about ε times the condition
    number."""
    x, r, p = {n: torch.zeros_like(t) for n, t in b.items()}, dict(b), dict(b)
    left = size = _dot(b, b)
    iterations = 0
    while iterations < max_iter and left > tol**2 * size:
        along = product(p)
        curvature = _dot(p, along)
        if curvature <= 0:
            return Solution(x, iterations, True)
        x, r = _plus(x, left / curvature, p), _plus(r, -left / curvature, along)
        before, left = left, _dot(r, r)
        p = _plus(r, left / before, p)
        iterations += 1
    return Solution(x, iterations, False)


def _plus(x: Tensors, a: float, y: Tensors) -> dict[str, Tensor]:
    return {n: t + a * y[n] for n, t in x.items()}


def _dot(x: Tensors, y: Tensors) -> float:
    """The inner product in double precision: in float32 the squares of small gradients vanish."""
    return float(sum((t.double() * y[n].double()).sum() for n, t in x.items()))
