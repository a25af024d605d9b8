"""Training of what a cut left, as numbers: what stays makes up for what went."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from ...data.errors import PyroccamError
from ...models.base import Model
from ...models.contexts import evaluating, seeded
from ...models.layers.affine import AFFINE
from ...models.layers.choice import order_of_use
from ...models.likelihoods import Likelihood
from ...models.likelihoods.noise import LEAST_ROWS
from ..posterior.predict import streamed, validated
from ..training.settings import Settings
from ..training.step import CompileFallback, TrainingStep
from ..training.trainer import TRACE_FROM
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
        raise PyroccamError("a retraining without validation rows", "some of them", "val_fraction=")
    return PlainTraining(net, fit, teacher).best(epochs, rates)


class PlainTraining:
    """Training of a network without a prior, by AdamW along a cosine, with a gradient of norm 1 at
    most; the noise of its likelihood is learnt, too. Weights that are zero stay zero.

    Arguments:
        net: with which every training begins; it stays as it is.
        fit: whose data, likelihood, batch size and seed are taken.
        teacher: see :func:`retrain`.

    Attributes:
        before: losses of the validation rows of ``net``.

    References:
        Loshchilov, Hutter 2019, arXiv:1711.05101, for AdamW; Pascanu, Mikolov, Bengio 2013,
        arXiv:1211.5063, for the clipped norm.
    """

    def __init__(self, net: nn.Module, fit: Fit, teacher: Teacher | None = None) -> None:
        self._net, self._fit, self._teacher = net, fit, teacher
        self.before = row_losses(net, fit, teacher)
        self._model = NetworkOfNumbers(net, fit, teacher).train()
        self._start = values_of(self._model)
        settings = Settings(weight_decay=0.01, clip_norm=1.0)
        self._step = TrainingStep([(self._model, Nothing())], settings, compile="graph")
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, epochs: int, lr: float) -> tuple[nn.Module, Tensor]:
        """The network at the best of the epochs that are looked at, and its validation losses;
        without validation rows that of the last epoch, and none."""
        settings, data = self._fit.settings, self._fit.data
        size = min(settings.batch_size, data.N)
        counts = {size: data.N // size * epochs, data.N % size: epochs}
        self._step.steps = {n: steps for n, steps in counts.items() if steps >= TRACE_FROM}
        with pyro.validation_enabled(False), warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileFallback)  # it was not asked for
            if any(p.requires_grad for p in self._model.parameters()):
                self._prepare(size, lr)
            with seeded(settings.seed, data.device):
                kept, losses = self._train(epochs)
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

    def _prepare(self, size: int, lr: float) -> None:
        """Put everything where a training begins."""
        set_values(self._model, self._start)
        if not self._step.flats:
            x, y = self._fit.data.head(size)
            self._step.prepare(x, self._taught(y, slice(size)))
            flats = [f for name, f in self._step.flats.items() if name.startswith("weights")]
            kept = [f.flat([(p != 0) | (p.dim() < 2) for p in f.members[0]]) for f in flats]
            self._kept = [(f.parameter, row[None]) for f, row in zip(flats, kept, strict=True)]
        self._step.restart(lr)

    def _train(self, epochs: int) -> tuple[dict[str, Tensor], Tensor]:
        fit, teacher, net = self._fit, self._teacher, self._model.part("net")
        steps, done = epochs * -(-fit.data.N // fit.settings.batch_size), 0
        every = max(1, epochs // _EVALUATIONS)
        best, kept = self.before, values_of(net)
        for epoch in range(1, epochs + 1):
            for x, y in self._batches(epoch):
                if len(x) > 1 and self._step.flats:  # batch normalisation needs two
                    self._step.evaluate(x, y)
                    self._step.update(done / steps)
                    for weights, own in self._kept:
                        weights.data.mul_(own)
                done += 1
            if epoch % every == 0 or epoch == epochs:
                losses = row_losses(net, fit, teacher)
                if not len(losses) or losses.mean() < best.mean():
                    best, kept = losses, values_of(net)
        return kept, best

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs of all rows once, and targets with what a teacher predicts behind them."""
        data, size = self._fit.data, self._fit.settings.batch_size
        if data.streamed:  # which have no teacher
            bounds = [(i, min(i + size, data.N)) for i in range(0, data.N, size)]
            for _, x, y in data.batches(self._fit.settings.seed, epoch, bounds):
                yield x, y
            return
        targets = data.targets
        for rows in torch.randperm(data.N).to(data.device).split(size):
            yield data.x_train[rows], self._taught(targets[rows], rows)

    def _taught(self, y: Tensor, rows: Tensor | slice) -> Tensor:
        if self._teacher is None:
            return y
        said = self._teacher.train[rows]
        return torch.cat([y.to(said).reshape(len(y), -1), said], 1)


class NetworkOfNumbers(Model):
    """A network without a prior, whose bound is minus the loss of its rows.

    Arguments:
        net: copied, as the likelihood is.
        fit: of the data.
        teacher: what it predicts stands behind the targets, and behind the weights of rows.
    """

    def __init__(self, net: nn.Module, fit: Fit, teacher: Teacher | None) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).to(fit.data.device)
        self.likelihood = copy.deepcopy(fit.model.likelihood).requires_grad_(True)
        self.size = fit.data.N
        self._parted, self._classes = fit.data.parted, fit.data.classes is not None
        self._said = 0 if teacher is None else teacher.train.shape[1]

    def forward(self, x: Tensor, y: Tensor) -> None:
        outputs, taught = self.part("net")(x), None
        if self._said:
            y, taught = y[:, : -self._said], y[:, -self._said :]
        y, weights = self._parted(y)
        if self._classes and y.dim() == 2:
            y = y[:, 0].long()
        losses = _losses(self.part("likelihood"), outputs, y, taught)
        with pyro.plate("data", self.size, subsample=x):
            pyro.factor("y", -losses if weights is None else -weights * losses)


class Nothing(nn.Module):
    """The guide of a model without latents."""

    def forward(self, x: Tensor, y: Tensor) -> None:
        """Nothing to sample."""


def values_of(net: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers, those that no ``state_dict`` has among them."""
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return {name: t.detach().clone() for name, t in tensors}


@torch.no_grad()
def set_values(net: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give parameters and buffers these values, in place."""
    own = dict([*net.named_parameters(), *net.named_buffers()])
    for name, value in values.items():
        own[name].copy_(value)


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
