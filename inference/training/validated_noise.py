r"""The noise of a likelihood, by rows that its network was not fitted to.

What a network of many weights leaves of its training targets is less than it leaves of new ones:
σ, learnt on the training rows, goes to nothing while the network learns them by heart, and each
prediction is then far surer than it is right. Where a checkpoint is judged, σ is therefore that of
the validation rows, for means that stay as they are; and so are the degrees of freedom of Student's
t, and the dispersion of counts.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...guides.base import Guide
from ...models.base import Model
from ...models.likelihoods import Likelihood
from ..posterior.family import Family
from ..posterior.predict import outputs_by_depth

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["LEAST_ROWS", "has_validated_noise", "noise_of_rows", "validate_noise"]

# Of validation rows. The density that a σ of n rows loses is about 1 / (2 n) nats for each target.
LEAST_ROWS = 10


def has_validated_noise(model: Model, guide: Guide, data: Dataset) -> bool:
    """True if the noise is that of the validation rows: weights that are numbers or points, noise
    that is learnt, and validation rows enough. Beside random weights the bound itself holds it: the
    posterior cannot learn rows by heart for nothing."""
    if (model.random_weights and not guide.is_point) or len(data.x_val) < LEAST_ROWS:
        return False
    likelihood = model.likelihood
    noise = [likelihood.get_parameter(name) for name in likelihood.noise]
    return bool(noise) and all(one.requires_grad for one in noise)


@torch.no_grad()
def validate_noise(pair: Family, data: Dataset) -> None:
    """Set the noise to that of the validation rows, in place; model in evaluation mode.

    Where q(d) is the exact posterior, which depends on the noise, the two are made to agree.

    Arguments:
        pair: see :func:`has_validated_noise`; its guide is not changed.
        data: of the fit.
    """
    model, guide = pair.model, pair.guide
    if not (guide.closed or guide.sums_out):
        noise = noise_of_rows(model.likelihood, *pair.validation(data), data.y_val)
        _set(model.likelihood, noise)
        return
    training, outputs = (outputs_by_depth(model, x) for x in (data.x_train, data.x_val))
    log_prior = model.get_buffer("log_prior").double()
    for _ in range(10):
        log_p = model.log_prob(training, data.targets).double().sum(1)
        before = {n: p.clone() for n, p in model.likelihood.named_parameters()}
        q = (log_prior + log_p).softmax(0)
        noise = noise_of_rows(model.likelihood, outputs, q, data.y_val)
        _set(model.likelihood, noise)
        if all(torch.allclose(noise[n].to(before[n]), before[n], atol=1e-3) for n in noise):
            break


def _set(likelihood: Likelihood, noise: dict[str, Tensor]) -> None:
    for name, value in noise.items():
        likelihood.get_parameter(name).copy_(value)


@torch.enable_grad()
def noise_of_rows(
    likelihood: Likelihood, outputs: Tensor, weights: Tensor, y: Tensor
) -> dict[str, Tensor]:
    r"""The noise that rows want of a mixture with given outputs: the most probable one.

    .. math:: \arg\max_φ \sum_n \log \sum_s w_s\, p_φ(y_n \mid f_s(x_n)) + m(φ)

    m is :meth:`~pyroccam.models.Likelihood.noise_margin`. The search is a quasi-Newton one in
    double precision, and begins from above, where all components count: from a σ near zero each row
    has one of its own.

    Arguments:
        likelihood: of which nothing is changed.
        outputs: ``(S, N, outputs)``.
        weights: ``(S,)``.
        y: ``(N, T)``.

    Returns:
        by the names in the likelihood's ``noise``, float64; as it is, if no search can begin.
    """
    own = copy.deepcopy(likelihood).cpu().double().requires_grad_(False)
    outputs, weights, y = (t.detach().cpu().double() for t in (outputs, weights, y))
    noise = {name: own.get_parameter(name) for name in own.noise}
    given = {name: value.detach().clone() for name, value in noise.items()}
    log_weights = weights.log().clamp_min(-1e4)
    squared = (own.predicted(outputs) - y).square()
    own.begin_noise(torch.einsum("s,snt->nt", weights, squared).mean(0).sqrt())
    search = torch.optim.LBFGS(
        [value.requires_grad_() for value in noise.values()],
        max_iter=100, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        search.zero_grad()
        found = -own.log_predictive(outputs, log_weights, y).sum() - own.noise_margin()
        found = found / len(y)
        found.backward()
        return found

    if bool(loss().isfinite()):
        search.step(loss)
    found = {name: value.detach() for name, value in noise.items()}
    return found if all(bool(v.isfinite().all()) for v in found.values()) else given
