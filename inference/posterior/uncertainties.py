"""How unsure a prediction is, and of what: of the class, of the network, or of a row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...data import PyroccamError
from .draws import Noise
from .ensemble import components
from .posteriors import Fits


class Uncertainty(NamedTuple):
    """How unsure the prediction of every row is, in nats, ``(N,)``, float64.

    Attributes:
        predictive_entropy: of the averaged prediction.
        expected_entropy: of one component, on average.
        mutual_information: between the class and the component; the first less the second.
    """

    predictive_entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor


def uncertainty(outputs: Tensor, weights: Tensor | None = None) -> Uncertainty:
    r"""Entropies of a mixture of predictions, and what its components tell.

    .. math::
        H\Big[\sum_s w_s p_s\Big] = \sum_s w_s H[p_s] + \sum_s w_s\, KL\Big(p_s \,\Big\|\,
        \sum_r w_r p_r\Big)

    The last sum is the mutual information of class and component, computed without cancellation.

    Arguments:
        outputs: logits (or log-probabilities) ``(S, N, C)``; ``-inf`` is a class that cannot be.
        weights: ``(S,)``, summing to one; equal ones if not given.

    Raises:
        PyroccamError: for another shape, logits that are no distribution, or weights that are none.

    References:
        Houlsby, Huszár, Ghahramani, Lengyel 2011, arXiv:1112.5745; Depeweg et al. 2018,
        arXiv:1710.07283.

    Example:
        >>> two = torch.tensor([[[50.0, -50.0]], [[-50.0, 50.0]]])  # both sure, of different things
        >>> round(float(uncertainty(two).mutual_information), 4)
        0.6931
    """
    if outputs.dim() != 3:
        raise PyroccamError(f"outputs of shape {tuple(outputs.shape)}", "(S, N, C)")
    log_p = outputs.detach().double().log_softmax(-1)
    if bool(log_p.isnan().any()):
        raise PyroccamError("outputs with nan, +inf or no class that can be", "logits")
    w = _checked_weights(outputs, weights)
    kept = w > 0.0
    log_p, w = log_p[kept], w[kept]
    log_mean = torch.logsumexp(w.log()[:, None, None] + log_p, 0)
    p = log_p.exp()
    expected = torch.einsum("s,snc->n", w, torch.special.entr(p))
    # 0 log 0 is 0, and a class that cannot be has no logarithm to be taken.
    told = torch.where(p > 0.0, p * (log_p - log_mean), 0.0)
    information = torch.einsum("s,snc->n", w, told).clamp_min(0.0)
    return Uncertainty(torch.special.entr(log_mean.exp()).sum(-1), expected, information)


def _checked_weights(outputs: Tensor, weights: Tensor | None) -> Tensor:
    count = len(outputs)
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64, device=outputs.device)
    w = weights.detach().to(outputs.device, torch.float64)
    if w.shape != (count,) or not bool((w >= 0.0).all()) or abs(float(w.sum()) - 1.0) > 1e-3:
        raise PyroccamError(f"weights of sum {float(w.sum()):.4g}", f"{count} shares of sum 1")
    return w / w.sum()


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that a row from outside scores higher than one from inside, ties by half.

    Arguments:
        inside, outside: scores ``(N,)`` and ``(M,)``, finite.
    """
    from scipy.stats import mannwhitneyu  # slow to import

    pairs = mannwhitneyu(outside.double().cpu(), inside.double().cpu(), method="asymptotic")
    return float(pairs.statistic) / (len(inside) * len(outside))


def out_of_domain(
    fits: Fits,
    x_in: Tensor,
    x_out: Tensor,
    *,
    draws: int | None = None,
    noise: Noise = "weights",
) -> dict[str, float]:
    """How well uncertainty tells inputs of another kind from those of the kind that was trained on:
    the area under the ROC curve of each measure, the other kind being the positive one.

    1 tells all apart, ½ none. A single network has no mutual information, and gets ½ for it.

    Arguments:
        fits: that classify; several are averaged, as a deep ensemble.
        x_in: inputs of the kind that was trained on, ``(N, *)``.
        x_out: of another kind, ``(M, *)``, on the same scale: see
            :meth:`pyroccam.data.Dataset.standardised_as`.
        draws, noise: see :meth:`~pyroccam.inference.Fit.outputs`.

    Returns:
        by the names of :class:`Uncertainty`.

    References:
        Hendrycks, Gimpel 2017, arXiv:1610.02136, for the measure.
    """
    inside, outside = (
        uncertainty(*components(fits, x, draws=draws, noise=noise)) for x in (x_in, x_out)
    )
    return {
        name: auroc(getattr(inside, name), getattr(outside, name)) for name in Uncertainty._fields
    }


class Bands(NamedTuple):
    """Moments of a predictive distribution, each ``(N, T)``.

    Attributes:
        mean: of the target.
        epistemic: standard deviation of the mean over networks, or depths: what more data would
            take away.
        total: standard deviation of a row, noise included.
    """

    mean: Tensor
    epistemic: Tensor
    total: Tensor


def mixture_bands(
    outputs: Tensor,
    weights: Tensor,
    noise: Tensor,
    y_mean: Tensor,
    y_std: Tensor,
) -> Bands:
    r"""Bands of a mixture of distributions with means :math:`m_s` and variances :math:`σ_s^2`.

    By the law of total variance :math:`V[y] = V[m] + E[σ^2]`, with
    :math:`V[m] = \sum_s w_s (m_s - \bar m)^2` around :math:`\bar m = \sum_s w_s m_s`.

    Arguments:
        outputs: means of the components, ``(S, N, T)``, standardised as the targets are.
        weights: of the components, ``(S,)``, of sum one.
        noise: σ, of all ``(T,)`` or of each ``(S, N, T)``, standardised.
        y_mean, y_std: ``(T,)``, of the targets.

    Returns:
        Moments in original units, float64.
    """
    w, m = weights.detach().double(), outputs.detach().double()
    mean = torch.einsum("s,snt->nt", w, m)
    # Around the mean: the difference of two large squares would lose the digits of a small one.
    variance = torch.einsum("s,snt->nt", w, (m - mean).square())
    noise = noise.detach().double().square().expand(m.shape)
    epistemic = variance.sqrt()
    total = (variance + torch.einsum("s,snt->nt", w, noise)).sqrt()
    mean, epistemic, total = (t * y_std.double() for t in (mean, epistemic, total))
    return Bands(mean + y_mean.double(), epistemic, total)
