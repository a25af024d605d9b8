"""The density with a spike at each level of a codebook, and what a normal posterior pays for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import constraints, register_kl

from .log_uniform import LOG_DENSITY_AT_ONE, log_uniform_kl_once, molchanov_kl
from .spike_tables import SpikeTable, log_spikes, near, place, remainder, spike_table
from .wrapped import Improper

SpikeKL = Literal["exact", "achterhold"]
SPIKE_KLS = ("exact", "achterhold")

Levels = Literal[3, 5, 7, 9, 11, 13, 15]
"""Numbers of levels, zero included: up to 4 bits."""

_REFERENCE, _WINDOW = 0.2, 0.075  # of the published approximation: its largest level, and τ


def to_levels(w: Tensor, level: Tensor | float, levels: int) -> Tensor:
    """Each number rounded to the nearest of K levels equally apart in [-level, level], ``(*)``."""
    half = levels // 2
    return (w / level * half).round().clamp(-half, half) / half * level


def multi_spike_kl(
    loc: Tensor, scale: Tensor, level: Tensor, levels: int = 3, table: SpikeTable | None = None
) -> Tensor:
    r"""``KL(N(loc, scale²) || p)``, elementwise, in nats, for spikes at K levels.

    .. math:: p(w) ∝ \frac1K \sum_k \frac1{|w - c_k|}, \qquad
        c_k = -a, …, 0, …, a \text{ equally apart}

    An improper density is known up to a factor; with the one of
    :class:`~pyroccam.models.distributions.log_uniform.ImproperLogUniform` this is the KL to that
    for a → 0, and vanishes for scale → ∞. It depends on ``loc / a`` and ``scale / a`` only, so that
    nothing in it prefers a large or a small a. It can be negative, down to ``-log K``.

    The value is the KL to the log-uniform density about the nearest level, and what the other
    levels change of that: the bend at the level in closed form, and the rest by splines through
    quadratures (:mod:`~pyroccam.models.distributions.spike_tables`). It is off by at most 6e-5 nats
    for 3 levels, 2e-4 for 5 and 7, and 6e-4 up to 15, wherever the mean and the deviation are.

    There is a first derivative in all three, but no second, as of
    :func:`~pyroccam.models.distributions.log_uniform.log_uniform_kl_once`.

    Arguments:
        loc, scale: ``(*batch)``, broadcast.
        level: a, the largest level, positive, broadcast against them.
        levels: K, odd, zero included.
        table: of so many levels, of the dtype and the device of ``loc``; made if left out.

    References:
        Achterhold, Koehler, Schmeink, Genewein 2018, Variational network quantization, ICLR; the KL
        there is :func:`achterhold_kl`.

    Example:
        >>> one = torch.tensor(1.0)
        >>> multi_spike_kl(torch.tensor([0.0, 0.1, 0.5]), one * 0.1, one * 0.1)
        tensor([-0.1687,  0.1355,  2.1910])
    """
    if table is None:
        table = SpikeTable(*(part.to(loc) for part in spike_table(levels)))
    mean, deviation = torch.broadcast_tensors((loc / level).abs(), scale / level)
    shape, t, s = mean.shape, mean.detach().flatten(), deviation.detach().flatten()
    at = place(t, levels)
    centre, kink = (part.index_select(0, at.region) for part in (table.centre, table.kink))
    bend = near(t, s, centre, kink, levels)
    rest = remainder(t, s, table, levels, at)
    value, by_t, by_s = (a.add_(b).reshape(shape) for a, b in zip(bend, rest, strict=True))
    # The slopes are known with the value: autograd would keep every term of the splines.
    value = value - by_t * mean.detach() - by_s * deviation.detach()
    own = log_uniform_kl_once(mean - centre.reshape(shape), deviation)
    return own + (value + by_t * mean + by_s * deviation)


def achterhold_kl(loc: Tensor, scale: Tensor, level: Tensor) -> Tensor:
    r"""The published approximation of :func:`multi_spike_kl` for 3 levels, elementwise, in nats.

    .. math:: \sum_{c_k ≠ 0} Ω(θ - c_k) F(θ - c_k, σ) + (1 - \sum_{c_k ≠ 0} Ω(θ - c_k)) F(θ, σ),
        \qquad Ω(x) = \exp(-x² / 2τ²)

    at the levels -0.2, 0, 0.2 with τ = 0.075, to which mean and deviation are scaled; F is the
    approximation of Molchanov et al. to the log-uniform KL. It differs from the exact one by a
    constant, and beyond that by up to 0.7 nats either way.

    Arguments:
        loc, scale, level: as of :func:`multi_spike_kl`.

    References:
        Achterhold et al. 2018, equations 16 and 17, whose F is minus the KL.
    """
    theta, sigma = loc * (_REFERENCE / level), scale * (_REFERENCE / level)
    total, rest = torch.zeros_like(theta), torch.ones_like(theta)
    for c in (-_REFERENCE, _REFERENCE):
        window = torch.exp((theta - c).square() * (-0.5 / _WINDOW**2))
        total = total + window * molchanov_kl(theta - c, sigma)
        rest = rest - window
    return total + rest * molchanov_kl(theta, sigma)


class MultiSpikeLogUniform(Improper):
    r"""The improper density :math:`p(w) ∝ \frac1K \sum_k 1 / |w - c_k|`; there are no draws of it.

    Arguments:
        level: a, the largest level, positive, ``()``; ``c_k`` are equally apart in [-a, a].
        levels: K, odd, zero included.
        batch_shape: of the distribution; event shape ``()``.
        kl: which ``KL(Normal || self)`` is registered: ``"exact"``, which is
            :func:`multi_spike_kl`, or ``"achterhold"``, as published, for 3 levels.
        table: see :func:`multi_spike_kl`.
    """

    support = constraints.real

    def __init__(
        self,
        level: Tensor,
        levels: int = 3,
        batch_shape: Sequence[int] = (),
        kl: SpikeKL = "exact",
        table: SpikeTable | None = None,
    ) -> None:
        self.level, self.levels, self.kl, self.table = level, levels, kl, table
        self.like = level
        super().__init__(torch.Size(batch_shape), validate_args=False)

    @property
    def codebook(self) -> Tensor:
        """The levels, rising, ``(K,)``."""
        half = self.levels // 2
        steps = torch.arange(-half, half + 1, dtype=self.level.dtype, device=self.level.device)
        return self.level * (steps / half)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``; infinite at the levels."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        spikes = log_spikes(value / self.level, self.levels)
        return (spikes - self.level.log() + LOG_DENSITY_AT_ONE).expand(shape)


@register_kl(TorchNormal, MultiSpikeLogUniform)
def _kl_normal_multi_spike(q: TorchNormal, p: MultiSpikeLogUniform) -> Tensor:
    shape = torch.broadcast_shapes(q.batch_shape, p.batch_shape)
    if p.kl == "achterhold":
        return achterhold_kl(q.loc, q.scale, p.level).expand(shape)
    return multi_spike_kl(q.loc, q.scale, p.level, p.levels, p.table).expand(shape)
