"""Findings of a fit on depth: the exact posterior, the chosen depth, how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import Tensor

from ...guides import NetworkGuide
from ...models import BayesianStack, Model, evaluating, log_likelihood_by_depth, seeded
from ...models.networks import closed_form_of
from ..distributed import ALONE, Ranks
from ..elbo import bound
from .structures import Presentable

if TYPE_CHECKING:
    from ...data import Dataset

EQUAL = 0.001
"""Nats of a row within which depths are as good as each other, where weights are random: what many
rows say of a tiny difference is certain, and no reason for another block."""

PASSES = 2
"""Draws of random weights over which the log-likelihood of every row is averaged."""

BATCH = 1024  # rows in a pass

OTHERS = 8
"""Estimates of q(d) from other draws, that show how far one of them is to be believed."""


def exact_depth_posterior(model: Model, data: Dataset, *, ranks: Ranks = ALONE) -> Tensor:
    r""":math:`p(d \mid data) \propto p(d) \prod_n p(y_n \mid x_n, d)` for the present weights.

    Streams over the rows in log space and in evaluation mode; the mode is put back.

    Arguments:
        model: of learnt depth, with weights as they are.
        data: whose training rows these are. A last layer in closed form has evidence of its own,
            of the validation rows, to which no feature was fitted: that takes their place.
        ranks: processes that share the rows, and get the same.

    Returns:
        ``(D + 1,)``, float64, summing to one.

    References:
        Antoran et al. 2020, arXiv:2002.02797 (the formula on their poster, which their code lacks).
    """
    head = closed_form_of(model)
    log_likelihood = sum_by_depth(model, data, ranks) if head is None else head.evidence.double()
    return (model.get_buffer("log_prior").double() + log_likelihood).softmax(0)


def sum_by_depth(model: Model, data: Dataset, ranks: Ranks = ALONE) -> Tensor:
    """``Σ_n log p(y_n | x_n, d)`` over all training rows, in evaluation mode, ``(D + 1,)``,
    float64, in nats. Rows that are streamed pass once, and are not kept.

    Arguments:
        ranks: processes, of which each takes a part of the rows; all have the sum.
    """
    found = []
    with evaluating(model):
        for x, y in data.parts("train"):
            own = ranks.part(len(x))
            sums = log_likelihood_by_depth(model, x[own.rows], y[own.rows])
            found.append(sums if own.weight else torch.zeros_like(sums))
    total = torch.stack(found).sum(0)
    ranks.sum_([total])
    return total


@torch.no_grad()
def depth_posterior_of_weights(
    model: BayesianStack,
    guide: NetworkGuide,
    data: Dataset,
    *,
    kl_weight: float = 1.0,
    seed: int = 0,
    ranks: Ranks = ALONE,
) -> Tensor:
    r"""The best q(d) beside the present factors of random weights, of the training rows,

    .. math:: q(d) \propto p(d) \exp\big( \textstyle\sum_n E_q \log p(y_n \mid x_n, d) / β
              - \sum_{l \le d} KL_l \big).

    The expectation is a mean over a few draws, which all depths share, in evaluation mode.

    Arguments:
        model, guide: a pair.
        kl_weight: β, the weight of the KL in the objective.
        seed: of the draws; the state of the generator is left as it was.
        ranks: processes that share the rows, each with draws of its own, and get the same.

    Returns:
        ``(D + 1,)``, float64, summing to one.
    """
    evaluate = bound(model, guide)
    prior = model.log_prior.double()
    total, cost, passes = torch.zeros_like(prior), torch.zeros_like(prior), 0
    quiet = pyro.validation_enabled(False)
    with evaluating(model), evaluating(guide), seeded(ranks.seed(seed), data.device), quiet:
        for part, y in _small_parts(data, ranks):
            for _ in range(PASSES):
                found = evaluate.terms(part, y).by_site
                rows = found["y"].double().flatten(1).sum(1)
                total += rows / (PASSES * kl_weight)
                passes += 1  # where the KL is of draws, it takes many to know it
                if "depth" in found:
                    cost += found["depth"].double().flatten()
    number = torch.tensor(float(passes), dtype=prior.dtype, device=prior.device)
    ranks.sum_([total, cost, number])
    return (prior + total - cost / number.clamp_min(1)).softmax(0)


def _small_parts(data: Dataset, ranks: Ranks) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of all training rows, a pass at a time; of several processes each has a
    part of them."""
    for whole in data.parts("train"):
        for x, y in zip(*(t.split(BATCH) for t in whole), strict=True):
            part = ranks.part(len(x))
            if part.weight:
                yield x[part.rows], y[part.rows]


def choose_depth(probs: Tensor, threshold: float = 0.95) -> int:
    r"""The 95 % rule: :math:`\min \{ i : q_i \ge threshold \cdot \max_j q_j \}`.

    Arguments:
        probs: q(d), ``(D + 1,)``.
        threshold: in (0, 1]; 1 is the mode.

    References:
        Antoran et al. 2020, arXiv:2002.02797. (Their code has > in place of >=.)

    Example:
        >>> choose_depth(torch.tensor([0.1, 0.39, 0.4, 0.11]))
        1
    """
    return int((probs >= threshold * probs.max()).nonzero()[0])


def slack(rows: int, kl_weight: float) -> float:
    """What the share of a rule is multiplied by where weights are random: depths that are as good
    as each other differ by so much in q(d)."""
    return math.exp(max(-EQUAL * rows / kl_weight, -600.0))


def total_variation(p: Tensor, q: Tensor) -> float:
    """``½ Σ |p - q|``, in [0, 1]."""
    return float(0.5 * (p.double().cpu() - q.double().cpu()).abs().sum())


