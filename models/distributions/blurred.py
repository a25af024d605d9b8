"""Whole multiples of a width, and the densities that say what it costs to send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Categorical, constraints, register_kl

from .wrapped import Alike


class BlurredLogistics(Alike):
    r"""A mixture of logistics about zero, plus a uniform of one width, the same for every element.

    With x in widths, and F the logistic distribution function, the density is

    .. math:: P(x) / width, \qquad P(x) = \sum_c π_c [F((x + ½) / s_c) - F((x - ½) / s_c)]

    At whole numbers P is the probability that a draw of the logistics rounds to them: these sum to
    one, and :math:`-\log_2 P` is what they cost, in bits.

    Arguments:
        log_mixing: log π, ``(C,)``.
        log_scale: log s, in widths, ``(C,)``.
        width: of a whole number, ``()``.
        batch_shape: of the distribution; event shape ``()``.
    """

    arg_constraints = {  # noqa: RUF012 (as torch declares it)
        "log_mixing": constraints.real_vector,
        "log_scale": constraints.real_vector,
        "width": constraints.positive,
    }
    support = constraints.real

    def __init__(
        self, log_mixing: Tensor, log_scale: Tensor, width: Tensor, batch_shape: Sequence[int] = ()
    ) -> None:
        self.log_mixing, self.log_scale, self.width = log_mixing, log_scale, width
        super().__init__(torch.Size(batch_shape), validate_args=False)

    def log_mass(self, widths: Tensor) -> Tensor:
        """``log P`` at ``widths``, of their shape.

        Of a difference of two F's only factors are left, so that no tail is lost: with a < b it is
        F(b) F(-a) (1 - exp(a - b)).
        """
        size = widths.abs()
        rate = (-self.log_scale).exp()
        tops = self.log_mixing + (-torch.expm1(-rate)).log()
        parts = [
            top + F.logsigmoid(one * (size + 0.5)) + F.logsigmoid(one * (0.5 - size))
            for top, one in zip(tops.unbind(), rate.unbind(), strict=True)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = torch.logaddexp(total, part)
        return total

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return (self.log_mass(value / self.width) - self.width.log()).expand(shape)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``(*sample, *batch)``."""
        shape = torch.Size(sample_shape) + self.batch_shape
        component = Categorical(logits=self.log_mixing, validate_args=False).sample(shape)
        scale = self.log_scale.exp()
        blur, u = (torch.rand(shape, dtype=scale.dtype, device=scale.device) for _ in range(2))
        u = u.clamp_min(torch.finfo(u.dtype).tiny)
        logistic = scale[component] * (u.log() - torch.log1p(-u))
        return self.width * (logistic + blur - 0.5)


class RoundedPoint(TorchDistribution):
    r"""A point: the whole multiple of a width that is nearest to a centre.

    A gradient passes the rounding as if it were not there. The KL to a
    :class:`BlurredLogistics` of that width is what the whole number k costs, :math:`-\log P(k)`.
    That is flat between whole numbers; with ``noise`` it is estimated at centre + u instead, with u
    uniform in a width, whose mean changes smoothly and is what it costs to send a draw of
    ``centre + u`` (which, rounded with a dither that both sides know, is a whole number).

    Arguments:
        centre: of the unrounded values, in widths, ``(*batch)``.
        width: of a whole number, ``()``.
        noise: estimate the KL with noise.

    References:
        Ballé, Laparra, Simoncelli 2017, arXiv:1611.01704; Oktay, Ballé, Singh, Shrivastava 2020,
        Scalable model compression by entropy penalized reparameterization, arXiv:1906.06624.
    """

    arg_constraints = {"centre": constraints.real}  # noqa: RUF012 (as torch declares it)
    support = constraints.real
    has_rsample = True

    def __init__(self, centre: Tensor, width: Tensor, noise: bool = True) -> None:
        self.centre, self.width, self.noise = centre, width, noise
        super().__init__(centre.shape, validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> RoundedPoint:
        return type(self)(self.centre.expand(torch.Size(batch_shape)), self.width, self.noise)

    @property
    def whole(self) -> Tensor:
        """The whole numbers, ``(*batch)``."""
        return self.centre + (self.centre.round() - self.centre).detach()

    @property
    def v(self) -> Tensor:
        """The value, ``(*batch)``."""
        return self.whole * self.width

    @property
    def mean(self) -> Tensor:
        return self.v

    @property
    def variance(self) -> Tensor:
        return torch.zeros_like(self.centre)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``(*sample_shape, *batch)``."""
        return self.v.expand(self._extended_shape(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``: a mass of one at the point."""
        away = value.new_full((), -torch.inf)
        return torch.where(value == self.v, value.new_zeros(()), away)


@register_kl(RoundedPoint, BlurredLogistics)
def _cost(q: RoundedPoint, p: BlurredLogistics) -> Tensor:
    at = q.centre + (torch.rand_like(q.centre) - 0.5) if q.noise else q.whole
    return -p.log_mass(at)
