"""Normals over one long vector, whose precision matrix has a shape: dense, diagonal, in blocks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...data import PyroccamError


class NotPositive(PyroccamError):
    """A matrix that is to be a precision has a direction of no, or of negative, curvature."""


class Precision(ABC):
    """A precision matrix P, ``(n, n)``, however it is kept."""

    @property
    @abstractmethod
    def log_det(self) -> float:
        """``log |P|``."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of ``P⁻¹``, ``(n,)``."""

    @abstractmethod
    def solve(self, vector: Tensor) -> Tensor:
        """``P⁻¹ v``, ``(n,)``."""

    @abstractmethod
    def turn(self, standard: Tensor) -> Tensor:
        """Draws from ``N(0, P⁻¹)``, ``(S, n)``, from standard normals ``(S, n)``."""

    def draw(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        """These draws, and their log densities ``(S,)``."""
        squares = standard.square().sum(1) + standard.shape[1] * math.log(2 * math.pi)
        return self.turn(standard), -0.5 * (squares - self.log_det)


@dataclass(frozen=True)
class Dense(Precision):
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

    def turn(self, standard: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.root.T, standard.T, upper=True).T


@dataclass(frozen=True)
class Diagonal(Precision):
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

    def turn(self, standard: Tensor) -> Tensor:
        return standard * self.precision.rsqrt()


@dataclass(frozen=True)
class Kronecker(Precision):
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
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues of P, ``(out, in)``, and the eigenvectors of G and of A."""
        (g, outer), (a, inner) = map(torch.linalg.eigh, (self.outer, self.inner))
        return g.clamp_min(0.0)[:, None] * a.clamp_min(0.0) + self.damping, outer, inner

    @property
    def log_det(self) -> float:
        return float(self._parts[0].log().sum())

    @property
    def variance(self) -> Tensor:
        values, outer, inner = self._parts
        return (outer.square() @ values.reciprocal() @ inner.square().T).flatten()

    def solve(self, vector: Tensor) -> Tensor:
        values, outer, inner = self._parts
        turned = outer.T @ vector.reshape(values.shape) @ inner
        return (outer @ (turned / values) @ inner.T).flatten()

    def turn(self, standard: Tensor) -> Tensor:
        values, outer, inner = self._parts
        scaled = standard.reshape(-1, *values.shape) * values.rsqrt()
        return (outer @ scaled @ inner.T).flatten(1)


@dataclass(frozen=True)
class Blocks(Precision):
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

    def turn(self, standard: Tensor) -> Tensor:
        return self.draw(standard)[0]

    def draw(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        found, total = torch.empty_like(standard), standard.new_zeros(len(standard))
        for where, one in self.parts:
            found[:, where], density = one.draw(standard[:, where])
            total = total + density
        return found, total
