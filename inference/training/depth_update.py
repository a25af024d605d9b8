"""The closed-form update of q(d): a running, damped estimate of the exact posterior."""

from __future__ import annotations

import torch
from torch import Tensor


class IncrementalPosterior:
    r"""Follows ``p(d | data, weights)`` while the weights move.

    For fixed weights the ELBO over q(d) is maximal at the exact posterior
    :math:`q^*(d) \propto p(d) \prod_n p(y_n \mid x_n, d)`. The log-likelihood of every observation
    at every depth is kept as it was last seen, so that their sum over n is known at each minibatch
    without its sampling noise, only slightly stale. The logits η of q then make a damped step

    .. math:: η \leftarrow (1 - ρ)\, η + ρ\, (\log p + \textstyle\sum_n \ell_n),

    which is a natural-gradient step of size ρ on the ELBO. Damping matters: with ρ = 1 and a full
    batch the weights would follow the gradient of the marginal likelihood, which collapses.

    Where weights are random, the expectation of the log-likelihood takes its place (its draws are
    averaged over the rows), and what the weights up to a depth cost, their KL, is taken from it:

    .. math:: η \leftarrow (1 - ρ)\, η
              + \tfrac{ρ}{T} (\log p + \textstyle\sum_n \ell_n / β - KL_{\le d}),

    where β is the weight of the KL in the objective, and T a temperature that falls to one: a block
    costs thousands of nats until its posterior has settled, and would be left before it had.

    Arguments:
        logits: of q, ``(*K, D + 1)``, in the storage of the guide (of K guides); they are moved.
        log_prior: ``(*K, D + 1)``.
        size: N.
        rate: ρ, in (0, 1].

    References:
        Neal and Hinton (1998), A view of the EM algorithm that justifies incremental, sparse, and
        other variants. Hoffman, Blei, Wang, Paisley (2013), Stochastic variational inference, JMLR
        14, for the natural gradient. The derivation is in ``tests/inference/test_depth.py``.
    """

    def __init__(self, logits: Tensor, log_prior: Tensor, size: int, rate: float) -> None:
        self.logits = logits.detach()
        self.rate = rate
        self.log_prior = log_prior
        self.table = log_prior.new_zeros(*log_prior.shape, size)
        self.seen = log_prior.new_zeros(*log_prior.shape[:-1], size, dtype=torch.bool)
        # Float64: increments of millions of steps must not drift.
        self.total = torch.zeros_like(log_prior, dtype=torch.float64)

    @torch.no_grad()
    def observe(self, rows: Tensor | None, log_likelihood: Tensor) -> None:
        """Take in the log-likelihoods ``(*K, D + 1, B)`` of rows ``(*K, B)``, or of all."""
        now = log_likelihood.to(self.table.dtype)
        if rows is None:
            self.table.copy_(now)
            self.total.copy_(now.sum(-1, dtype=torch.float64))
            self.seen.fill_(True)
            return
        where = rows.unsqueeze(-2).expand(now.shape)
        before = self.table.gather(-1, where)
        self.total += (now.double() - before.double()).sum(-1)
        self.table.scatter_(-1, where, now)
        self.seen.scatter_(-1, rows, True)

    @torch.no_grad()
    def step(
        self,
        complete: bool = True,
        costs: Tensor | None = None,
        kl_weight: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        """One damped step of q towards the present estimate, at β and T.

        Arguments:
            complete: every row has been seen (spares the count).
            costs: KL of the weights that each depth uses, ``(*K, D + 1)``; of weights that are
                numbers there is none.
        """
        total = self.total / kl_weight if kl_weight != 1.0 else self.total
        if not complete:
            total = total * self._share()
        target = self.log_prior + total
        if costs is not None:
            target = target - costs.double()
        if temperature != 1.0:
            target = target / temperature
        target = target.to(self.logits.dtype)
        rate = self.rate
        # Both sides normalised, so that the damping mixes log probabilities.
        mixed = (1 - rate) * self.logits.log_softmax(-1) + rate * target.log_softmax(-1)
        self.logits.copy_(mixed.log_softmax(-1))

    def _share(self) -> Tensor:
        """All rows over those seen so far."""
        return self.seen.shape[-1] / self.seen.sum(-1, keepdim=True).clamp_min(1)

    _KEPT: tuple[str, ...] = ("table", "seen", "total")

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self._KEPT}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self._KEPT:
            getattr(self, name).copy_(state[name])


class BlockPosterior(IncrementalPosterior):
    r"""The same with a sum for each block of rows in place of every row, so that its memory does
    not grow with N.

    Rows of a block come close to each other in an epoch. Of a block of b rows of which c have come
    in this pass, with the sum s over these, and S over the block in the pass before,

    .. math:: s + (1 - c / b)\, S

    stands for its sum. It is exact where c is 0 or b, which is nearly all blocks at any time: only
    the rows that a source shuffles among each other at present are on their way. Of n rows on their
    way the estimate of a difference between two depths is off by at most about
    :math:`\tfrac12 \sqrt{n}` standard deviations of that difference over rows (half of them drawn
    without replacement, the sum of the others scaled from all), whatever N is; without that,
    it is as stale as with a table of all rows, and no more.

    Arguments:
        edges: rows at which blocks begin, and N ``(blocks + 1,)``.
    """

    def __init__(self, logits: Tensor, log_prior: Tensor, edges: Tensor, rate: float) -> None:
        super().__init__(logits, log_prior, len(edges) - 1, rate)
        self.edges = edges.to(log_prior.device)
        self.sizes = self.edges.diff()
        self.coming = torch.zeros_like(self.table)
        self.count = torch.zeros_like(self.sizes)
        self.seen = torch.zeros_like(self.sizes[:1])  # rows, and not which

    _KEPT = ("table", "coming", "count", "seen", "total")

    @torch.no_grad()
    def observe(self, rows: Tensor | None, log_likelihood: Tensor) -> None:
        every = torch.arange(int(self.edges[-1]), device=self.edges.device)
        (numbers,) = every[None] if rows is None else rows
        blocks, place = torch.bucketize(numbers, self.edges[1:], right=True).unique(
            return_inverse=True
        )
        before = self._estimate(blocks)
        now = log_likelihood.to(self.table.dtype)
        sums = now.new_zeros(*now.shape[:-1], len(blocks)).index_add_(-1, place, now)
        self.coming[..., blocks] += sums
        self.count[blocks] += place.bincount(minlength=len(blocks))
        whole = blocks[self.count[blocks] >= self.sizes[blocks]]
        self.table[..., whole] = self.coming[..., whole]
        self.coming[..., whole] = 0
        self.count[whole] = 0
        self.total += (self._estimate(blocks) - before).sum(-1)
        self.seen += len(numbers)

    def _estimate(self, blocks: Tensor) -> Tensor:
        """Sums of blocks, ``(1, D + 1, blocks)``, float64."""
        left = 1.0 - self.count[blocks].double() / self.sizes[blocks]
        return self.coming[..., blocks].double() + left * self.table[..., blocks].double()

    def _share(self) -> Tensor:
        return self.edges[-1].double() / self.seen.clamp_min(1)
