"""Likelihoods of classes: one of several, one of several in an order, or each for itself."""

from __future__ import annotations

from typing import Annotated

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ...data import Between, Count, checked
from .base import Likelihood

Classes = Annotated[int, Between(2)]


class Classification(Likelihood):
    """``Categorical(logits)`` over ``classes`` classes; targets are integers ``(B,)``."""

    task = "classification"
    word = "categorical"

    @checked
    def __init__(self, classes: Classes) -> None:
        super().__init__()
        self.outputs = classes

    def arguments(self) -> dict[str, int]:
        return {"classes": self.outputs}

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        return dist.Categorical(logits=outputs)

    @property
    def takes_logits(self) -> bool:
        return type(self).forward is Classification.forward

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.log_softmax(-1) if self.takes_logits else super().predicted(outputs)

    @property
    def teaches(self) -> bool:
        return self.takes_logits

    def mean_prediction(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1).mean(0)

    def losses_of(self, outputs: Tensor, taught: Tensor) -> Tensor:
        return -(taught * outputs.log_softmax(-1)).sum(-1)


class Ordinal(Likelihood):
    r"""Classes in an order, by one output and cut points that are learnt: the cumulative logit.

    .. math:: P(y \le k) = σ(c_k - f(x)), \qquad c_0 < c_1 < \dots < c_{C-2}

    Targets are integers ``(B,)``, of which a larger one is more. Cut points begin where classes are
    equally frequent at an output of zero; what lies between two is the exponential of a parameter,
    and so keeps their order.

    Arguments:
        classes: C.

    References:
        McCullagh 1980, Regression models for ordinal data.
    """

    task = "classification"
    word = "ordinal"
    scores = ("rank_mae",)

    @checked
    def __init__(self, classes: Classes) -> None:
        super().__init__()
        self.classes, self.outputs = classes, 1
        cuts = torch.logit(torch.arange(1, classes) / classes)
        self.first = nn.Parameter(cuts[0].clone())
        self.log_gaps = nn.Parameter(cuts.diff().log())

    def arguments(self) -> dict[str, int]:
        return {"classes": self.classes}

    @property
    def cuts(self) -> Tensor:
        """The cut points, ``(C - 1,)``, increasing."""
        return torch.cat([self.first[None], self.first + self.log_gaps.exp().cumsum(0)])

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        return dist.Categorical(logits=self.predicted(outputs))

    def predicted(self, outputs: Tensor) -> Tensor:
        r"""Log-probabilities ``(*batch, C)``, without a difference of probabilities that are near:

        .. math:: σ(b) - σ(a) = σ(b)\, σ(-a)\, (1 - e^{a - b})
        """
        self.refuse_other(outputs)
        above = nn.functional.logsigmoid(outputs - self.cuts)  # log P(y > k)
        below = nn.functional.logsigmoid(self.cuts - outputs)  # log P(y <= k)
        between = torch.log(-torch.expm1(-self.log_gaps.exp()))
        inner = below[..., 1:] + above[..., :-1] + between
        return torch.cat([below[..., :1], inner, above[..., -1:]], -1)


class MultiLabel(Likelihood):
    """``Bernoulli(logits)`` for each of ``labels`` labels; targets are 0 or 1, ``(B, labels)``.

    What is predicted is the probability of each.
    """

    task = "multi-label"
    word = "multi-label"

    @checked
    def __init__(self, labels: Count) -> None:
        super().__init__()
        self.outputs = labels

    def arguments(self) -> dict[str, int]:
        return {"labels": self.outputs}

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        return dist.Bernoulli(logits=outputs).to_event(1)
