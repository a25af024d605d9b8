"""Training of what a cut left, as numbers: what stays makes up for what went."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from ...data.errors import PyroccamError
from ...models.contexts import evaluating, seeded
from ...models.layers.affine import AFFINE
from ...models.layers.choice import order_of_use
from ...models.likelihoods import Likelihood
from ...models.likelihoods.noise import LEAST_ROWS
from ...models.networks.normalisation import with_held_statistics
from ..posterior.predict import streamed, validated
from ..training.plain_step import PlainStep, set_values, values_of
from ..training.settings import learning_rate_factor
from .teacher import Teacher

if TYPE_CHECKING:
    from .fitting import Fit

__all__ = [
    "RATES",
    "PlainTraining",
    "Retrained",
    "retrain",
    "row_changes",
    "row_losses",
    "temperature_of_rows",
    "tempered",
]


RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates that are tried, of which the validation rows take one."""

_EVALUATIONS = 20  # at most, of a training


@dataclass(frozen=True)
class Retrained:
    """What training a cut network as numbers has changed.

    Attributes:
        net: the best of the networks, the cut one among them, in evaluation mode, on the CPU.
        before: mean loss of the validation rows before, in nats (:func:`row_losses`).
        losses: that of each row now.
        lr: the learning rate that was best, or ``None`` if the cut network was better than all.
    """

    net: nn.Module
    before: float
    losses: Tensor
    lr: float | None

    def to_json(self) -> dict[str, float | None]:
        """What a result file says of it."""
        after = float(self.losses.mean())
        return {"val_nll_before": self.before, "val_nll_after": after, "lr": self.lr}


def retrain(
    net: nn.Module,
    fit: Fit,
    epochs: int,
    rates: Sequence[float] = RATES,
    teacher: Teacher | None = None,
) -> Retrained:
    """Train a network that was cut from a fit, on the fit's data.

    Zeros stay zeros, so nothing that was cut comes back. Checkpoint and learning rate are chosen
    on the validation rows, and the network as it was is kept if that is no better.

    Arguments:
        net: a plain network.
        fit: the one that it was cut from.
        epochs: passes over the training rows for each learning rate, which falls along a cosine.
        rates: learning rates that are tried.
        teacher: whose predictions are learnt along with the labels, each for half of the loss.

    Raises:
        PyroccamError: for data without validation rows.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626: pruned networks are retrained.
        Hinton, Vinyals, Dean 2015, arXiv:1503.02531: what a teacher predicts says more than labels.
    """
    data = fit.data
    if not len(data.x_val):
        raise PyroccamError(
            "To train the cut network further needs validation rows, by which it is seen whether "
            "that helps: load the data with a val_fraction=, or leave out retrain_epochs=."
        )
    return PlainTraining(net, fit, teacher).best(epochs, rates)


