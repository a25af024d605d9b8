"""One pair in training: what it is checked for, how it is judged, what is kept of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...guides import Guide
from ...models import Model, evaluating, seeded
from ...models.layers import convolves
from ...models.networks import closed_form_of
from ..distributed import ALONE, Ranks
from ..posterior import Posterior, posterior_of
from ..storage import CheckpointError, Watched, fingerprint, read_weights
from .flat_parameters import difference
from .requests import check_rows
from .settings import Settings
from .validated_noise import condition_head, has_validated_noise, validate_noise

if TYPE_CHECKING:
    from ...data import Dataset

# More to note at each evaluation, from model, guide and data.
Track = Callable[[Any, Any, "Dataset"], dict[str, float]]


@dataclass(eq=False)
class Replicate:
    """A pair in training, on the device of its data, with its history and its best weights.

    Attributes:
        seed: of the order of the rows.
        out: the folder of its results.
        pair: the kind of the pair, that predicts.
        best: weights and value of the checkpoint that is chosen so far.
        good: weights at the last evaluation.
        stale: evaluations since ``best``.
        stopped: it is not evaluated any more (early stopping).
        broken: why it was given up, if its loss turned NaN or infinite.
    """

    model: Model
    guide: Guide
    data: Dataset
    seed: int
    out: Path | None = None
    track: Track | None = None
    watched: Watched | None = None
    kl_weight: float = 1.0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    stale: int = 0
    stopped: bool = False
    broken: str | None = None

    def __post_init__(self) -> None:
        self.move(self.data)

    def move(self, data: Dataset) -> None:
        """Go on with these data, the same on another device."""
        self.data = data
        for part in (self.model, self.guide):
            part.to(data.device)
        self.pair = posterior_of(self.model, self.guide, data)
        self.good = self.weights()

    @property
    def convolutional(self) -> bool:
        """True if the network has convolutions."""
        return any(isinstance(part, _ConvNd) for part in self.model.modules())

    @property
    def images(self) -> bool:
        """True if images pass through convolutions, Bayesian ones included."""
        return len(self.data.input_shape) == 3 and convolves(self.model)

    def unlike(self, other: Replicate) -> str | None:
        """Why another replicate cannot be stepped together with this one: what differs beside
        values, or is shared."""
        ours, theirs = ((d, *d.head(1)) for d in (self.data, other.data))
        if ours[0].streamed or theirs[0].streamed:
            return "their rows are streamed"
        said = (str(one.model).split("\n") for one in (self, other))
        lines = itertools.zip_longest(*said, fillvalue="")
        found = difference(self.model, other.model) or difference(self.guide, other.guide)
        for what, a, b in (
            ("model", *next(((a.strip(), b.strip()) for a, b in lines if a != b), ("", ""))),
            ("guide", self.guide.options(), other.guide.options()),
            ("number of training rows", ours[0].N, theirs[0].N),
            ("shape of an input", ours[1].shape[1:], theirs[1].shape[1:]),
            ("shape of a target", ours[2].shape[1:], theirs[2].shape[1:]),
        ):
            if a != b:
                found = found or f"the {what} is {a} in one and {b} in another"
        return found

    @property
    def logits(self) -> nn.Parameter:
        """Logits of q(d), where it moves in closed form."""
        assert self.guide.traits.moves is not None
        return self.guide.get_parameter(self.guide.traits.moves)

    def check(self, settings: Settings, batches: int) -> None:
        """Refuse a model, guide, data and settings that do not go together."""
        check_rows(self.model, self.data)
        self.guide.check(self.model, settings, batches)
        self.kl_weight = settings.kl_weight

    def identity(self) -> dict[str, Any]:
        """Facts that a checkpoint must agree with, beside the settings."""
        data = self.data
        return {
            "seed": self.seed,
            "data": fingerprint(*data.marks),
            "shapes": {name: list(t.shape) for name, t in self.model.state_dict().items()},
            "guide": self.guide.options(),
            "prior": self.model.prior_numbers(),
        }

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(
        self,
        train_loss: float,
        epoch: int,
        selectable: bool,
        latest: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """Look at the validation rows; keep the weights if they are the best so far.

        Arguments:
            train_loss, epoch: the epoch that has ended.
            selectable: whether a checkpoint may be chosen now.
            latest: keep these weights, the best or not.
            ranks: processes that share the rows, and all come to the same.
        """
        row = {"epoch": float(epoch), "loss": train_loss}
        if self.model.likelihood.own_head:
            condition_head(self.model, self.data)
        noise = self._noise_step() if selectable else None
        running = self._exact_step(ranks) if self.guide.traits.moves and selectable else None
        row["val_nll"] = validation_nll(self.pair, self.data, ranks)
        x = self.data.x_val
        if "depth" in self.guide.latents():
            q = self.guide.posterior("depth").probs.detach()
            row["depth_expected"] = float((q * torch.arange(len(q), device=q.device)).sum())
        if self.track is not None:
            with evaluating(self.model), seeded(self.seed, x.device):
                row |= self.track(self.model, self.guide, self.data)
        self.history.append(row)
        if self.watched is not None:
            with seeded(self.seed, x.device):
                self.watched.tell(self.history)
        self.good = self.weights()
        # The training goes on as if nobody had looked, but where other rows tell of the depth.
        if running is not None and not self.model.likelihood.own_head:
            with torch.no_grad():
                self.logits.copy_(running)
        if noise is not None:
            with torch.no_grad():
                for name, before in noise.items():
                    self.model.likelihood.get_parameter(name).copy_(before)
        if not selectable:
            return
        value = row["val_nll"] if len(x) else train_loss
        value = value if math.isfinite(value) else math.inf  # a NaN compares as false with all
        lowest = math.inf if self.best is None else self.best["lowest"]
        better = self.best is None or value < lowest
        self.stale = 0 if better else self.stale + 1
        if better or latest:
            estimate = None if running is None else running.softmax(-1)
            self.best = {"value": value, "epoch": epoch, "running": estimate, **self.good}
            self.best["lowest"] = min(lowest, value)  # for patience, where the latest is kept

    def _noise_step(self) -> dict[str, Tensor] | None:
        """Set the noise of the likelihood as the validation rows have it, where a checkpoint may be
        chosen. Returns the parameters of the noise that trains, or ``None`` if they stay."""
        if not has_validated_noise(self.model, self.guide, self.data):
            return None
        likelihood = self.model.likelihood
        training = {n: likelihood.get_parameter(n).detach().clone() for n in likelihood.noise}
        with evaluating(self.model), pyro.validation_enabled(False):
            validate_noise(self.pair, self.data)
        return training

    def _exact_step(self, ranks: Ranks) -> Tensor:
        """The whole closed-form step, in evaluation mode, where a checkpoint may be chosen.

        The running estimate is of the network in training mode, whose batch statistics are not
        those it is used with. Returns the logits of that estimate.
        """
        running = self.logits.detach().clone()
        with pyro.validation_enabled(False):
            exact = self.pair.depth_posterior(self.data, self.kl_weight, ranks)
            assert exact is not None
        with torch.no_grad():
            self.logits.copy_(exact.log().clamp_min(-1e4))
        return running

    # -- weights ----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        """A copy of everything that is learnt."""
        return {
            name: {key: t.detach().clone() for key, t in module.state_dict().items()}
            for name, module in (("model", self.model), ("guide", self.guide))
        }

    def restore(self, weights: dict[str, Any]) -> None:
        """Put a copy back."""
        self.model.load_state_dict(weights["model"])
        self.guide.load_state_dict(weights["guide"])

    _KEPT = ("history", "best", "good", "stale", "stopped", "broken")

    def state(self) -> dict[str, Any]:
        """State of the replicate, as a checkpoint keeps it."""
        return {**self.weights(), **{name: getattr(self, name) for name in self._KEPT}}

    def outcome(self) -> dict[str, Any]:
        """State of a finished replicate, but for its best weights, which are in its folder."""
        assert self.best is not None
        kept = {name: getattr(self, name) for name in self._KEPT if name != "good"}
        best = {name: v for name, v in self.best.items() if name not in ("model", "guide")}
        return {**kept, "best": best}

    def completed(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state that a checkpoint kept, with the weights of a finished fit from its folder."""
        if "good" in state:
            return state
        assert self.out is not None
        good = read_weights(self.out, self.data.device)
        return {**state, **good, "best": {**state["best"], **good}, "good": good}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state that a checkpoint kept."""
        state = self.completed(state)
        try:
            self.restore(state)
        except RuntimeError as error:
            raise CheckpointError(
                f"the weights in {self.out} are not of this network: {error}"
            ) from error
        for name in self._KEPT:
            setattr(self, name, state[name])
        if self.watched is not None:
            self.watched.begin(self.history)


def validation_nll(pair: Posterior, data: Dataset, ranks: Ranks = ALONE) -> float:
    """The negative log-likelihood of the validation rows by which a checkpoint is chosen, in nats
    for each; NaN where there are none.

    Arguments:
        ranks: processes, each of which looks at its part of the rows.
    """
    if not len(data.x_val):
        return math.nan
    if (head := closed_form_of(pair.model)) is not None:  # those that it knows
        log_prior = dict(pair.model.named_buffers()).get("log_prior", torch.zeros(1))
        evidence = torch.logsumexp(log_prior.to(head.evidence) + head.evidence, 0)
        weights = data.val_weights
        return -float(evidence) / (len(data.x_val) if weights is None else float(weights.sum()))
    part = ranks.part(len(data.x_val))
    if ranks.size > 1:
        data = data.with_val(part.rows)
    with evaluating(pair.model), pyro.validation_enabled(False):
        outputs, weights = pair.validation(data)
        log_weights = weights.log().clamp_min(-1e4)
        log_p = pair.model.likelihood.log_predictive(outputs, log_weights, data.y_val)
        if data.val_weights is not None:
            log_p = log_p * data.val_weights
        mean = log_p.double().mean() * part.weight
        ranks.sum_([mean])
        return -float(mean)
