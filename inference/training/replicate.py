"""One pair in training: what it is checked for, how it is judged, what is kept of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...guides.base import NetworkGuide
from ...guides.depth import CategoricalDepth, Deterministic, Marginal
from ...models.bayesian import BayesianNetwork
from ...models.contexts import evaluating, seeded
from ...models.distributions.temperature import Temperature
from ...models.layers.bayesian_layer import convolves
from ...models.learnt_depth import LearntDepth, stacked_outputs
from ...models.origin import made_from_another
from ..compilation.flat_parameters import difference
from ..posterior.depth import exact_depth_posterior
from ..posterior.draws import Noise, draw_outputs
from ..posterior.predict import depth_weights, streamed
from ..posterior.weight_moments import mean_network
from ..storage.checkpoint import fingerprint
from .settings import Settings
from .validated_noise import has_validated_noise, validate_noise

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["Replicate", "Track"]

# More to note at each evaluation, from model, guide and data.
Track = Callable[[Any, nn.Module, "Dataset"], dict[str, float]]

VALIDATION_DRAWS = 5


class Replicate:
    """A pair with its data, its history and its best weights.

    Arguments:
        model, guide: the pair, on the device of ``data``.
        data: on the device.
        seed: of the order of its rows.
        track: see :func:`~pyroccam.inference.fits.fitting.fit`.

    Attributes:
        history: one row for each evaluation.
        best: weights and value of the checkpoint that is chosen so far.
        good: weights at the last evaluation.
        stale: evaluations since ``best``.
        stopped: it is not evaluated any more (early stopping).
        broken: why it was given up, if its loss turned NaN or infinite.
    """

    def __init__(
        self, model: Any, guide: nn.Module, data: Dataset, seed: int, track: Track | None = None
    ) -> None:
        self.model, self.guide, self.data, self.seed = model, guide, data, seed
        self.track = track
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None
        self.good = self.weights()
        self.stale = 0
        self.stopped = False
        self.broken: str | None = None

    # -- what goes together -----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether q(d) moves in closed form."""
        return isinstance(self.guide, CategoricalDepth) and self.guide.update == "closed"

    @property
    def convolutional(self) -> bool:
        """Whether the network has convolutions."""
        return any(isinstance(part, _ConvNd) for part in self.model.modules())

    @property
    def images(self) -> bool:
        """Whether images pass through convolutions, Bayesian ones included."""
        return len(self.data.input_shape) == 3 and convolves(self.model)

    def check(self, settings: Settings, batches: int) -> None:
        """Whether model, guide, data and settings go together.

        Raises:
            ValueError, TypeError: if not.
        """
        model, guide, rows = self.model, self.guide, self.data.N
        if getattr(model, "size", rows) != rows:
            raise ValueError(
                f"The model was made for {model.size} training rows, the data has {rows}: the "
                "likelihood would be scaled wrongly. Build the model with data=<this data>."
            )
        kinds = (
            (CategoricalDepth | Marginal, LearntDepth, "CategoricalDepth"),
            (NetworkGuide, BayesianNetwork, "MeanField"),
            (Deterministic, object, "Deterministic"),
        )
        for kind, needs, use in kinds:
            if isinstance(model, needs):
                if isinstance(guide, kind):
                    break
                raise TypeError(
                    f"guides.{type(guide).__name__} and models.{type(model).__name__} do not go "
                    f"together: use guides.{use}(model)."
                )
        ours, theirs = _sites(guide), _sites(model)
        if isinstance(guide, NetworkGuide) and ours != theirs:
            odd = sorted({*ours} ^ {*theirs})
            raise ValueError(
                f"The guide was made for another network (sites such as {odd[:1]}): make it from "
                f"this model, guides.{type(guide).__name__}(model)."
            )
        if isinstance(guide, CategoricalDepth) and len(guide.logits) != model.max_depth + 1:
            raise ValueError(
                f"The guide has {len(guide.logits)} depths, the model {model.max_depth + 1}: make "
                "it from this model, guides.CategoricalDepth(model)."
            )
        if made_from_another(guide, model) or _other_temperature(guide, model):
            raise ValueError(
                f"The guide was made from another {type(model).__name__}, and begins where that "
                f"one does: make it from this model, guides.{type(guide).__name__}(model), or copy "
                "both at once, copy.deepcopy((model, guide))."
            )
        changed = [
            name
            for name, usual in (("kl_warmup", 0.0), ("kl_weight", 1.0))
            if getattr(settings, name) != usual
        ]
        if self.closed and changed:
            raise ValueError(
                f"{changed[0]} has nothing to act on when q(d) is updated in closed form (no "
                "gradient passes through the KL). Use CategoricalDepth(model, "
                "update='gradient'), or set hold= on the guide."
            )
        if isinstance(guide, Deterministic) and changed:
            raise ValueError(f"{changed[0]}: a network of fixed depth has no latents and so no KL.")
        if isinstance(guide, Marginal):
            if batches > 1:
                raise ValueError(
                    f"guides.Marginal sums the depth out over the full batch, but batch_size="
                    f"{settings.batch_size} splits {rows} rows: set batch_size={rows} or "
                    "more, or use guides.CategoricalDepth, which takes minibatches."
                )
            if changed:
                raise ValueError(
                    f"{changed[0]}: the marginal likelihood of guides.Marginal has no KL."
                )

    def check_like(self, other: Replicate) -> None:
        """Whether another replicate can be stepped together with this one.

        Raises:
            ValueError: if it differs in more than values.
        """
        ours, theirs = self.data, other.data
        reasons = [
            difference(self.model, other.model),
            difference(self.guide, other.guide),
            *(
                f"the {what} is {a} in one and {b} in another"
                for what, a, b in (
                    ("model", *_first_odd_lines(str(self.model), str(other.model))),
                    ("guide", self.guide.options(), other.guide.options()),
                    ("shape of the training inputs", ours.x_train.shape, theirs.x_train.shape),
                    ("shape of the training targets", ours.y_train.shape, theirs.y_train.shape),
                )
                if a != b
            ),
        ]
        for why in reasons:
            if why is not None:
                raise ValueError(
                    f"Replicates are stepped together if only values differ; of seeds {self.seed} "
                    f"and {other.seed}, {why}. Fit them one after the other (together=False)."
                )

    @property
    def hold(self) -> float:
        """Fraction of the steps during which the guide keeps its start value."""
        return self.guide.hold if isinstance(self.guide, CategoricalDepth) else 0.0

    def closed_rate(self, total_steps: int) -> float:
        """Step of the damped closed-form update."""
        assert isinstance(self.guide, CategoricalDepth)
        if self.guide.rate is not None:
            return self.guide.rate
        steps = (self.guide.settled - self.guide.hold) * total_steps
        return min(0.5, 10.0 / max(steps, 1.0))

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with, beside the settings."""
        data = self.data
        return {
            "data": fingerprint(data.x_train, data.y_train, data.x_val, data.y_val),
            "shapes": {name: list(t.shape) for name, t in self.model.state_dict().items()},
            "guide": self.guide.options(),
            "prior": self.model.prior_numbers(),
        }

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(
        self, train_loss: float, epoch: int, selectable: bool, latest: bool = False
    ) -> None:
        """Look at the validation rows; keep the weights if they are the best so far.

        Arguments:
            train_loss: of the epoch that has ended.
            epoch: epochs done.
            selectable: whether a checkpoint may be chosen now.
            latest: keep these weights, the best or not.
        """
        row = {"epoch": float(epoch), "loss": train_loss, "val_nll": float("nan")}
        noise = self._noise_step() if selectable else None
        running = self._exact_step() if self.closed and selectable else None
        x, y = self.data.x_val, self.data.y_val
        if len(x):
            with evaluating(self.model), pyro.validation_enabled(False):
                outputs, weights = self._validation_outputs(x)
                log_weights = weights.log().clamp_min(-1e4)
                log_p = self.model.likelihood.log_predictive(outputs, log_weights, y)
                row["val_nll"] = -float(log_p.double().mean())
        if isinstance(self.guide, CategoricalDepth):
            q = self.guide.probs
            row["depth_expected"] = float((q * torch.arange(len(q), device=q.device)).sum())
        if self.track is not None:
            with evaluating(self.model), seeded(self.seed, x.device):
                row |= self.track(self.model, self.guide, self.data)
        self.history.append(row)
        self.good = self.weights()
        if running is not None:  # the training goes on as if nobody had looked
            assert isinstance(self.guide, CategoricalDepth)
            with torch.no_grad():
                self.guide.logits.copy_(running)
        if noise is not None:
            with torch.no_grad():
                self.model.likelihood.log_scale.copy_(noise)
        if not selectable:
            return
        value = row["val_nll"] if len(x) else train_loss
        value = value if math.isfinite(value) else math.inf  # a NaN compares as false with all
        lowest = math.inf if self.best is None else self.best.get("lowest", self.best["value"])
        better = self.best is None or value < lowest
        self.stale = 0 if better else self.stale + 1
        if better or latest:
            estimate = None if running is None else running.softmax(-1)
            self.best = {"value": value, "epoch": epoch, "running": estimate, **self.good}
            self.best["lowest"] = min(lowest, value)  # for patience, where the latest is kept

    def _validation_outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``(S, N, outputs)`` and their weights: of the depths, or of the one network with
        the posterior means as weights; where there are no means, of a few draws as in training."""
        if isinstance(self.model, BayesianNetwork):
            assert isinstance(self.guide, NetworkGuide)
            if self.guide.zero_mean:
                noise: Noise = "activations" if self.guide.handler is not None else "weights"
                out = draw_outputs(self.model, self.guide, x, VALIDATION_DRAWS, noise=noise)
                return out, torch.full((len(out),), 1.0 / len(out), device=x.device)
            net = mean_network(self.model, self.guide)
            return streamed(lambda part: net(part)[None], x), torch.ones(1, device=x.device)
        weights = depth_weights(self.model, self.guide, self.data)
        return streamed(lambda part: stacked_outputs(self.model, part), x), weights

    def _noise_step(self) -> Tensor | None:
        """Where a checkpoint may be chosen: the noise of a regression as the validation rows have
        it. Returns the parameter of the noise that trains, or ``None`` if that stays."""
        if not has_validated_noise(self.model, self.data):
            return None
        training: Tensor = self.model.likelihood.log_scale.detach().clone()
        with evaluating(self.model), pyro.validation_enabled(False):
            validate_noise(self.model, self.guide, self.data)
        return training

    def _exact_step(self) -> Tensor:
        """Where a checkpoint may be chosen: the whole closed-form step, in evaluation mode.

        The running estimate is of the network in training mode, whose batch statistics are not
        those it is used with. Returns the logits of that estimate.
        """
        assert isinstance(self.guide, CategoricalDepth)
        running = self.guide.logits.detach().clone()
        with pyro.validation_enabled(False):
            exact = exact_depth_posterior(self.model, self.data)
        with torch.no_grad():
            self.guide.logits.copy_(exact.log().clamp_min(-1e4))
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
        """For a checkpoint."""
        return {**self.weights(), **{name: getattr(self, name) for name in self._KEPT}}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.restore(state)
        for name in self._KEPT:
            setattr(self, name, state[name])


def _sites(part: nn.Module) -> list[str]:
    """Latents of a model or a guide of random weights and structure."""
    if isinstance(part, BayesianNetwork):
        return [*part.structure, *part.sites]
    return [*part.edges, *part.sites] if isinstance(part, NetworkGuide) else []


def _other_temperature(guide: Any, model: Any) -> bool:
    """Whether a posterior of structure is tied to the temperature of a prior that is not the
    model's, as after a copy of one of the two."""
    tied = [vars(guide.edge(s)).get("temperature") for s in getattr(guide, "edges", ())]
    return any(isinstance(t, Temperature) and t is not model.temperature for t in tied)


def _first_odd_lines(one: str, other: str) -> tuple[str, str]:
    """The first line in which two descriptions differ."""
    for a, b in itertools.zip_longest(one.split("\n"), other.split("\n"), fillvalue=""):
        if a != b:
            return a.strip(), b.strip()
    return "", ""
