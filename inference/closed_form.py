"""The closed-form update of q(d): a running, damped estimate of the exact posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from ..guides.depth import CategoricalDepth

__all__ = ["IncrementalPosterior"]


class IncrementalPosterior:
    r"""Follows ``p(d | data, weights)`` while the weights move.

    For fixed weights the ELBO over q(d) is maximal at the exact posterior
    :math:`q^*(d) \propto p(d) \prod_n p(y_n \mid x_n, d)`. The log-likelihood of every observation
    at every depth is kept as it was last seen, so that their sum over n is known at each minibatch
    without its sampling noise, only slightly stale. The logits η of q then make a damped step

    .. math:: η \leftarrow (1 - ρ)\, η + ρ\, (\log p + \textstyle\sum_n \ell_n),

    which is a natural-gradient step of size ρ on the ELBO. Damping matters: with ρ = 1 and a full
    batch the weights would follow the gradient of the marginal likelihood, which collapses.

    Arguments:
        guide: whose logits move.
        log_prior: ``(D + 1,)``.
        size: N.
        rate: ρ, in (0, 1].

    References:
        Neal and Hinton (1998), A view of the EM algorithm that justifies incremental, sparse, and
        other variants. Hoffman, Blei, Wang, Paisley (2013), Stochastic variational inference, JMLR
        14, for the natural gradient. The derivation is in ``tests/inference/test_closed_form.py``.
    """

    def __init__(self, guide: CategoricalDepth, log_prior: Tensor, size: int, rate: float) -> None:
        self.guide = guide
        self.rate = rate
        self.log_prior = log_prior
        depths = log_prior.shape[0]
        self.table = torch.zeros(depths, size, device=log_prior.device)  # (D + 1, N)
        self.seen = torch.zeros(size, dtype=torch.bool, device=log_prior.device)
        # Float64: increments of millions of steps must not drift.
        self.total = torch.zeros(depths, dtype=torch.float64, device=log_prior.device)

    @torch.no_grad()
    def observe(self, rows: Tensor | None, log_likelihood: Tensor) -> None:
        """Take in the log-likelihoods ``(D + 1, B)`` of some rows (all of them if ``None``)."""
        if rows is None:
            self.table.copy_(log_likelihood)
            self.total = log_likelihood.double().sum(1)
            self.seen.fill_(True)
            return
        self.total += (log_likelihood.double() - self.table[:, rows].double()).sum(1)
        self.table[:, rows] = log_likelihood
        self.seen[rows] = True

    @torch.no_grad()
    def step(self, complete: bool = True) -> None:
        """One damped step of q towards the present estimate.

        Arguments:
            complete: every row has been seen (spares the count).
        """
        total = self.total
        if not complete:
            total = total * (self.seen.numel() / self.seen.sum().clamp_min(1))
        target = (self.log_prior + total).to(self.guide.logits.dtype)
        rate = self.rate
        # Both sides normalised, so that the damping mixes log probabilities.
        mixed = (1 - rate) * self.guide.logits.log_softmax(0) + rate * target.log_softmax(0)
        self.guide.logits.copy_(mixed.log_softmax(0))

    def state_dict(self) -> dict[str, Tensor]:
        return {"table": self.table, "seen": self.seen, "total": self.total}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.table.copy_(state["table"])
        self.seen.copy_(state["seen"])
        self.total.copy_(state["total"])
