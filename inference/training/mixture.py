"""Scores of several fits together: the mixture of what each of them predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...data import PyroccamError
from ..posterior import (
    Noise,
    below_targets,
    mixture_log_probs,
    original_targets,
    same_inputs,
    same_targets,
    score_classes,
    score_targets,
)

if TYPE_CHECKING:
    from .result import Fit


@torch.no_grad()
def evaluate_together(
    fits: Sequence[Fit], split: str = "test", *, noise: Noise = "weights"
) -> dict[str, float]:
    r"""Metrics of the equal mixture of the predictions of several fits.

    .. math:: p(y \mid x) = \frac{1}{M} \sum_m \sum_s w_{ms}\, p_m(y \mid f_{ms}(x))

    Each fit has components, weights, a likelihood and a scale of the targets of its own: densities
    and means are brought to the original units before they are mixed.

    Raises:
        PyroccamError: if the fits have different rows in the split.
    """
    first = fits[0].data
    for one in fits[1:]:
        if not (same_inputs(first, one.data, split) and same_targets(first, one.data, split)):
            seeds = f"seeds {fits[0].settings.seed} and {one.settings.seed}"
            raise PyroccamError(f"other {split} rows of {seeds}", "the same rows in all fits")
    mix = _classes if first.task == "classification" else _targets
    return mix(fits, split, noise)


def _classes(fits: Sequence[Fit], split: str, noise: Noise) -> dict[str, float]:
    y = fits[0].data.split(split)[1]
    found = []
    for one in fits:
        outputs, shares = one.components(one.data.split(split)[0], noise=noise)
        predicted = one.model.likelihood.predicted(outputs)
        found.append(mixture_log_probs(predicted.double(), shares.double()).to(y.device))
    mean = torch.logsumexp(torch.stack(found), 0) - math.log(len(fits))
    return score_classes(fits[0].model.likelihood, mean, y)


def _targets(fits: Sequence[Fit], split: str, noise: Noise) -> dict[str, float]:
    y = original_targets(fits[0].data, split)
    densities, means, lower = [], [], []
    for one in fits:
        x, own = one.data.split(split)
        outputs, shares = one.components(x, noise=noise)
        likelihood, scale = one.model.likelihood, one.data.y_std.double()
        log_weights = shares.log().clamp_min(-1e4)
        log_p = likelihood.log_predictive(outputs, log_weights, own).double() - scale.log().sum()
        mean = torch.einsum("s,snt->nt", shares.double(), likelihood.predicted(outputs).double())
        densities.append(log_p.to(y.device))
        means.append((mean * scale + one.data.y_mean.double()).to(y.device))
        if (below := below_targets(likelihood, outputs, shares, own)) is not None:
            lower.append(below.to(y.device))
    log_p = torch.logsumexp(torch.stack(densities), 0) - math.log(len(fits))
    below = torch.stack(lower).mean(0) if len(lower) == len(fits) else None
    return score_targets(fits[0].model.likelihood, torch.stack(means).mean(0), log_p, y, below)
