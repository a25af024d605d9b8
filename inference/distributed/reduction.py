r"""The loss and gradient of a batch from those of its parts, and buffers that agree again.

The bound of process r on its part of the batch, :math:`B_r` of B rows, is
:math:`L_r = (β\, KL - \tfrac{N}{B_r} \sum_{n \in r} \ell_n) / N`, by the noise of r. Then

.. math:: \sum_r \tfrac{B_r}{B} L_r
          = \big(β\, \overline{KL} - \tfrac{N}{B} \textstyle\sum_n \ell_n\big) / N

is that of the whole batch: the KL counts once (the mean over processes, where it is of draws), each
row by the noise of the process that has it. Without noise it is the number that one process finds,
in another order of the sum; with noise the expectation is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .ranks import Part, Ranks


@torch.no_grad()
def add_up(
    ranks: Ranks,
    part: Part,
    rows: int,
    loss: Tensor,
    grads: Sequence[Tensor],
    by_row: Tensor | None = None,
    costs: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Put the gradients of the whole batch in place of those of this process's part.

    All that is given passes in one message (for each kind of number).

    Arguments:
        part: of this process, of a batch of so many ``rows``; all else is of it.
        loss: ``()`` or ``(K,)`` for K replicates.
        grads: changed in place.
        by_row: log-likelihoods, ``(*, B_r)``, in nats.
        costs: a KL, in nats, which may be of draws.

    Returns:
        the loss of the batch; the log-likelihoods of all its rows, ``(*, B)``; the mean cost.
    """
    loss = loss.clone()
    means = [*grads, loss]
    if costs is not None:
        costs = costs.clone()
        means.append(costs)
    for t in means:
        if part.weight:
            t.mul_(part.weight)
        else:
            t.zero_()  # whatever it is, NaN among it
    if by_row is None:
        ranks.sum_(means)
        return loss, None, costs
    whole = by_row.new_zeros(*by_row.shape[:-1], rows)
    if part.weight:
        whole[..., part.rows] = by_row
    ranks.sum_([*means, whole])
    return loss, whole, costs


@torch.no_grad()
def average_(ranks: Ranks, buffers: Sequence[Tensor]) -> None:
    """Replace buffers by their means over all processes, in place; those that are no real numbers
    by the first process's. What is the same everywhere keeps its bits, infinities among it.

    A running mean of batch statistics is linear in them: its mean is the running mean of the means.
    """
    if ranks.size == 1:
        return
    base = [t.clone() for t in buffers]
    ranks.spread_(base)
    pairs = list(zip(buffers, base, strict=True))
    moved = [torch.where(t == b, 0.0, t - b) for t, b in pairs if t.is_floating_point()]
    ranks.sum_(moved)
    steps = iter(moved)
    for t, b in pairs:
        t.copy_(b + next(steps) / ranks.size if t.is_floating_point() else b)