class PlainTraining:
    """Training as everybody does it, by AdamW along a cosine: there is nothing random to integrate
    over, and Pyro would only take time.

    Arguments:
        net: with which every training begins; it stays as it is.
        fit: whose data, likelihood, batch size and seed are taken.
        teacher: see :func:`retrain`.

    Attributes:
        before: losses of the validation rows of ``net``.
    """

    def __init__(self, net: nn.Module, fit: Fit, teacher: Teacher | None = None) -> None:
        self._net, self._fit, self._teacher = net, fit, teacher
        self.before = row_losses(net, fit, teacher)
        own = with_held_statistics(copy.deepcopy(net).to(fit.data.device).train())
        like = copy.deepcopy(fit.model.likelihood).requires_grad_(True)
        self._own, self._step = own, PlainStep(own, like, _losses)

    def __call__(self, epochs: int, lr: float) -> tuple[nn.Module, Tensor]:
        """The network at the best of the epochs that are looked at, and its validation losses;
        without validation rows that of the last epoch, and none."""
        self._step.restart()
        with seeded(self._fit.settings.seed, self._fit.data.device):
            kept, losses = self._train(epochs, lr)
        found = copy.deepcopy(self._net)
        set_values(found, kept)
        return found.cpu().eval(), losses

    def best(self, epochs: int, rates: Sequence[float]) -> Retrained:
        """The best of the trainings at several rates, and of the network as it was."""
        best = Retrained(self._net, float(self.before.mean()), self.before, None)
        for lr in rates:
            found, losses = self(epochs, lr)
            if losses.mean() < best.losses.mean():
                best = Retrained(found, best.before, losses, lr)
        return best

    def _train(self, epochs: int, lr: float) -> tuple[dict[str, Tensor], Tensor]:
        fit, teacher, net = self._fit, self._teacher, self._own
        steps, done = epochs * -(-fit.data.N // fit.settings.batch_size), 0
        every = max(1, epochs // _EVALUATIONS)
        best, kept = self.before, values_of(net)
        for epoch in range(1, epochs + 1):
            for batch in self._batches(epoch):
                if len(batch[0]) > 1:  # batch normalisation needs two
                    self._step(*batch, lr * learning_rate_factor("cosine", done / steps))
                done += 1
            if epoch % every == 0 or epoch == epochs:
                losses = row_losses(net, fit, teacher)
                if not len(losses) or losses.mean() < best.mean():
                    best, kept = losses, values_of(net)
        return kept, best

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
        """Inputs, targets, weights and what a teacher predicts of them, of all rows once."""
        data, size = self._fit.data, self._fit.settings.batch_size
        if data.streamed:  # which have no teacher
            bounds = [(i, min(i + size, data.N)) for i in range(0, data.N, size)]
            for _, x, y in data.batches(self._fit.settings.seed, epoch, bounds):
                yield x, *data.parted(y), None
            return
        (x, y), weights = data.split("train"), data.weights
        taught = None if self._teacher is None else self._teacher.train
        for rows in torch.randperm(len(x)).to(x.device).split(size):
            yield (
                x[rows],
                y[rows],
                None if weights is None else weights[rows],
                None if taught is None else taught[rows],
            )


@torch.no_grad()
def row_losses(net: nn.Module, fit: Fit, teacher: Teacher | None = None) -> Tensor:
    """Negative log-likelihood of each validation row, ``(N,)``, at the noise or temperature that
    suits them, with which a network is handed back: one that is right and too sure is not worse
    than one that is wrong. With a teacher it is the mean with the cross-entropy of what the teacher
    predicts."""
    data = fit.data
    if not len(data.x_val):
        return torch.zeros(0, dtype=torch.double)
    net = copy.deepcopy(net).to(data.x_val.device)
    like = validated(fit.model.likelihood, net, data)
    with evaluating(net):
        (outputs,) = streamed(lambda part: net(part)[None], data.x_val)
    if like.takes_logits and len(outputs) >= LEAST_ROWS:
        outputs = outputs / max(1.0, temperature_of_rows(outputs, data.y_val))
    taught = None if teacher is None else teacher.val
    return _losses(like, outputs, data.y_val, taught).double().cpu()


@torch.no_grad()
def row_changes(net: nn.Module, other: nn.Module, fit: Fit) -> Tensor:
    r"""How far another network predicts from what a network does, on each validation row.

    .. math:: \mathrm{KL}(p_n \,\|\, q_n), \qquad p_n = p(y \mid f(x_n)),\ q_n = p(y \mid g(x_n)),

    with the noise that suits the first: so many nats dearer are labels, on average, that follow the
    first prediction. Those of the validation rows are not looked at, as a small change moves the
    losses of a few rows up or down by luck.

    Arguments:
        net, other: f and g.
        fit: with validation rows.

    Returns:
        ``(N,)``, in nats, float64; where the divergence of the likelihood has no closed form, the
        absolute differences of the losses of the labels that there are.

    References:
        Kullback, Leibler 1951, "On Information and Sufficiency".
    """
    x, y = fit.data.split("val")

    def outputs(one: nn.Module) -> Tensor:
        with evaluating(one):
            (found,) = streamed(lambda part: one(part)[None], x)
        return found.double()

    first, second = (copy.deepcopy(one).to(x.device) for one in (net, other))
    like = validated(fit.model.likelihood, first, fit.data)
    p, q = like(outputs(first)), like(outputs(second))
    try:
        found: Tensor = kl_divergence(p, q)
    except NotImplementedError:
        found = (p.log_prob(y) - q.log_prob(y)).abs()
    return found.double().cpu()


def _losses(like: Likelihood, outputs: Tensor, y: Tensor, taught: Tensor | None) -> Tensor:
    """Losses of rows ``(B,)``; ``taught`` are probabilities of classes ``(B, C)``, or targets."""
    losses: Tensor = -like(outputs).log_prob(y)
    return losses if taught is None else (losses + like.losses_of(outputs, taught)) / 2


@torch.no_grad()
def tempered(net: nn.Module, fit: Fit) -> tuple[nn.Module, float]:
    """A network whose logits are divided by the temperature that suits the validation rows, and
    that temperature, which is part of the last layer. It is at least 1: rows by which a network
    was chosen make it look better than it is. Where no layer gives the logits, or one that is
    frozen, they stay.

    References:
        Guo, Pleiss, Sun, Weinberger 2017, arXiv:1706.04599.
    """
    x, y = fit.data.x_val.cpu(), fit.data.y_val.cpu()
    if not fit.model.likelihood.takes_logits or len(x) < LEAST_ROWS:
        return net, 1.0
    with evaluating(net):
        (logits,) = streamed(lambda part: net(part)[None], x)
    temperature = max(1.0, temperature_of_rows(logits, y))
    own = copy.deepcopy(net)
    names = [name for name, one in own.named_modules() if type(one) in AFFINE]
    last: Any = own.get_submodule(order_of_use(own, names, x[:2])[-1])
    if not last.weight.requires_grad:
        return net, 1.0
    last.weight /= temperature
    if last.bias is not None:
        last.bias /= temperature
    with evaluating(own):
        (found,) = streamed(lambda part: own(part)[None], x)
    if not torch.allclose(found, logits / temperature, rtol=1e-3, atol=1e-4):
        return net, 1.0
    return own, temperature


def temperature_of_rows(logits: Tensor, y: Tensor, spread: float = 0.5) -> float:
    r"""The temperature that suits the logits of rows that no weight was fitted to.

    .. math:: \hat T = \arg\min_T -\sum_n \log\mathrm{softmax}(z_n / T)_{y_n}
              + \frac{(\log T)^2}{2 s^2}

    The second term, a log-normal prior around 1, keeps the temperature of a few rows near 1: where
    all of them are right, the likelihood alone would have none at all. In log T the objective is
    minimised between 1/20 and 20.

    Arguments:
        logits: ``(N, C)``.
        y: labels ``(N,)``.
        spread: s, of the prior's log T.

    References:
        Guo, Pleiss, Sun, Weinberger 2017, arXiv:1706.04599 (without the prior).
    """
    from scipy.optimize import minimize_scalar  # slow to import

    logits = logits.double()

    def loss(log_t: float) -> float:
        nll = nn.functional.cross_entropy(logits / math.exp(log_t), y, reduction="sum")
        return float(nll) + 0.5 * (log_t / spread) ** 2

    found = minimize_scalar(loss, bounds=(-math.log(20), math.log(20)), method="bounded")
    return math.exp(float(found.x))
