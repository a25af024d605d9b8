"""The training loop: one for every method."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from torch import Tensor, nn

from ..guides.depth import CategoricalDepth, Deterministic, Marginal
from ..models.depth import LearntDepth, stacked_outputs
from .closed_form import IncrementalPosterior
from .diagnose import first_non_finite
from .elbo import bound
from .interrupt import StopSignal
from .modes import evaluating
from .predict import depth_weights, streamed
from .progress import FitProgress
from .run_directory import CheckpointError, fingerprint, load_checkpoint, save_checkpoint
from .settings import Settings, learning_rate_factor, make_optimizer
from .structure import exact_depth_posterior

if TYPE_CHECKING:
    from ..data import Dataset

__all__ = ["Interrupted", "NonFiniteLoss", "Trainer"]


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite; the last good state has been put back."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal; what was computed has been saved."""


class Trainer:
    """Trains one pair. Its whole state goes into a checkpoint, and a step depends on nothing else.

    Arguments:
        model, guide: the pair, on the device of ``data``.
        data: on the device.
        settings: see :class:`~pyroccam.inference.settings.Settings`.
        out: folder for checkpoints, or ``None``.
        checkpoint_seconds: time between checkpoints.
    """

    def __init__(
        self,
        model: Any,
        guide: nn.Module,
        data: Dataset,
        settings: Settings,
        *,
        out: Path | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> None:
        self.model, self.guide, self.data, self.settings = model, guide, data, settings
        self.out, self.checkpoint_seconds = out, checkpoint_seconds
        self.device = data.x_train.device
        self.rows = data.N
        self.batches = self._batch_bounds()
        self.epochs = settings.epochs_for(self.rows)
        self.total_steps = self.epochs * len(self.batches)
        self.evaluate_every = math.ceil(self.epochs / settings.evaluations)
        self.closed: IncrementalPosterior | None = None
        self._check_pair()
        self._seen: Tensor | None = None
        self.bound = bound(model, guide, self._observe if self.closed is not None else None)
        with self._still():
            self.optimizer = make_optimizer(settings, model, guide)
        self.epoch = 0
        self.position = 0  # batches of this epoch that are done
        self.loss_sum: Any = 0.0
        self.elapsed = 0.0
        self.stale = 0
        self.finished = False
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None
        self.good = self._weights()

    # -- set-up ---------------------------------------------------------------------------------

    def _batch_bounds(self) -> list[tuple[int, int]]:
        """Rows of each minibatch; a last batch of one joins its neighbour (batch statistics)."""
        size = self.settings.batch_size
        starts = list(range(0, self.rows, size))
        if len(starts) > 1 and self.rows - starts[-1] == 1:
            starts.pop()
        return list(zip(starts, [*starts[1:], self.rows], strict=True))

    def _check_pair(self) -> None:
        model, guide, settings = self.model, self.guide, self.settings
        if getattr(model, "size", self.rows) != self.rows:
            raise ValueError(
                f"The model was made for {model.size} training rows, the data has {self.rows}: the "
                "likelihood would be scaled wrongly. Build the model with data=<this data>."
            )
        if isinstance(guide, CategoricalDepth | Marginal) != isinstance(model, LearntDepth):
            use = "CategoricalDepth" if isinstance(model, LearntDepth) else "Deterministic"
            raise TypeError(
                f"guides.{type(guide).__name__} and models.{type(model).__name__} do not go "
                f"together: use guides.{use}(model)."
            )
        if isinstance(guide, CategoricalDepth) and len(guide.logits) != model.max_depth + 1:
            raise ValueError(
                f"The guide has {len(guide.logits)} depths, the model {model.max_depth + 1}: make "
                "it from this model, guides.CategoricalDepth(model)."
            )
        if isinstance(guide, CategoricalDepth) and guide.update == "closed":
            if settings.kl_warmup:
                raise ValueError(
                    "kl_warmup has nothing to act on when q(d) is updated in closed form (no "
                    "gradient passes through the KL). Use CategoricalDepth(model, "
                    "update='gradient'), or set hold= on the guide."
                )
            self.closed = IncrementalPosterior(
                guide, model.log_prior, self.rows, self._closed_rate(guide)
            )
        if isinstance(guide, Deterministic) and settings.kl_warmup:
            raise ValueError("kl_warmup: a network of fixed depth has no latents and so no KL.")
        if isinstance(guide, Marginal):
            if len(self.batches) > 1:
                raise ValueError(
                    f"guides.Marginal sums the depth out over the full batch, but batch_size="
                    f"{settings.batch_size} splits {self.rows} rows: set batch_size={self.rows} or "
                    "more, or use guides.CategoricalDepth, which takes minibatches."
                )
            if settings.kl_warmup:
                raise ValueError("kl_warmup: the marginal likelihood of guides.Marginal has no KL.")

    def _closed_rate(self, guide: CategoricalDepth) -> float:
        if guide.rate is not None:
            return guide.rate
        steps = (guide.settled - guide.hold) * self.total_steps
        return min(0.5, 10.0 / max(steps, 1.0))

    @property
    def selectable(self) -> float:
        """Fraction of the steps after which a checkpoint may be chosen: before, q(d) is held or on
        its way, or the KL is not whole."""
        settled = self.guide.settled if isinstance(self.guide, CategoricalDepth) else 0.0
        return max(settled, self.settings.kl_warmup)

    @property
    def hold(self) -> float:
        """Fraction of the steps during which the guide keeps its start value."""
        return self.guide.hold if isinstance(self.guide, CategoricalDepth) else 0.0

    @property
    def step_number(self) -> int:
        """Steps done."""
        return self.epoch * len(self.batches) + self.position

    @property
    def progress(self) -> float:
        return self.step_number / self.total_steps

    # -- one step -------------------------------------------------------------------------------

    def _observe(self, trace: poutine.Trace) -> None:
        self._seen = trace.nodes["y"]["unscaled_log_prob"].detach()

    def _step(self, rows: Tensor | None) -> None:
        settings, data = self.settings, self.data
        x, y = (
            (data.x_train, data.y_train)
            if rows is None
            else (
                data.x_train[rows],
                data.y_train[rows],
            )
        )
        progress = self.progress
        factor = learning_rate_factor(settings.schedule, progress)
        for group in self.optimizer.param_groups:
            if group["scheduled"]:
                group["lr"] = settings.lr * factor
        if settings.kl_warmup:
            self.bound.elbo.kl_weight = min(1.0, progress / settings.kl_warmup)
        loss = self.bound(x, y) / self.rows
        if self.device.type == "cpu":  # free here; on CUDA the host would wait at every step
            value: Any = loss.item()
            if not abs(value) < float("inf"):
                self._broken(x, y, value)
        else:
            value = loss.detach()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        if progress < self.hold:
            for p in self.guide.parameters():
                p.grad = None
        self.optimizer.step()
        if self.closed is not None and self._seen is not None:
            self.closed.observe(rows, self._seen)
            if progress >= self.hold:
                self.closed.step(complete=self.epoch > 0 or len(self.batches) == 1)
        self.loss_sum = self.loss_sum + value * (x.shape[0] / self.rows)

    def _broken(self, x: Tensor, y: Tensor, value: float) -> None:
        """Put the last good state back and say where it broke."""
        where = first_non_finite(self.model, self.guide, x, y)
        step = self.step_number
        self._restore(self.good)
        raise NonFiniteLoss(
            f"The loss is {value} at step {step} of {self.total_steps} (epoch {self.epoch + 1} of "
            f"{self.epochs}); {where}. The state of the last evaluation has been put back. Try a "
            f"smaller lr (now {self.settings.lr:g}), clip_norm=1.0, or standardised inputs and "
            "targets."
        )

    # -- evaluation -----------------------------------------------------------------------------

    def _evaluate(self, train_loss: float) -> None:
        row = {"epoch": float(self.epoch), "loss": train_loss, "val_nll": float("nan")}
        selectable = self.progress >= self.selectable
        running = self._exact_step() if self.closed is not None and selectable else None
        x, y = self.data.x_val, self.data.y_val
        if len(x):
            weights = depth_weights(self.model, self.guide, self.data)
            with evaluating(self.model), pyro.validation_enabled(False):
                outputs = streamed(lambda part: stacked_outputs(self.model, part), x)
                log_weights = weights.log().clamp_min(-1e4)
                log_p = self.model.likelihood.log_predictive(outputs, log_weights, y)
                row["val_nll"] = -float(log_p.double().mean())
        if isinstance(self.guide, CategoricalDepth):
            q = self.guide.probs
            row["depth_expected"] = float((q * torch.arange(len(q), device=q.device)).sum())
        self.history.append(row)
        self.good = self._weights()
        if running is not None:  # the training goes on as if nobody had looked
            assert isinstance(self.guide, CategoricalDepth)
            with torch.no_grad():
                self.guide.logits.copy_(running)
        if not selectable:
            return
        value = row["val_nll"] if len(x) else train_loss
        value = value if math.isfinite(value) else math.inf  # a NaN compares as false with all
        if self.best is None or value < self.best["value"]:
            estimate = None if running is None else running.softmax(-1)
            self.best = {"value": value, "epoch": self.epoch, "running": estimate, **self.good}
            self.stale = 0
        else:
            self.stale += 1

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

    def _weights(self) -> dict[str, Any]:
        return {
            name: {key: t.detach().clone() for key, t in module.state_dict().items()}
            for name, module in (("model", self.model), ("guide", self.guide))
        }

    def _restore(self, weights: dict[str, Any]) -> None:
        self.model.load_state_dict(weights["model"])
        self.guide.load_state_dict(weights["guide"])

    # -- the whole ------------------------------------------------------------------------------

    def run(self, bar: FitProgress) -> None:
        """Train to the end and put the best weights in place."""
        self.model.train()
        self.guide.train()
        last_saved = last_time = time.perf_counter()
        rehearsed = False
        with (
            StopSignal() as stop,
            self._still(),
            pyro.validation_enabled(False),
            warnings.catch_warnings(),
        ):
            # Pyro's warning of a NaN, which NonFiniteLoss explains.
            warnings.filterwarnings("ignore", "Encountered NaN", UserWarning)
            while not self.finished:
                order = self._order()
                for start, end in self.batches[self.position :]:
                    rows = None if order is None else order[start:end]
                    if rehearsed:
                        self._step(rows)
                    else:  # Pyro's own checks, once: its messages name the site and the shapes
                        with pyro.validation_enabled(True):
                            self._step(rows)
                        rehearsed = True
                    self.position += 1
                    now = time.perf_counter()
                    self.elapsed += now - last_time
                    last_time = now
                    if self.position < len(self.batches) and (
                        stop or now - last_saved > self.checkpoint_seconds
                    ):
                        last_saved = self._save()
                        self._leave_if(stop)
                    bar.step(self.step_number, self.loss_sum, self.position / len(self.batches))
                self._end_epoch(bar)
                if stop or self.finished or now - last_saved > self.checkpoint_seconds:
                    last_saved = self._save()
                    self._leave_if(stop and not self.finished)
        assert self.best is not None
        self._restore(self.best)
        self.model.eval()

    @contextmanager
    def _still(self) -> Iterator[None]:
        """No gradient for logits that move in closed form; put back however the run ends."""
        if self.closed is None:
            yield
            return
        self.closed.guide.logits.requires_grad_(False)
        try:
            yield
        finally:
            self.closed.guide.logits.requires_grad_(True)

    def _order(self) -> Tensor | None:
        """This epoch's order of the rows: a function of seed and epoch alone."""
        if len(self.batches) == 1:
            return None
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.epoch)
        return torch.randperm(self.rows, generator=generator).to(self.device)

    def _end_epoch(self, bar: FitProgress) -> None:
        train_loss = float(self.loss_sum)
        if not abs(train_loss) < float("inf"):
            self._broken(*self.data.split("train"), train_loss)
        self.epoch += 1
        self.position = 0
        self.loss_sum = 0.0
        last = self.epoch == self.epochs
        if last or self.epoch % self.evaluate_every == 0:
            self._evaluate(train_loss)
            bar.evaluated(self.history[-1])
        patience = self.settings.patience
        self.finished = last or (patience is not None and self.stale >= patience)

    def _leave_if(self, stop: object) -> None:
        if stop:
            where = (
                f"saved in {self.out}; resume=True goes on" if self.out else "not saved: no out="
            )
            raise Interrupted(
                f"Stopped after step {self.step_number} of {self.total_steps} ({where})."
            )

    # -- checkpoints ----------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        data = self.data
        rows = fingerprint(data.x_train, data.y_train, data.x_val, data.y_val)
        shapes = {name: list(t.shape) for name, t in self.model.state_dict().items()}
        options = {name: getattr(self.guide, name, None) for name in ("update", "hold", "rate")}
        prior = getattr(self.model, "log_prior", None)
        return {
            "settings": vars(self.settings),
            "data": rows,
            "shapes": shapes,
            "guide": {"kind": type(self.guide).__name__, **options},
            "prior": None if prior is None else prior.tolist(),
        }

    def _save(self) -> float:
        if self.out is None:
            return time.perf_counter()
        cuda = self.device.type == "cuda"
        state = {
            "format": 1,
            "identity": self._identity(),
            **self._weights(),
            "optimizer": self.optimizer.state_dict(),
            "closed": None if self.closed is None else self.closed.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if cuda else None,
            "epoch": self.epoch,
            "position": self.position,
            "loss_sum": self.loss_sum,
            "elapsed": self.elapsed,
            "stale": self.stale,
            "finished": self.finished,
            "history": self.history,
            "best": self.best,
            "good": self.good,
        }
        save_checkpoint(self.out, state)
        return time.perf_counter()

    def load(self) -> bool:
        """Take up the checkpoint in ``out``, if there is one.

        Raises:
            CheckpointError: if it belongs to other data, settings or another network.
        """
        state = None if self.out is None else load_checkpoint(self.out, self.device)
        if state is None:
            return False
        mine, theirs = self._identity(), state["identity"]
        if mine["settings"] != theirs["settings"]:
            changed = [
                f"{k}: {theirs['settings'].get(k)!r} then, {v!r} now"
                for k, v in mine["settings"].items()
                if theirs["settings"].get(k) != v
            ]
            raise CheckpointError(
                f"Cannot resume {self.out} with other settings ({'; '.join(changed)}). Use the "
                "same, or another folder."
            )
        for name, what in (
            ("data", "training data"),
            ("shapes", "network"),
            ("guide", "guide"),
            ("prior", "prior"),
        ):
            if mine[name] != theirs.get(name):
                raise CheckpointError(
                    f"Cannot resume {self.out}: it was started with another {what}. Use the same, "
                    "or another folder."
                )
        self._restore(state)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.closed is not None:
            self.closed.load_state_dict(state["closed"])
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self.device)
        for name in ("epoch", "position", "loss_sum", "elapsed", "stale", "finished"):
            setattr(self, name, state[name])
        self.history, self.best, self.good = state["history"], state["best"], state["good"]
        return True
