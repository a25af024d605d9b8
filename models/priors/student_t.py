"""Student's t for each weight: between the normal and the log-uniform prior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import StudentT as TorchStudentT
from torch.distributions import register_kl

from ...data import Between, Positive
from ..distributions import MEAN_LOG
from .base import Latent, LayerShape, WeightPrior, independent

# The series of log_uniform, as a Chebyshev series on the circle; lowest power first.
_B = (
    1.4130206277,
    -0.9036277689,
    -0.3310740983,
    -0.1280015184,
    -0.0415711474,
    -0.0091146378,
    -0.0003295556,
    0.0005894092,
    0.0001563808,
    -3.1067e-05,
    -2.12282e-05,
    1.9321e-06,
    2.6719e-06,
)
_L = math.sqrt(18.0)


def mean_log_distance(m: Tensor, d: Tensor) -> Tensor:
    r"""``½ E[log((m + ε)² + d²)]`` of a standard normal ε, elementwise, for d >= 0.

    It is the real part of :math:`E[\log(z + ε)]`, z = m + i d, which is analytic above the real
    axis. So the series known on that axis, in powers of Z = (L + i z) / (L - i z), holds above it,
    and no error there is greater than the greatest on the axis (the maximum principle): 5.6e-7
    in float64, whatever m and d.
    """
    above = d + _L
    m2 = m.square()
    norm = above.square() + m2
    # Z = x + i y; a real polynomial of it by Clenshaw's recurrence, which needs 2 x and |Z|².
    twice_x = 2.0 * ((_L - d) * above - m2) / norm
    size = ((_L - d).square() + m2) / norm
    b1, b2 = twice_x * _B[-1] + _B[-2], torch.full_like(twice_x, _B[-1])
    for c in _B[-3:0:-1]:
        b1, b2 = twice_x * b1 - size * b2 + c, b1
    series = 0.5 * twice_x * b1 - size * b2 + _B[0]
    return 0.5 * torch.log(norm * (1.0 / 18.0)) + series - MEAN_LOG


def student_t_kl(
    loc: Tensor, scale: Tensor, df: Tensor, prior_scale: Tensor, prior_loc: Tensor
) -> Tensor:
    r"""``KL(N(loc, scale²) || StudentT(df, prior_loc, prior_scale))``, elementwise, in nats.

    By :func:`mean_log_distance` with :math:`d = \sqrt{df} \, prior\_scale / scale`: no quadrature.
    The error is at most 5.6e-7 (df + 1) in float64 and about 2e-6 (df + 1) in float32, where the
    logarithms that cancel for great df are rounded. For df → 0, and a constant aside, this is
    :func:`log_uniform_kl` times (df + 1).

    Arguments:
        loc, scale: ``(*batch)``, of the posterior.
        df, prior_scale, prior_loc: of the prior, broadcast.
    """
    width = df.sqrt() * prior_scale
    distance = mean_log_distance((loc - prior_loc) / scale, width / scale)
    log_ratio = distance + (scale / width).log()  # ½ E log(1 + w² / width²)
    log_norm = torch.lgamma(0.5 * df) - torch.lgamma(0.5 * (df + 1.0)) + 0.5 * math.log(math.pi)
    entropy = scale.log() + 0.5 * math.log(2.0 * math.pi * math.e)
    return (df + 1.0) * log_ratio + log_norm + width.log() - entropy


@register_kl(TorchNormal, TorchStudentT)
def _kl_normal_student_t(q: TorchNormal, p: TorchStudentT) -> Tensor:
    return student_t_kl(q.loc, q.scale, p.df, p.scale, p.loc)


@dataclass(frozen=True)
class StudentT(WeightPrior):
    """Student's t with ``df`` degrees of freedom for each weight; biases are N(0, 1).

    Arguments:
        df: 1 is the Cauchy prior; towards 0 it is the log-uniform one, towards infinity the normal.
            At most 100, beyond which the KL loses digits in float32.
        scale: of the prior.

    References:
        Kharitonov, Molchanov, Vetrov 2018, Variational dropout via empirical Bayes,
        arXiv:1811.00596, and Neklyudov et al. 2018, arXiv:1803.03764, compare such priors.
    """

    words = "student-t:1"

    df: Annotated[float, Between(0.0, 100.0, "(]")] = 1.0
    scale: Positive = 1.0

    def numbers(self, layer: LayerShape) -> dict[str, float]:
        return {"df": self.df, "scale": self.scale}

    def latents(self, own: Any) -> Mapping[str, Latent]:
        weight = independent(dist.StudentT, own.layer.weight, own.df, own.zero, own.scale)
        return {"weight": Latent(weight), **own.standard_bias()}
