"""What a normal posterior pays for a density of several spikes, beyond the nearest spike: a table.

Everything here is in units of the largest level: levels stand at -1, ..., 0, ..., 1, equally apart.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .log_uniform import MEAN_LOG, log_uniform_kl

# Cells of a region along the mean and along the standard deviation: enough for the errors that
# multi_spike_kl names.
_ALONG_LOC, _ALONG_SCALE = 16, 48
_DAMPED = 0.5  # gaps between levels: a standard deviation from which on a kink is smooth anyway
_SQRT_HALF, _SQRT_2_PI = math.sqrt(0.5), math.sqrt(2.0 / math.pi)


class SpikeTable(NamedTuple):
    """The remainder of :func:`near`, in cells with a polynomial of third degree in both directions.

    Attributes:
        cells: coefficients, ``(16, regions · 16 · 48)``; row 4 p + q is of ``u^p v^q``.
        centre: level that counts as the nearest in a region, ``(regions,)``.
        kink: sum of the inverse distances of that level to the others, zero in the last region.
    """

    cells: Tensor
    centre: Tensor
    kink: Tensor


class Place(NamedTuple):
    """Where points are in the table.

    Attributes:
        region: halves of the gaps between levels from 0 to 1, then 1 to 2, then beyond.
        x, slope: position in the region, in [0, 1], and its derivative.
    """

    region: Tensor
    x: Tensor
    slope: Tensor


def place(t: Tensor, levels: int) -> Place:
    """The place of means ``t >= 0``, of any shape."""
    gap, steps = 2.0 / (levels - 1), levels - 1.0
    along = t * steps
    inner = along.floor().clamp(max=steps - 1.0)
    middle = (t - 1.0).clamp(min=0.0)
    scaled = (middle + gap).reciprocal_()
    middle.mul_(scaled).mul_(1.0 + gap)
    below = (t + 1e-30).reciprocal_().mul_(2.0)
    within, beyond = t < 1.0, t >= 2.0
    x = torch.where(within, along.sub_(inner), torch.where(beyond, 1.0 - below, middle))
    slope = torch.where(
        within,
        steps,
        torch.where(beyond, below.square_().mul_(0.5), scaled.square_().mul_((1.0 + gap) * gap)),
    )
    region = torch.where(within, inner, torch.where(beyond, steps + 1.0, steps))
    return Place(region.long(), x, slope)


def near(
    t: Tensor, s: Tensor, centre: Tensor, kink: Tensor, levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    r"""What the nearest level alone asks for, but for its log-uniform KL, and the slopes of that.

    Beside a level c the density is :math:`\frac1{|w-c|} (1 + κ |w-c| + …)`: to first order the
    others add :math:`-κ E|w-c|`, which is as sharp a bend at c as the standard deviation is small,
    and the one part that no table resolves. Of it this is what differs from :math:`-κ |t-c|`,
    damped where the deviation is not small: zero for s → 0 and for s → ∞.

    Arguments:
        t, s: mean and standard deviation, ``(*)``.
        centre, kink: of :class:`SpikeTable`, for each.

    Returns:
        value and its derivatives by t and by s, ``(*)`` each.
    """
    scaled = (_DAMPED / (levels // 2)) ** -2
    d = t - centre
    m = d / s
    by_t = torch.erf(m * _SQRT_HALF).sub_(d.sign())
    bell = m.square_().mul_(-0.5).exp_().mul_(_SQRT_2_PI)
    sharp = d.mul_(by_t) + s * bell
    damp = s.square().mul_(scaled).add_(1.0).reciprocal_()
    by_s = (sharp * damp).mul_(s).mul_(-4.0 * scaled).add_(bell)
    part = damp.square_().mul_(kink).neg_()
    return sharp.mul_(part), by_t.mul_(part), by_s.mul_(part)


def remainder(
    t: Tensor, s: Tensor, table: SpikeTable, levels: int, at: Place
) -> tuple[Tensor, Tensor, Tensor]:
    """The interpolated remainder, and its derivatives by t and by s, ``(*)`` each.

    Arguments:
        t, s: mean ``>= 0`` and standard deviation ``> 0``, ``(*)``.
        at: the place of ``t``.
    """
    unit = (t - 1.0).clamp(min=0.0).add_(2.0 / (levels - 1))
    scaled = (s + unit).reciprocal_()
    u, v = at.x * _ALONG_LOC, (s * scaled).mul_(_ALONG_SCALE)
    i = u.floor().clamp(0.0, _ALONG_LOC - 1.0)
    j = v.floor().clamp(0.0, _ALONG_SCALE - 1.0)
    u.sub_(i)
    v.sub_(j)
    cell = at.region.mul(_ALONG_LOC).add_(i.long()).mul_(_ALONG_SCALE).add_(j.long())
    value, by_u, by_v = (torch.zeros_like(u) for _ in range(3))
    # Horner in u over Horner in v, in place: new memory would cost more than the sums.
    for p in (3, 2, 1, 0):
        c3, c2, c1, c0 = (table.cells[4 * p + q].index_select(0, cell) for q in (3, 2, 1, 0))
        by_u.mul_(u).add_(value)
        slope = (c3 * v).mul_(3.0).add_(c2, alpha=2.0).mul_(v).add_(c1)
        by_v.mul_(u).add_(slope)
        value.mul_(u).add_(c3.mul_(v).add_(c2).mul_(v).add_(c1).mul_(v).add_(c0))
    by_v.mul_(scaled.square_()).mul_(_ALONG_SCALE)
    by_u.mul_(at.slope).mul_(_ALONG_LOC)
    by_u.sub_(torch.where(t > 1.0, by_v * s, 0.0))
    return value, by_u, by_v.mul_(unit)


def log_spikes(w: Tensor, levels: int) -> Tensor:
    """``log (1/K Σ_k 1/|w - c_k|)``, ``(*)``; infinite at the levels."""
    c = torch.linspace(-1.0, 1.0, levels, dtype=w.dtype, device=w.device)
    return (w[..., None] - c).abs().reciprocal().mean(-1).log()


@lru_cache(maxsize=16)
def spike_table(levels: int) -> SpikeTable:
    """The table of an odd number of levels, float64 on the CPU; made once, in a part of a second.

    Nodes are KLs by quadrature less what :func:`near` and the log-uniform KL say. Each
    region has splines of its own, not-a-knot at their ends: the remainder bends between regions.
    """
    from scipy.interpolate import CubicSpline  # as slow to import as the table is to make

    half = levels // 2
    gap = 1.0 / half
    regions = 2 * half + 2
    centre = [math.ceil(k / 2) * gap for k in range(2 * half)] + [1.0, 0.0]
    c = np.linspace(-1.0, 1.0, levels)
    apart = [np.abs(c - one) for one in centre[:-1]]
    kink = [float((1.0 / one[one > 1e-9]).sum()) for one in apart] + [0.0]
    x = torch.linspace(0.0, 1.0, _ALONG_LOC + 1, dtype=torch.float64)
    z = torch.linspace(0.0, 1.0, _ALONG_SCALE + 1, dtype=torch.float64)[1:-1]
    parts = []
    for k in range(regions):
        t = _means(k, x, half)
        inside = t[t.isfinite()]
        unit = gap + (inside - 1.0).clamp(min=0.0)
        at, by = torch.broadcast_tensors(inside[:, None], unit[:, None] * z / (1.0 - z))
        own = torch.full_like(at, kink[k])
        known = near(at, by, torch.full_like(at, centre[k]), own, levels)[0]
        value = _kl_by_quadrature(at, by, levels) - known - log_uniform_kl(at - centre[k], by)
        grid = torch.zeros(len(x), len(z) + 2, dtype=torch.float64)  # nothing at infinity
        grid[: len(inside), 1:-1] = value
        grid[: len(inside), 0] = _without_noise(inside, centre[k], levels)
        spline = CubicSpline(np.arange(len(x)), grid.numpy(), axis=0)
        both = CubicSpline(np.arange(len(z) + 2), spline.c, axis=2)  # (4, j, 4, i)
        parts.append(both.c[::-1, :, ::-1].transpose(2, 0, 3, 1))  # (p, q, i, j)
    cells = np.stack(parts, axis=2).reshape(16, -1)
    return SpikeTable(
        torch.from_numpy(np.ascontiguousarray(cells)),
        torch.tensor(centre, dtype=torch.float64),
        torch.tensor(kink, dtype=torch.float64),
    )


def _means(region: int, x: Tensor, half: int) -> Tensor:
    """The inverse of :func:`place`."""
    gap = 1.0 / half
    if region < 2 * half:
        return (region + x) * gap / 2
    if region == 2 * half:
        y = x / (1.0 + gap)
        return 1.0 + gap * y / (1.0 - y)
    return 2.0 / (1.0 - x)


def _without_noise(t: Tensor, centre: float, levels: int) -> Tensor:
    """The remainder for s → 0: ``-log (|t - c| 1/K Σ_k 1/|t - c_k|)``, with its limit at c."""
    c = torch.linspace(-1.0, 1.0, levels, dtype=t.dtype)
    distance = (t[:, None] - c).abs()
    own = (t - centre).abs()
    nearest = (c - centre).abs().argmin()
    others = own[:, None] / distance
    others[:, nearest] = 1.0
    return -others.mean(1).log()


def _kl_by_quadrature(t: Tensor, s: Tensor, levels: int) -> Tensor:
    r"""The KL of :func:`~pyroccam.models.distributions.multi_spike.multi_spike_kl`, float64.

    With :math:`S(w) = Σ_k Π_{j≠k} |w-c_j|`, which is positive and bends at the levels only, it is
    :math:`Σ_j KL_{LU}(t-c_j, s) + (K-1)(\log s - E…) - E \log S + \log K`: the poles are in closed
    form, and between the levels Gauss and Legendre take the rest.
    """
    c = torch.linspace(-1.0, 1.0, levels, dtype=t.dtype)
    poles = sum(log_uniform_kl(t - one, s) for one in c)
    reach = 9.0
    low, high = t - reach * s, t + reach * s
    cuts = torch.cat([c, c.new_tensor([0.0])]).sort().values.unique()
    ends = torch.stack([low, *(torch.minimum(torch.maximum(one, low), high) for one in cuts), high])
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(80))
    y = 0.5 * (nodes + 1.0)
    # Nodes gather at both ends, as the logarithm is steep there where the deviation is large.
    steps, density = y * y * (3.0 - 2.0 * y), 0.5 * weights * 6.0 * y * (1.0 - y)
    total = torch.zeros_like(t)
    for a, b in pairwise(ends):
        w = a[..., None] + (b - a)[..., None] * steps
        apart = (w[..., None] - c).abs().clamp_min(1e-300)
        log_s = apart.log().sum(-1) + apart.reciprocal().sum(-1).log()
        e = (w - t[..., None]) / s[..., None]
        q = torch.exp(-0.5 * e * e) / (s[..., None] * math.sqrt(2.0 * math.pi))
        total = total + (b - a) * (q * log_s * density).sum(-1)
    return poles + (levels - 1) * (s.log() - MEAN_LOG) - total + math.log(levels)
