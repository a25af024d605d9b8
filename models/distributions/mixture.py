"""A mixture of normals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, constraints

from .wrapped import Alike


class Components(NamedTuple):
    """Parameters of a mixture of K normals; the first is the one whose weights become zero.

    Attributes:
        mixing: proportions, which sum to one, ``(K,)``.
        loc, scale: means and standard deviations, ``(K,)``.
    """

    mixing: Tensor
    loc: Tensor
    scale: Tensor


class NormalMixture(Alike):
    r"""``Σ_k π_k N(loc_k, 1 / λ_k)``, the same for every element of the batch.

    There is no closed KL of a normal to it: a bound takes log q - log p at the draw.

    Arguments:
        log_mixing: log π, ``(K,)``.
        loc, log_precision: of the components, ``(K,)``.
        batch_shape: of the distribution; event shape ``()``.
    """

    arg_constraints = {  # noqa: RUF012 (as torch declares it)
        "log_mixing": constraints.real_vector,
        "loc": constraints.real_vector,
        "log_precision": constraints.real_vector,
    }
    support = constraints.real

    def __init__(
        self,
        log_mixing: Tensor,
        loc: Tensor,
        log_precision: Tensor,
        batch_shape: Sequence[int] = (),
    ) -> None:
        self.log_mixing, self.loc, self.log_precision = log_mixing, loc, log_precision
        super().__init__(torch.Size(batch_shape), validate_args=False)

    @property
    def components(self) -> Components:
        """Components with the proportions and the scales themselves."""
        return Components(self.log_mixing.exp(), self.loc, (-0.5 * self.log_precision).exp())

    def log_parts(self, value: Tensor) -> Tensor:
        """``log π_k + log N(value; loc_k, 1 / λ_k)``, ``(K, *value)``.

        The components come first, so that a compiler makes one pass over the values of the sum and
        its gradients. The square is of the difference: expanded, it would cancel for narrow normals
        away from zero.
        """
        each = (-1, *[1] * value.dim())
        top = self.log_mixing + 0.5 * (self.log_precision - math.log(2.0 * math.pi))
        half = 0.5 * self.log_precision.exp()
        gap = value - self.loc.reshape(each)
        return top.reshape(each) - half.reshape(each) * (gap * gap)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return torch.logsumexp(self.log_parts(value), 0).expand(shape)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``(*sample, *batch)``."""
        shape = torch.Size(sample_shape) + self.batch_shape
        mixing, loc, scale = self.components
        k = Categorical(mixing, validate_args=False).sample(shape)
        return loc[k] + scale[k] * torch.randn(shape, dtype=loc.dtype, device=loc.device)
