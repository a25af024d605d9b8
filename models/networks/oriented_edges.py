"""Filters that are known before any data: how steeply an image rises in each direction."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import Count, Positive, checked


class OrientedEdges(nn.Module):
    r"""Each channel of an image smoothed by a Gaussian, and how steeply it rises in each of some
    directions (the positive part of the Gaussian's derivative): ``(B, C, H, W)`` to
    ``(B, C (1 + directions), H, W)``, the smoothed channels first. Nothing in it is learnt, so that
    it has no KL, and no bytes in a file.

    With :math:`r = 2σ` rounded up the filters have :math:`(2r + 1)^2` numbers, whose squares have
    sum 1: :math:`g ∝ \exp(-(x^2 + y^2) / 2σ^2)` and :math:`d_a ∝ (x \cos a + y \sin a)\, g`. Beyond
    its border an image goes on as it ends.

    Arguments:
        channels: C.
        directions: angles :math:`2πi/n`, from the axis of the columns to that of the rows.
        sigma: standard deviation σ of the Gaussian, in pixels.

    References:
        Freeman and Adelson 1991, The design and use of steerable filters; Bruna and Mallat 2013,
        Invariant scattering convolution networks, arXiv:1203.1513, for filters that are not learnt.

    Example:
        >>> OrientedEdges(1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 9, 28, 28])
    """

    @checked
    def __init__(self, channels: Count, directions: Count = 8, sigma: Positive = 1.0) -> None:
        super().__init__()
        self.channels, self.directions, self.sigma = channels, directions, sigma

    def forward(self, x: Tensor) -> Tensor:
        smooth, edges = self._kernels(x)
        wide = F.pad(x, [smooth.shape[-1] // 2] * 4, mode="replicate")
        found = [
            F.conv2d(wide, one.repeat(self.channels, 1, 1, 1), groups=self.channels)
            for one in (smooth, edges)
        ]
        return torch.cat([found[0], found[1].relu()], 1)

    def _kernels(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """g ``(1, 1, 2r + 1, 2r + 1)`` and d ``(directions, 1, 2r + 1, 2r + 1)``."""
        reach = math.ceil(2.0 * self.sigma)
        at = torch.arange(-reach, reach + 1, dtype=like.dtype, device=like.device)
        each = torch.exp(-0.5 * (at / self.sigma) ** 2)
        gauss = each * each[:, None]
        turn = torch.arange(self.directions, dtype=like.dtype, device=like.device)[:, None, None]
        angle = turn * (2.0 * math.pi / self.directions)
        rising = (angle.cos() * at + angle.sin() * at[:, None]) * gauss
        smooth, edges = (one / one.square().sum((-2, -1), True).sqrt() for one in (gauss, rising))
        return smooth[None, None], edges[:, None]

    def extra_repr(self) -> str:
        return f"{self.channels}, directions={self.directions}, sigma={self.sigma:g}"
