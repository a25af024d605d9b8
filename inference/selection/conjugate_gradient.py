"""Linear systems of which only products are known, in dicts of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "NonFiniteGradient",
    "Solution",
    "Tensors",
    "conjugate_gradient",
    "dot",
    "finite",
    "need",
    "plus",
    "require",
]

Tensors = Mapping[str, Tensor]


class NonFiniteGradient(RuntimeError):
    """A gradient, or a product with second derivatives, became NaN or infinite."""


@dataclass(frozen=True)
class Solution:
    """Of a linear system, by :func:`conjugate_gradient`.

    Attributes:
        x: in the shapes of the right side.
        residual: ``|b - A x| / |b|``, computed anew: that of the recursion leaves out rounding.
        iterations: that moved x.
        indefinite: whether it ended at a direction p with ``pᵀ A p <= 0``.
    """

    x: dict[str, Tensor]
    residual: float
    iterations: int
    indefinite: bool


@torch.no_grad()
def conjugate_gradient(
    product: Callable[[dict[str, Tensor]], Tensors],
    b: Tensors,
    *,
    tol: float = 1e-6,
    max_iter: int = 100,
    start: Tensors | None = None,
) -> Solution:
    """Solve ``A x = b`` with a symmetric, positive definite A of which only products are known.

    Arguments:
        product: x to ``A x``, in the shapes of b.
        tol: of ``|b - A x| / |b|``; rounding keeps it above about ε times the condition number.
        max_iter: products at most. In exact arithmetic as many as there are unknowns are enough.
        start: of x, zero if left out.
    """
    need(tol >= 0, "tol", "at least 0", tol)
    need(max_iter >= 1, "max_iter", "at least 1", max_iter)
    x = {n: torch.zeros_like(t) for n, t in b.items()} if start is None else dict(start)
    r = dict(b) if start is None else plus(b, -1.0, product(x))
    require(r, "The right side of the linear system", "look at b and start")
    p, left, size = r, dot(r, r), dot(b, b)
    iterations, indefinite = 0, False
    while iterations < max_iter and left > tol**2 * size:
        along = product(p)
        require(along, f"The Hessian product of iteration {iterations + 1}", "raise damping")
        curvature = dot(p, along)
        if curvature <= 0:
            indefinite = True
            break
        x, r = plus(x, left / curvature, p), plus(r, -left / curvature, along)
        before, left = left, dot(r, r)
        p = plus(r, left / before, p)
        iterations += 1
    rest = plus(b, -1.0, product(x))
    return Solution(x, math.sqrt(dot(rest, rest) / size) if size else 0.0, iterations, indefinite)


def plus(x: Tensors, a: float, y: Tensors) -> dict[str, Tensor]:
    """``x + a y``"""
    return {n: t + a * y[n] for n, t in x.items()}


def dot(x: Tensors, y: Tensors) -> float:
    """In double precision: in float32 the squares of small gradients vanish."""
    return float(sum((t.double() * y[n].double()).sum() for n, t in x.items()))


def need(holds: bool, name: str, what: str, got: object) -> None:
    """Refuse what an argument may not be."""
    if not holds:
        raise ValueError(f"{name} must be {what}; got {got}.")


def finite(*parts: Tensors) -> bool:
    """Whether all numbers are."""
    return all(bool(t.isfinite().all()) for part in parts for t in part.values())


def require(values: Tensors, what: str, advice: str) -> None:
    """Refuse values that are not finite, by name, with what to do."""
    for name, value in values.items():
        if not finite({name: value}):
            raise NonFiniteGradient(f"{what} is not finite in {name!r}: {advice}.")
