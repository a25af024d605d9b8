"""What a posterior predicts of each row, from which a smaller network learns as from its label."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor, nn

from ...models.likelihoods import Likelihood
from ..posterior import DRAWS, outputs_of_rows, streamed

if TYPE_CHECKING:
    from ...data import Dataset
    from .result import Fit

FEW = 50
"""Fewer validation rows do not tell how sure a network may be, nor how small."""

SLACK = 1.1
"""How many times as large as that of a network the squared error of a teacher may be."""

UNSEEN = 0.5
"""As part of a row, a label at random that few validation rows are given beside their own."""


class Teacher(NamedTuple):
    """What draws from the posterior predict on average: probabilities of classes, or targets.

    Attributes:
        train, val: of the rows of both splits, ``(N, C)`` or ``(N, T)``, on their device.
        net: the plain network that predicts them, of which blocks are learnt from, too.
    """

    train: Tensor
    val: Tensor
    net: nn.Module | None = None

    def behind(self, data: Dataset) -> Dataset:
        """The same data, with what is said of a row behind its label or targets,
        ``(N, 1 + C)`` or ``(N, 2 T)``."""
        splits = (("y_train", data.y_train, self.train), ("y_val", data.y_val, self.val))
        joined = {n: torch.cat([y.to(t).reshape(len(y), -1), t], 1) for n, y, t in splits}
        return data.but(**joined)


class Taught(TorchDistribution):
    """Labels, and what a teacher says of them: each has half of the density, as a logarithm.

    It is the loss of a network that learns from both, and is not drawn from.

    Arguments:
        likelihood: of labels.
        outputs: of the network, ``(B, outputs)``.
        said: numbers that the teacher says of a row, which stand behind its label or targets.
        apart: what else a row costs, ``(B,)``.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)
    support = constraints.real_vector

    def __init__(
        self, likelihood: Likelihood, outputs: Tensor, said: int, apart: Tensor | float = 0.0
    ) -> None:
        self.likelihood, self.outputs, self.said, self.apart = likelihood, outputs, said, apart
        self.made = likelihood(outputs)
        labels = self.made.event_shape.numel()
        shapes = self.made.batch_shape, torch.Size([labels + said])
        super().__init__(*shapes, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(B,)``."""
        labels, said = parted(value, self.likelihood, self.said)
        found: Tensor = self.made.log_prob(labels) - self.likelihood.losses_of(self.outputs, said)
        return found / 2 - self.apart


def parted(y: Tensor, likelihood: Likelihood, said: int) -> tuple[Tensor, Tensor]:
    """Labels ``(B,)`` or targets ``(B, T)``, and what a teacher says behind them."""
    if not said:
        return y, y[..., :0]
    labels = y[..., :-said]
    return labels[..., 0].long() if likelihood.task == "classification" else labels, y[..., -said:]


@torch.no_grad()
def teacher_of(fit: Fit, net: nn.Module | None = None) -> Teacher | None:
    """The mean prediction of the posterior, or what a network predicts, in a classification and in
    a regression of one noise; ``None`` for other likelihoods, and of streamed rows: all that is
    predicted of them would have to be kept.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`, with validation rows.
        net: a plain network, which teaches in place of the posterior.

    References:
        Korattikara, Rathod, Murphy, Welling 2015, arXiv:1506.04416.
    """
    like, data = fit.model.likelihood, fit.data
    if not like.teaches or data.streamed:
        return None

    own = None if net is None else copy.deepcopy(net).to(data.device)

    def predictive(x: Tensor) -> Tensor:
        outputs = fit.posterior.outputs(x, DRAWS) if own is None else outputs_of_rows(own, x)[None]
        return like.mean_prediction(outputs)[None]

    train, val = (streamed(predictive, x, data.fields)[0] for x in (data.x_train, data.x_val))
    return Teacher(train, val, own)


@torch.no_grad()
def may_teach(teacher: Teacher, fit: Fit, rival: nn.Module) -> bool:
    r"""True if the validation rows do not speak against learning from a teacher.

    They do in a regression if its squared error is above that of a network, or with 50 rows or more
    above 1.1 times that: targets are the other half of what is learnt. They do in a classification
    only where they are fewer than 50, and its loss on them is above that of the network,

    .. math:: -\frac{1}{V + a} \sum_{n=1}^{V} \Bigl(\log p_n(y_n)
              + \frac{a}{V C} \sum_{c=1}^{C} \log p_n(c)\Bigr), \qquad a = \tfrac12,

    with half a row more, whose label is any of the C at random: a network can get all of few rows
    right and be far too sure of them, the more so where it was chosen by them.

    Arguments:
        rival: the whole network as numbers.

    References:
        Szegedy et al. 2016, arXiv:1512.00567, for such a loss of smoothed labels. Its half a row
        was chosen on two of the sets of ``experiments.trials.strangers``.
    """
    val, y, like = teacher.val, fit.data.y_val, fit.model.likelihood
    few = len(y) < FEW
    if like.task == "classification" and not few:
        return True
    own = copy.deepcopy(rival).to(y.device)
    other = like.predicted(outputs_of_rows(own, fit.data.x_val))
    if like.task != "classification":
        slack = 1.0 if few else SLACK
        return bool((val - y).square().mean() <= slack * (other - y).square().mean())
    least, part = torch.finfo(val.dtype).tiny, UNSEEN / (len(y) + UNSEEN)
    own_loss, others = (
        nn.functional.cross_entropy(logs, y, label_smoothing=part)
        for logs in (val.clamp_min(least).log(), other)
    )
    return bool(own_loss <= others)
