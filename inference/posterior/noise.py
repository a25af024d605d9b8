"""What validation rows say of predictions: the noise of a regression, a temperature of logits."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from ...models.contexts import evaluating
from ...models.likelihoods import Likelihood, Regression

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = [
    "LEAST_ROWS",
    "learns_noise",
    "noise_of_rows",
    "set_noise",
    "temperature_of_rows",
    "validated",
]

# Of validation rows. The density that a σ of n rows loses is about 1 / (2 n) nats for each target.
LEAST_ROWS = 10


def learns_noise(likelihood: Likelihood) -> bool:
    """True for the normal noise of a regression, where it is learnt."""
    return type(likelihood) is Regression and likelihood.log_scale.requires_grad


@torch.no_grad()
def set_noise(likelihood: Any, scale: Tensor) -> None:
    """Give a :class:`~pyroccam.models.likelihoods.Regression` the noise ``(T,)``, in place."""
    likelihood.log_scale.copy_((scale - likelihood.floor).clamp_min(1e-8).log())


@torch.no_grad()
def validated(likelihood: Likelihood, net: nn.Module, data: Dataset) -> Likelihood:
    """The likelihood of a plain network: a learnt σ is that of the errors of the validation rows,
    if there are at least ten; what a posterior of weights took for noise is none of the means.

    Arguments:
        likelihood: of the model that the network was made of; it stays as it is.
        net: on the device of the data.
        data: with the validation rows.
    """
    x, y = data.split("val")
    if len(x) < LEAST_ROWS or not learns_noise(likelihood):
        return likelihood
    with evaluating(net):
        outputs = torch.cat([net(part.clone()) for part in x.split(1024)])
    own = copy.deepcopy(likelihood)
    set_noise(own, noise_of_rows(outputs[None], torch.ones(1, device=x.device), y))
    return own


def noise_of_rows(outputs: Tensor, weights: Tensor, y: Tensor) -> Tensor:
    r"""σ of each target that the rows want of a mixture with given means, by EM.

    .. math:: σ_t² = \frac{1}{N - 2} \sum_{sn} r_{sn} (y_{nt} - μ_{snt})², \qquad
              r_{sn} \propto w_s \prod_t N(y_{nt}; μ_{snt}, σ_t²)

    By N - 2 and not N: of all multiples of the sum of squares, that one has the least expected loss
    in nats on a new row, where there is one component and its errors are normal.

    Arguments:
        outputs: means ``(S, N, T)``, N > 2.
        weights: ``(S,)``.
        y: ``(N, T)``.

    Returns:
        ``(T,)``, float64.
    """
    squared = (y.double() - outputs.double()).square()
    log_w = weights.double().log().clamp_min(-1e4)
    rows = y.shape[0] - 2
    # From above, where all components count: from a σ near zero each row has one of its own.
    variance = torch.einsum("s,snt->t", log_w.exp(), squared) / rows
    tiny = torch.finfo(torch.float64).tiny
    for _ in range(100):
        before = variance.clamp_min(tiny)
        log_p = -0.5 * (squared / before + before.log()).sum(-1)
        shares = (log_w[:, None] + log_p).softmax(0)
        variance = torch.einsum("sn,snt->t", shares, squared) / rows
        if torch.allclose(variance, before, rtol=1e-6, atol=0.0):
            break
    return variance.clamp_min(tiny).sqrt()


def temperature_of_rows(logits: Tensor, y: Tensor, spread: float = 0.5) -> float:
    r"""The temperature that suits the logits of rows that no weight was fitted to.

    .. math:: \hat T = \arg\min_T -\sum_n \log\mathrm{softmax}(z_n / T)_{y_n}
              + \frac{(\log T)^2}{2 s^2}

    The second term, a log-normal prior around 1, keeps the temperature of a few rows near 1: where
    all of them are right, the likelihood alone would have none at all. In log T the objective is
    minimised between 1/20 and 20.

    Arguments:
        logits: ``(N, C)``.
        y: labels ``(N,)``.
        spread: s, of the prior's log T.

    References:
        Guo, Pleiss, Sun, Weinberger 2017, arXiv:1706.04599 (without the prior).
    """
    logits = logits.double()

    def loss(log_t: float) -> float:
        nll = nn.functional.cross_entropy(logits / math.exp(log_t), y, reduction="sum")
        return float(nll) + 0.5 * (log_t / spread) ** 2

    found = minimize_scalar(loss, bounds=(-math.log(20), math.log(20)), method="bounded")
    return math.exp(float(found.x))
