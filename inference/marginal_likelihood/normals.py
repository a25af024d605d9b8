"""Normals over one long vector, whose precision matrix has a shape: dense, diagonal, in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ...data import PyroccamError


class NotPositive(PyroccamError):
    """A matrix that is to be a precision has a direction of no, or of negative, curvature."""


class Precision(Protocol):
    """A precision matrix P, ``(n, n)``, however it is kept."""

    @property
    def log_det(self) -> float:
        """``log |P|``."""
        ...

    @property
    def variance(self) -> Tensor:
        """The diagonal of ``P⁻¹``, ``(n,)``."""
        ...

    def solve(self, vector: Tensor) -> Tensor:
        """``P⁻¹ v``, ``(n,)``."""
        ...

    def draw(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        """Draws from ``N(0, P⁻¹)``, ``(S, n)``, from standard normals ``(S, n)``, and their log
        densities ``(S,)``."""
        ...


def _log_density(standard: Tensor, log_det: float) -> Tensor:
    size = standard.shape[1]
    return -0.5 * (standard.square().sum(1) + size * math.log(2 * math.pi) - log_det)


@dataclass(frozen=True)
class Dense:
    """Any precision matrix, by its Cholesky factor."""

    matrix: Tensor

    @cached_property
    def root(self) -> Tensor:
        """L of ``P = L Lᵀ``."""
        root, info = torch.linalg.cholesky_ex(self.matrix)
        if int(info) or not bool(root.isfinite().all()):
            raise NotPositive(
                f"the curvature of {len(self.matrix)} weights", "positive in every direction"
            )
        return root

    @property
    def log_det(self) -> float:
        return 2.0 * float(self.root.diagonal().log().sum())

    @property
    def variance(self) -> Tensor:
        return torch.cholesky_inverse(self.root).diagonal()

    def solve(self, vector: Tensor) -> Tensor:
        return torch.cholesky_solve(vector[:, None], self.root)[:, 0]

    def draw(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        drawn = torch.linalg.solve_triangular(self.root.T, standard.T, upper=True).T
        return drawn, _log_density(standard, self.log_det)


@dataclass(frozen=True)
class Diagonal:
    """Independent numbers."""

    precision: Tensor

    def __post_init__(self) -> None:
        if not bool((self.precision > 0).all()):
            flat = int((self.precision <= 0).sum())
            raise NotPositive(f"the curvature of {flat} weights", "positive")

    @property
    def log_det(self) -> float:
        return float(self.precision.log().sum())

    @property
    def variance(self) -> Tensor:
        return self.precision.reciprocal()

    def solve(self, vector: Tensor) -> Tensor:
        return vector / self.precision

    def draw(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        return standard * self.precision.rsqrt(), _log_density(standard, self.log_det)


@dataclass(frozen=True)
class Kronecker:
    r"""``G ⊗ A + δ I`` for a matrix of weights ``(out, in)``, row by row in one vector.

    With eigenvalues g and a, and eigenvectors U_G and U_A, P has the eigenvalues
    :math:`g_i a_j + δ` and the eigenvectors :math:`U_G \otimes U_A`, so that nothing of it is
    approximate.

    Arguments:
        outer: G, ``(out, out)``, symmetric.
        inner: A, ``(in, in)``, symmetric.
        damping: δ > 0, the precision of the prior.
    """

    outer: Tensor
    inner: Tensor
    damping: float

    @cached_property
    def _outer(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.outer)
        return values.clamp_min(0.0), vectors

    @cached_property
    def _inner(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.inner)
        return values.clamp_min(0.0), vectors

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Of P, ``(out, in)``."""
        return self._outer[0][:, None] * self._inner[0] + self.damping

    @property
    def log_det(self) -> float:
        return float(self.eigenvalues.log().sum())

    @property
    def variance(self) -> Tensor:
        outer, inner = self._outer[1].square(), self._inner[1].square()
        return (outer @ self.eigenvalues.reciprocal() @ inner.T).flatten()

    def solve(self, vector: Tensor) -> Tensor:
        outer, inner = self._outer[1], self._inner[1]
        turned = outer.T @ vector.reshape(self.eigenvalues.shape) @ inner
        return (outer @ (turned / self.eigenvalues) @ inner.T).flatten()

    def draw(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        outer, inner = self._outer[1], self._inner[1]
        scaled = standard.reshape(-1, *self.eigenvalues.shape) * self.eigenvalues.rsqrt()
        return (outer @ scaled @ inner.T).flatten(1), _log_density(standard, self.log_det)


@dataclass(frozen=True)
class Blocks:
    """Parts of a vector that do not depend on each other."""

    parts: Sequence[tuple[Tensor, Precision]]

    @property
    def log_det(self) -> float:
        return sum(one.log_det for _, one in self.parts)

    @property
    def variance(self) -> Tensor:
        each = [(where, one.variance) for where, one in self.parts]
        found = each[0][1].new_empty(sum(len(where) for where, _ in each))
        for where, part in each:
            found[where] = part
        return found

    def solve(self, vector: Tensor) -> Tensor:
        found = torch.empty_like(vector)
        for where, one in self.parts:
            found[where] = one.solve(vector[where])
        return found

    def draw(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        found, total = torch.empty_like(standard), standard.new_zeros(len(standard))
        for where, one in self.parts:
            found[:, where], density = one.draw(standard[:, where])
            total = total + density
        return found, total
