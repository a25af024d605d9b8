"""The noise of a likelihood that rows want, for outputs that stay as they are."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from .base import Likelihood

# The density that a σ of n rows loses on a new one is about 1 / (2 n) nats for each target.
LEAST_ROWS = 10


def learns_noise(likelihood: Likelihood) -> bool:
    """True for a likelihood that has noise, where all of it is learnt."""
    noise = [likelihood.get_parameter(name) for name in likelihood.noise]
    return bool(noise) and all(one.requires_grad for one in noise)


@torch.no_grad()
def set_noise(likelihood: Likelihood, noise: dict[str, Tensor]) -> None:
    """Give a likelihood its noise, by name, in place."""
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
