"""``fit``: train a (model, guide) pair on a data set, whatever the method."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..guides.depth import CategoricalDepth
from ..models.depth import LearntDepth
from . import run_directory
from .metrics import mean_spread
from .predict import depth_weights, evaluate_outputs, mixture_log_probs, outputs_by_depth
from .progress import FitProgress
from .settings import Settings
from .structure import Structure, exact_depth_posterior
from .trainer import Trainer

if TYPE_CHECKING:
    from ..data import Dataset

__all__ = ["Fit", "Repeats", "fit", "fit_repeats", "pick_device"]


@dataclass
class Fit:
    """A trained pair.

    Attributes:
        model, guide: with the weights of the chosen checkpoint, in evaluation mode.
        data: on the device of the fit.
        settings: as run.
        history: one row for each evaluation.
        best_epoch: of the chosen checkpoint.
        val_nll: of the chosen checkpoint on the validation rows (the training loss if there are
            none), in nats; regression targets standardised.
        seconds: spent in training steps and evaluations, over all sittings.
        structure: what was learnt about depth; ``None`` for a model of fixed depth.
    """

    model: Any
    guide: nn.Module
    data: Dataset
    settings: Settings
    history: list[dict[str, float]]
    best_epoch: int
    val_nll: float
    seconds: float
    structure: Structure | None
    weights: Tensor = field(repr=False)
    out: Path | None = None

    def evaluate(self, split: str = "test") -> dict[str, float]:
        """Metrics on a split, marginalised over depth: accuracy, NLL, Brier, ECE, or RMSE, NLL."""
        x, y = self.data.split(split)
        outputs = outputs_by_depth(self.model, x)
        return evaluate_outputs(outputs, self.weights, self.model.likelihood, y, self.data.y_std)

    def predict(self, x: Tensor) -> Tensor:
        """Predictive log-probabilities ``(B, C)``, or means ``(B, T)`` of standardised targets.

        Arguments:
            x: inputs ``(B, *)``, standardised as the data set is.
        """
        outputs = outputs_by_depth(self.model, x.to(self.weights.device))
        if self.model.likelihood.task == "classification":
            return mixture_log_probs(outputs, self.weights)
        return torch.einsum("s,sbt->bt", self.weights, outputs)


def fit(
    model: Any,
    guide: nn.Module,
    data: Dataset,
    *,
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    threshold: float = 0.95,
    label: str | None = None,
    **settings: Any,
) -> Fit:
    """Train a pair by stochastic variational inference.

    The checkpoint is chosen by the negative log-likelihood on the validation rows, which are carved
    from the training rows (without any, by the training loss). The test rows are never looked at.

    Arguments:
        model, guide: a pair; both are trained in place.
        data: a :class:`pyroccam.data.Dataset`.
        device: ``auto`` (CUDA if there is one), ``cpu``, ``cuda``, ``cuda:1``, ...
        out: folder for checkpoints, ``fit.json`` (settings, versions, structure), history and
            weights.
        resume: go on from the checkpoint in ``out``, to the same result bit for bit on CPU (same
            number of threads); starts anew if there is none.
        progress: show a bar; ``None`` shows it on a terminal only.
        threshold: of the 95 % rule.
        label: in front of the bar.
        settings: see :class:`~pyroccam.inference.settings.Settings`.

    Raises:
        ValueError, TypeError: for settings or a pair that cannot be run.
        NonFiniteLoss: if the loss turns NaN or infinite.
        Interrupted: on Ctrl-C or SIGTERM, after saving.
        FileExistsError: if ``out`` holds a checkpoint and ``resume`` is not asked for.
        CheckpointError: if ``resume`` meets a checkpoint that does not belong to this run.
    """
    chosen = Settings.of(settings)
    if resume and out is None:
        raise ValueError("resume=True needs out=, the folder of the run to go on with.")
    where = pick_device(device)
    folder = None if out is None else Path(out)
    data = data.to(where)
    model.to(where)
    if data.x_train.dim() == 4:  # convolutions are faster so, and compute the same
        model.to(memory_format=torch.channels_last)
    guide.to(where)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.default_generator.manual_seed(chosen.seed)  # only what is put back afterwards
        if where.type == "cuda":
            with torch.cuda.device(where):
                torch.cuda.manual_seed(chosen.seed)
        trainer = Trainer(model, guide, data, chosen, out=folder)
        if resume:
            trainer.load()
        elif folder is not None and (folder / run_directory.CHECKPOINT).exists():
            raise FileExistsError(
                f"{folder} holds the checkpoint of another fit. Go on with it with resume=True, or "
                "give another out=."
            )
        with FitProgress(
            label or type(model).__name__, trainer.total_steps, progress, trainer.step_number
        ) as bar:
            trainer.run(bar)
    assert trainer.best is not None
    weights = depth_weights(model, guide, data)
    structure = None
    if isinstance(model, LearntDepth):
        exact = exact_depth_posterior(model, data)
        q = weights if not isinstance(guide, CategoricalDepth) else guide.probs
        structure = Structure.from_probs(q, exact, threshold, trainer.best["running"])
    result = Fit(
        model=model,
        guide=guide,
        data=data,
        settings=chosen,
        history=trainer.history,
        best_epoch=trainer.best["epoch"],
        val_nll=trainer.best["value"],
        seconds=trainer.elapsed,
        structure=structure,
        weights=weights,
        out=folder,
    )
    if folder is not None:
        described = {"settings": vars(chosen), "best_epoch": result.best_epoch}
        described |= {"val_nll": result.val_nll, "seconds": result.seconds}
        described["structure"] = None if structure is None else structure.to_json()
        described["versions"] = run_directory.versions()
        run_directory.write_json(folder / "fit.json", described)
        run_directory.write_history(folder / "history.csv", result.history)
        run_directory.save_weights(folder / "model.safetensors", model=model, guide=guide)
    return result


@dataclass
class Repeats:
    """Several fits that differ in their seeds."""

    fits: list[Fit]
    seconds: float

    def spread(self, metrics: Callable[[Fit], dict[str, float]] = Fit.evaluate) -> dict[str, Any]:
        """Mean, standard deviation and number of each metric over the repeats."""
        return mean_spread([metrics(one) for one in self.fits])


def fit_repeats(
    build: Callable[[int], tuple[Any, nn.Module, Dataset]],
    seeds: Sequence[int],
    *,
    out: str | Path | None = None,
    **arguments: Any,
) -> Repeats:
    """Fit afresh for each seed.

    Arguments:
        build: makes model, guide and data for a seed; torch is seeded before the call, so that
            initial weights differ too.
        seeds: one for each repeat.
        out: each repeat gets the folder ``seed-<n>`` inside it.
        arguments: as for :func:`fit`.
    """
    fits = []
    start = time.perf_counter()
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, guide, data = build(seed)
        folder = None if out is None else Path(out) / f"seed-{seed}"
        fits.append(fit(model, guide, data, out=folder, **{**arguments, "seed": seed}))
    return Repeats(fits, time.perf_counter() - start)


def pick_device(name: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda[:n]`` to a device that is there.

    Raises:
        ValueError: if it is not.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"Unknown device {name!r}: use auto, cpu, cuda or cuda:<n>.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}, but torch finds no CUDA here. Use auto or cpu.")
    return device