@dataclass(frozen=True)
class DepthStructure(Presentable):
    """The learnt depth.

    Attributes:
        depth_probs: q(d), ``(D + 1,)``.
        exact_depth_probs: the exact posterior at the final weights, ``(D + 1,)``. Of random weights
            q is itself an estimate from a few draws, and this is the mean of those from others.
        depth_chosen: by the 95 % rule on q.
        depth_chosen_exact: by the same rule on the exact posterior.
        depth_expected: E_q[d].
        depth_rounded_mean: that, rounded, the other rule of the source (their "LDN-E").
        tv_to_exact: total variation between the two; the mean of that to each estimate.
        tv_error, log_errors: of random weights, standard errors of that, and by depth of the
            logarithm of its ``exact_depth_probs`` over that of the depth chosen, in nats.
        agreement: the share of the estimates by which the same depth is chosen.
        threshold: of the rule.
        running_depth_probs: the running estimate that trained the weights, before the exact
            posterior took its place at the chosen checkpoint (closed-form update only).
        tv_running: total variation between that estimate and the exact posterior.
        depth_chosen_running: by the 95 % rule on that estimate.
    """

    depth_probs: Tensor
    exact_depth_probs: Tensor
    depth_chosen: int
    depth_chosen_exact: int
    depth_rounded_mean: int
    depth_expected: float
    tv_to_exact: float
    threshold: float
    running_depth_probs: Tensor | None = None
    tv_running: float | None = None
    depth_chosen_running: int | None = None
    tv_error: float | None = None
    log_errors: Tensor | None = None
    agreement: float | None = None
    title = "Depth"

    @property
    def choice(self) -> int:
        """The chosen depth."""
        return self.depth_chosen

    @property
    def certainty(self) -> float:
        """Its probability under q."""
        return float(self.depth_probs[self.depth_chosen])

    def sentences(self) -> list[str]:
        """What was learnt, in words."""
        d, deepest = self.depth_chosen, len(self.depth_probs) - 1
        rule = (
            f"the first depth whose probability is within {self.threshold:.0%} of the largest"
            if self.agreement is None
            else f"no deeper one has a bound that is more than {EQUAL:g} nats of a row better"
        )
        running = (
            f" (of the running estimate of q in training {self.tv_running:.3f})"
            if self.tv_running is not None
            else ""
        )
        return [
            f"Depth {d} of {deepest} was chosen: {rule}. q(d={d}) = {self.certainty:.3f}; "
            f"E[d] = {self.depth_expected:.1f}; depths below {d} together have probability "
            f"{float(self.depth_probs[:d].sum()):.3f}.",
            f"{self._beside()}{running}.",
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The depth that was chosen beside that of the exact posterior, or of other draws."""
        other = "by the exact posterior" if self.agreement is None else "by other draws"
        return [
            {
                "chosen depth": self.depth_chosen,
                other: self.depth_chosen_exact,
                "expected depth": round(self.depth_expected, 2),
                "of": len(self.depth_probs) - 1,
            }
        ]

    @classmethod
    def from_probs(
        cls, q: Tensor, exact: Tensor, threshold: float = 0.95, running: Tensor | None = None
    ) -> DepthStructure:
        """Summarise q (and the running estimate of it, if any) beside the exact posterior, or
        beside independent estimates of it ``(S, D + 1)``."""
        q, each = q.detach().double().cpu(), torch.atleast_2d(exact.detach().double().cpu())
        apart = torch.tensor([total_variation(q, p) for p in each], dtype=torch.float64)
        chosen, exact, others = choose_depth(q, threshold), each[0], {}
        if (count := len(each)) > 1:
            ratios = each.clamp_min(1e-300).log()
            ratios = ratios - ratios[:, [chosen]]
            exact = ratios.mean(0).softmax(0)
            others = {
                "tv_error": float(apart.std()) / count**0.5,
                "log_errors": ratios.std(0) / count**0.5,
                "agreement": sum(choose_depth(p, threshold) == chosen for p in each) / count,
            }
        if running is not None:
            others["running_depth_probs"] = running = running.detach().double().cpu()
            others["tv_running"] = total_variation(running, exact)
            others["depth_chosen_running"] = choose_depth(running, threshold)
        mean = float((q * torch.arange(len(q))).sum())
        return cls(
            q, exact, chosen, choose_depth(exact, threshold), round(mean), mean,
            float(apart.mean()), threshold, **others,
        )  # fmt: skip

    def to_json(self) -> dict[str, object]:
        """Plain numbers for a result file."""
        return {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }

    def _beside(self) -> str:
        """How far a chosen depth is to be believed, in words."""
        other, apart = self.depth_chosen_exact, f"{self.tv_to_exact:.3f}"
        if self.agreement is None:
            return (
                f"Exact posterior given the weights: depth {other}; total variation between it "
                f"and q {apart}"
            )
        return (
            f"q is an estimate from {PASSES} draws of the weights. {OTHERS} such estimates from "
            f"other draws: {self.agreement:.0%} choose this depth, their mean depth {other}; total "
            f"variation between one of them and q {apart} ± {self.tv_error:.3f}"
        )

    def __str__(self) -> str:
        q = self.depth_probs
        return (
            f"depth {self.depth_chosen} of {len(q) - 1} (q = {q[self.depth_chosen]:.3f}, "
            f"P(d <= {self.depth_chosen}) = {q[: self.depth_chosen + 1].sum():.3f}, "
            f"E[d] = {self.depth_expected:.1f}). {self._beside()}"
        )
