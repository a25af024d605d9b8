"""Gates that are open or closed, with a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import register_kl
from torch.nn.functional import softplus


class HardGate(dist.Bernoulli):
    r"""A gate g, 0 or 1, whose draws have the gradient of a relaxed one.

    .. math:: g = [z > 0], \qquad z = \operatorname{logit} p + \operatorname{logit} u, \qquad
              \frac{\partial g}{\partial \operatorname{logit} p} := σ'(z / T) / T

    with u uniform: what is behind it is computed with an exact draw, and only its gradient is
    biased. The KL between two is that of Bernoulli variables, in closed form by their logits, so
    that it is finite where a probability rounds to 0 or 1; it is at most :math:`\log(1 / p)` for a
    gate that stays open, however sure the posterior is.

    References:
        Bengio, Leonard, Courville 2013, arXiv:1308.3432, for the gradient straight through; Jang,
        Gu, Poole 2017, arXiv:1611.01144, for that of the relaxed draw.

    Example:
        >>> gate = HardGate(logits=torch.tensor(30.0))
        >>> gate.rsample()
        tensor(1.)
    """

    temperature: ClassVar[float] = 2.0 / 3.0
    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Zeros and ones, ``(*sample_shape, *batch)``."""
        shape = self._extended_shape(torch.Size(sample_shape))
        uniform = torch.rand(shape, dtype=self.logits.dtype, device=self.logits.device)
        z = self.logits + uniform.clamp(1e-6, 1 - 1e-6).logit()
        relaxed = (z / self.temperature).sigmoid()
        return relaxed + ((z > 0).to(relaxed) - relaxed).detach()


@register_kl(HardGate, HardGate)
def _kl(q: HardGate, p: HardGate) -> Tensor:
    r"""``(*batch)``, of logits a and b: :math:`σ(a) (ς(-b) - ς(-a)) + σ(-a) (ς(b) - ς(a))` with
    :math:`ς(x) = \log(1 + e^x)`."""
    a, b = q.logits, p.logits
    opened = a.sigmoid() * (softplus(-b) - softplus(-a))
    return opened + (-a).sigmoid() * (softplus(b) - softplus(a))
