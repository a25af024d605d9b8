"""What a posterior predicts of each row, from which a smaller network learns as from its label."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ...models.contexts import evaluating
from ...models.likelihoods import Classification, Regression
from ..posterior.draws import draw_outputs
from ..posterior.predict import DRAWS, mixture_log_probs, streamed

if TYPE_CHECKING:
    from .fitting import Fit

__all__ = ["FEW", "Teacher", "teacher_of"]

FEW = 50
"""Fewer validation rows do not tell how sure a network may be, nor how small."""

# What one more row would cost that a network gives a thousandth, in nats.
_MISSED = math.log(1000)


class Teacher(NamedTuple):
    """What draws from the posterior predict on average: probabilities of classes, or targets.

    Attributes:
        train, val: of the rows of both splits, ``(N, C)`` or ``(N, T)``, on their device.
    """

    train: Tensor
    val: Tensor


@torch.no_grad()
def teacher_of(fit: Fit, rival: nn.Module, slack: float = 1.0) -> Teacher | None:
    r"""The mean prediction of the posterior, where it is worth learning from: in a classification
    and in a regression of one noise.

    It is if its loss on the validation rows, the negative log-likelihood of classes or the squared
    error of targets, is on average not above that of a network. Of V < 50 rows that of classes may
    be above by :math:`\log(1000) / (V + 1)` nats: so few a network can all get right and be far
    too sure of them, the more so where it was chosen by them, and the next row may be one that it
    misses. Which rows it gets right is known: the posterior may be wrong on :math:`1 + \sqrt{D}`
    more, where D rows are right by one of the two alone.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`, with validation rows.
        rival: the whole network as numbers.
        slack: how many times as large as its squared error that of targets may be.

    Returns:
        ``None`` where it is not, and for other likelihoods.

    References:
        Korattikara, Rathod, Murphy, Welling 2015, arXiv:1506.04416.
    """
    kind, data = type(fit.model.likelihood), fit.data
    if kind not in (Classification, Regression):
        return None

    def predictive(x: Tensor) -> Tensor:
        outputs = draw_outputs(fit.model, fit.guide, x, DRAWS, seed=fit.settings.seed)
        if kind is Regression:
            return outputs.mean(0)[None]
        return mixture_log_probs(outputs, outputs.new_full((DRAWS,), 1 / DRAWS))[None]

    (val,) = streamed(predictive, data.x_val)
    own = copy.deepcopy(rival).to(data.x_val.device)
    with evaluating(own):
        (other,) = streamed(lambda x: own(x)[None], data.x_val)
    if kind is Regression:
        own_error, error = ((one - data.y_val).square().mean() for one in (val, other))
        worth = bool(own_error <= slack * error)
    else:
        worth = _worth_of_classes(val, other, data.y_val)
    if not worth:
        return None
    (train,) = streamed(predictive, data.x_train)
    return Teacher(train, val) if kind is Regression else Teacher(train.exp(), val.exp())


def _worth_of_classes(val: Tensor, other: Tensor, y: Tensor) -> bool:
    """True if log-probabilities ``(N, C)`` are as good as the other's logits."""
    nll = nn.functional.nll_loss
    more = nll(val, y) - nll(other.log_softmax(-1), y)
    right = (other.argmax(-1) == y).int() - (val.argmax(-1) == y).int()
    errors, allowed = right.sum(), 1 + right.abs().sum().sqrt()
    luck = _MISSED / (len(val) + 1) if len(val) < FEW else 0.0
    return bool(more <= luck and errors <= allowed)
