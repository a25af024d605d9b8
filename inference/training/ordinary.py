"""Training of what a cut left, as numbers: what stays makes up for what went."""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributions import kl_divergence

from ...data import PyroccamError
from ...guides import Deterministic
from ...models import PlainNetwork, seeded
from ...models.layers import AFFINE, order_of_use
from ...models.likelihoods import LEAST_ROWS, Likelihood
from ..distributed import apart
from ..posterior import outputs_of_rows, suited, validated
from ..storage import CheckpointError, fingerprint, write_whole
from .hidden_states import HiddenStates
from .replicate import Replicate
from .settings import Settings
from .step import CompileFallback
from .teacher import Taught, Teacher, parted
from .terminal import FitProgress, StopSignal
from .trainer import NonFiniteLoss, Trainer

if TYPE_CHECKING:
    from .result import Fit

RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates that are tried, of which the validation rows take one."""

RACE = 6
"""A learning rate is tried for a sixth of the epochs, at least for one."""

EVALUATIONS = 20
"""Looks at the validation rows in a training, at most."""


@dataclass(frozen=True)
class Trained:
    """A network that was trained as numbers.

    Attributes:
        net: at the best of the epochs that were looked at, in evaluation mode, on the CPU.
        losses: of each validation row, in nats (:func:`row_losses`).
        held_out: of each validation row the loss of its label, and 1 where its class was missed,
            ``(2, N)``, at the epoch that the other half of these rows chooses.
        lr: the learning rate; ``None`` if the network as it was is better.
    """

    net: nn.Module
    losses: Tensor
    held_out: Tensor
    lr: float | None

    def to_json(self) -> dict[str, float | None]:
        """What a result file says of it."""
        return {"val_nll": float(self.losses.mean()), "lr": self.lr}

    def tensors(self) -> dict[str, Tensor]:
        """All but the rate, for a file; :meth:`restored` is their inverse."""
        net = {f"net.{n}": t.contiguous().clone() for n, t in self.net.state_dict().items()}
        return {**net, "losses": self.losses, "held_out": self.held_out}

    @classmethod
    def restored(cls, like: nn.Module, tensors: Mapping[str, Tensor], lr: float | None) -> Trained:
        """From its tensors, with a network of this structure."""
        net = copy.deepcopy(like)
        own = {n.removeprefix("net."): t for n, t in tensors.items() if n.startswith("net.")}
        net.load_state_dict(own)
        return cls(net.eval(), tensors["losses"], tensors["held_out"], lr)


def race(
    net: nn.Module, fit: Fit, epochs: int, rates: Sequence[float], tried: dict[float, Tensor]
) -> Iterator[float]:
    """Short trainings at learning rates, the highest first, until one is worse than a higher one by
    more than a standard error (:func:`choose_rate`): still lower ones only lag behind more.

    Arguments:
        tried: losses of validation rows by the rates that were tried before; they grow.

    Returns:
        Each rate that is tried now, before it is.
    """
    higher: dict[float, Tensor] = {}
    for rate in sorted(rates, reverse=True):
        if rate not in tried:
            yield rate
            tried[rate] = trained(net, fit, race_epochs(epochs), rate).losses
        higher[rate] = tried[rate]
        if choose_rate(higher) != rate:
            return


def choose_rate(tried: Mapping[float, Tensor]) -> float:
    """The lowest of the learning rates whose losses are, in the mean, not above the least by more
    than a standard error of the difference: in a short training a high one looks better than it is
    in the end.

    References:
        Breiman, Friedman, Olshen, Stone 1984, Classification and regression trees, for that rule.
    """
    best = min(tried, key=lambda lr: float(tried[lr].mean()))
    worse = {lr: losses - tried[best] for lr, losses in sorted(tried.items())}
    return next(
        lr for lr, d in worse.items() if d.mean() <= d.std() / math.sqrt(len(d)) or lr == best
    )


def race_epochs(epochs: int) -> int:
    """Epochs of a training that shows what a learning rate is good for."""
    return max(1, epochs // RACE)


def retrain(net: nn.Module, fit: Fit, epochs: int) -> Trained:
    """Train a network that was cut from a fit, on the fit's data.

    Zeros stay zeros, so nothing that was cut comes back. Checkpoint and learning rate are chosen
    on the validation rows, and the network as it was is kept if that is no better.

    Arguments:
        epochs: passes over the training rows at the learning rate that is good for a sixth of
            them (:func:`race`). It falls along a cosine.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626: pruned networks are retrained.
    """
    if not len(fit.data.x_val):
        raise PyroccamError("a retraining without validation rows", "some of them", "val_fraction=")
    tried: dict[float, Tensor] = {}
    for _ in race(net, fit, epochs, RATES, tried):
        pass
    return improved(net, fit, epochs, choose_rate(tried))


def improved(net: nn.Module, fit: Fit, epochs: int, lr: float) -> Trained:
    """A network that was trained at a learning rate, or as it was where the validation rows say
    that this is no worse."""
    found, before = trained(net, fit, epochs, lr), score_untrained(net, fit)
    worse = len(before.losses) and not found.losses.mean() < before.losses.mean()
    return before if worse else found


def score_untrained(net: nn.Module, fit: Fit) -> Trained:
    """A network that is not trained, among those that are."""
    seen = look(net, fit, None)
    return Trained(net, seen[0], seen[1:], None)


def trained(
    net: nn.Module,
    fit: Fit,
    epochs: int,
    lr: float,
    teacher: Teacher | None = None,
    out: str | Path | None = None,
) -> Trained:
    """Train a network as numbers at one learning rate, and take the best of the epochs that are
    looked at; without validation rows the last.

    The network that is given stays as it is.

    Arguments:
        teacher: whose predictions are learnt along with the labels, each for half of the loss.
        out: folder that keeps what was trained, under a name of all that it was trained from, and
            from which the same is taken another time.

    References:
        Hinton, Vinyals, Dean 2015, arXiv:1503.02531: what a teacher predicts says more than labels.
    """
    trainer = trainer_of(net, fit, epochs, lr, teacher)
    (one,) = trainer.replicates
    path = None
    if out is not None:
        parts = fingerprint(*one.model.state_dict().values(), *one.data.marks)
        begun = f"{trainer.settings} {type(fit.model.likelihood).__name__} {parts}"
        path = Path(out) / f"{hashlib.blake2b(begun.encode(), digest_size=16).hexdigest()}.trained"
        if path.is_file():
            try:
                return Trained.restored(net, load(path.read_bytes()), lr)
            except Exception as error:  # of a file of other content there is no end of kinds
                raise CheckpointError(f"{path} holds no network of this search") from error
    if any(p.requires_grad for p in one.model.parameters()):
        with apart(), seeded(one.seed, one.data.device), warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileFallback)  # it was not asked for
            with suppress(NonFiniteLoss):  # what is judged is the state of its last evaluation
                trainer.run(FitProgress("numbers", trainer.total_steps, False), StopSignal())
    found = one.model.part("net").to(memory_format=torch.contiguous_format).cpu().eval()
    before: Any = one.model.likelihood
    if before.states is not None:
        before.states.remove()
    seen = look(found, fit, teacher)
    looks = torch.stack([*before.looks, seen])
    made = Trained(found, seen[0], cross_fit(looks), lr)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(save(made.tensors())))
    return made


def cross_fit(looks: Tensor) -> Tensor:
    """What is known of each row at the look that the other half of the rows chooses.

    Rows that chose a checkpoint make it look better than it is; so each half judges the choice of
    the other one, and none its own.

    Arguments:
        looks: losses by which a checkpoint is chosen, and what else is known of each row,
            ``(L, 1 + M, N)``.

    Returns:
        ``(M, N)``.

    References:
        Schick 1986, "On asymptotically efficient estimation in semiparametric models", for
        cross-fitting.
    """
    rows = looks.shape[-1]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    first, second = order[: rows // 2], order[rows // 2 :]
    found = looks.new_zeros(looks.shape[1:])[1:]
    for choosing, judged in ((first, second), (second, first)):
        best = looks[:, 0, choosing].mean(1).nan_to_num(math.inf).argmin()
        found[:, judged] = looks[best][1:, judged]
    return found


def trainer_of(
    net: nn.Module, fit: Fit, epochs: int, lr: float, teacher: Teacher | None = None
) -> Trainer:
    """The trainer of a network without a prior: AdamW along a cosine, which forgets squared
    gradients in a hundred steps, as trainings are short and the first gradients large. Their norm
    is 1 at most; that of a learnt noise, which grows while errors become small, has no limit.
    Weights that are zero stay zero.

    References:
        Loshchilov, Hutter 2019, arXiv:1711.05101, for AdamW; Kingma, Ba 2015, arXiv:1412.6980, for
        the mean of squared gradients; Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063, for the
        clipped norm.
    """
    data = fit.data if teacher is None else teacher.behind(fit.data)
    likelihood = RowLosses(fit.model.likelihood, 0 if teacher is None else teacher.train.shape[1])
    model = PlainNetwork(net, data, likelihood=likelihood, keeps_zeros=True).to(data.device)
    if teacher is not None and teacher.net is not None:
        likelihood.states = HiddenStates(model.part("net"), teacher.net)
    settings = Settings(
        epochs=epochs,
        batch_size=fit.settings.batch_size,
        lr=lr,
        weight_decay=0.01,
        beta2=0.99,
        clip_norm=None if likelihood.own.noise else 1.0,
        checkpoint="best" if len(data.x_val) else "last",
        evaluations=EVALUATIONS,
        seed=fit.settings.seed,
        compile="graph",
    )
    with apart():
        return Trainer([Replicate(model, Deterministic(model), data, settings.seed)], settings)


class RowLosses(Likelihood):
    """The likelihood of a network that is trained as numbers: of labels, and for the other half of
    what a teacher predicts.

    Rows are judged at the noise or temperature that suits them, with which a network is handed
    back: one that is right and too sure is not worse than one that is wrong.

    Arguments:
        likelihood: of labels; copied.
        said: numbers that a teacher predicts of a row, which stand behind its label.
    """

    def __init__(self, likelihood: Likelihood, said: int = 0) -> None:
        super().__init__()
        self.task, self.outputs, self.said = likelihood.task, likelihood.outputs, said
        self.own = copy.deepcopy(likelihood).requires_grad_(True)
        self._given = [likelihood]  # no part of this one: nothing of it is trained, or saved
        self.looks: list[Tensor] = []  # at the validation rows, each (3, N)
        self.states: HiddenStates | None = None  # whose distance stands behind the outputs

    def forward(self, outputs: Tensor) -> Any:
        if not self.said:
            return self.own(outputs)
        if self.states is None or not self.training:
            return Taught(self.own, outputs, self.said)
        return Taught(self.own, outputs[..., :-1], self.said, outputs[..., -1])

    @torch.no_grad()
    def log_predictive(self, outputs: Tensor, log_weights: Tensor, y: Tensor) -> Tensor:
        """``(B,)``, of the outputs ``(1, B, outputs)`` of one network, all rows at once."""
        (out,), (like,) = outputs, self._given
        labels = parted(y, like, self.said)[0]
        like = suited(like, out, labels)
        if like.takes_logits and len(out) >= LEAST_ROWS:
            out = out / max(1.0, temperature_of_rows(out, labels))
        alone = like(out).log_prob(labels)
        found: Tensor = Taught(like, out, self.said).log_prob(y) if self.said else alone
        missed = torch.zeros_like(alone)
        if like.task == "classification":
            missed = (like.predicted(out).argmax(-1) != labels).to(alone)
        self.looks.append(torch.stack([-found, -alone, missed]).double().cpu())
        return found


@torch.no_grad()
def look(net: nn.Module, fit: Fit, teacher: Teacher | None = None) -> Tensor:
    """What a network does on each validation row, ``(3, N)``: its loss as :class:`RowLosses` has
    it, with a teacher the mean with the cross-entropy of what the teacher predicts; that of the
    label alone; and 1 where the class is missed. Losses are in nats."""
    data = fit.data if teacher is None else teacher.behind(fit.data)
    if not len(data.x_val):
        return torch.zeros(3, 0, dtype=torch.double)
    net = copy.deepcopy(net).to(data.x_val.device)
    outputs = outputs_of_rows(net, data.x_val)[None]
    like = RowLosses(fit.model.likelihood, 0 if teacher is None else teacher.val.shape[1])
    like.log_predictive(outputs, torch.zeros(1), data.y_val)
    return like.looks[0]


def row_losses(net: nn.Module, fit: Fit, teacher: Teacher | None = None) -> Tensor:
    """The loss of each validation row, ``(N,)`` (:func:`look`)."""
    return look(net, fit, teacher)[0]


@torch.no_grad()
def row_changes(net: nn.Module, other: nn.Module, fit: Fit) -> Tensor:
    r"""How far another network predicts from what a network does, on each validation row.

    .. math:: \mathrm{KL}(p_n \,\|\, q_n), \qquad p_n = p(y \mid f(x_n)),\ q_n = p(y \mid g(x_n)),

    with the noise that suits the first: so many nats dearer are labels, on average, that follow the
    first prediction. Those of the validation rows are not looked at, as a small change moves the
    losses of a few rows up or down by luck.

    Arguments:
        net, other: f and g.

    Returns:
        ``(N,)``, in nats, float64; where the divergence of the likelihood has no closed form, the
        absolute differences of the losses of the labels that there are.

    References:
        Kullback, Leibler 1951, "On Information and Sufficiency".
    """
    x, y = fit.data.split("val")

    first, second = (copy.deepcopy(one).to(x.device) for one in (net, other))
    like = validated(fit.model.likelihood, first, fit.data)
    p, q = (like(outputs_of_rows(one, x).double()) for one in (first, second))
    try:
        found: Tensor = kl_divergence(p, q)
    except NotImplementedError:
        found = (p.log_prob(y) - q.log_prob(y)).abs()
    return found.double().cpu()


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
    logits = outputs_of_rows(net, x)
    temperature = max(1.0, temperature_of_rows(logits, y))
    own = copy.deepcopy(net)
    names = [name for name, one in own.named_modules() if type(one) in AFFINE]
    last: Any = own.get_submodule(order_of_use(own, names, x[:2])[-1])
    if not last.weight.requires_grad:
        return net, 1.0
    last.weight /= temperature
    if last.bias is not None:
        last.bias /= temperature
    if not torch.allclose(outputs_of_rows(own, x), logits / temperature, rtol=1e-3, atol=1e-4):
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
