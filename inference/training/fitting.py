"""``fit``: train a (model, guide) pair on a data set, whatever the method."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

from ...data import Between, Options, PyroccamError, checked
from ...models import fitting, reseeded
from ...models.likelihoods import precision
from ..distributed import joined
from ..storage import (
    CHECKPOINT,
    HISTORY,
    WEIGHTS,
    Watch,
    Watched,
    claimed,
    save_weights,
    seal,
    versions,
    write_history,
    write_json,
)
from .replicate import Replicate, Track
from .requests import check_kinds, pick_device, refuse_one_network
from .result import Fit, G, M, Repeats
from .settings import Settings
from .terminal import FitProgress, StopSignal
from .trainer import Interrupted, NonFiniteLoss, Trainer

if TYPE_CHECKING:
    from ...data import Dataset


@checked
def fit(
    model: M,
    guide: G,
    data: Dataset,
    *,
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    threshold: float = 0.95,
    label: str | None = None,
    track: Track | None = None,
    watch: Watch = None,
    **settings: Any,
) -> Fit[M, G]:
    """Train a pair by stochastic variational inference.

    The checkpoint is chosen by the negative log-likelihood on the validation rows, which are carved
    from the training rows (without any, by the training loss); of random weights the last is taken
    (``checkpoint=``). The test rows are never looked at.

    In processes that :func:`pyroccam.inference.distributed.launch` has started, all of them call
    this with the same arguments, and it is one fit: each process takes its part of every batch,
    with noise of its own, and gets the same result; the first one writes the files.

    Arguments:
        model, guide: a pair; both are trained in place.
        data: a :class:`pyroccam.data.Dataset`.
        device: ``auto`` (CUDA if there is one), ``cpu``, ``cuda``, ``cuda:1``, ...
        out: folder for checkpoints, ``fit.json`` (settings, versions, structure), history and
            weights.
        resume: go on from the checkpoint in ``out``, to the same result bit for bit on CPU (same
            number of threads and of processes); starts anew if there is none.
        progress: show a bar; ``None`` shows it on a terminal only.
        threshold: of the 95 % rule.
        label: in front of the bar.
        track: a function of model, guide and data that is called at each evaluation, in evaluation
            mode; the numbers that it gives by name stand in ``history`` (and ``history.csv``). The
            training goes on as if it had not been called.
        watch: a function that is told each row of the history as it comes, such as ``print``.
        settings: see :class:`~pyroccam.inference.training.settings.Settings`.

    Raises:
        PyroccamError: for settings or a pair that cannot be run.
        NonFiniteLoss: if the loss turns NaN or infinite.
        RanksError: if processes disagree, cannot be reached, or one of them has ended.
        Interrupted: on Ctrl-C, SIGTERM or SIGHUP, after saving; where the training is over by then,
            after all is written (the ``fits`` of the error).
        Busy: while a fit is running in another thread.
        FolderInUse: if another fit writes into ``out``.
        FolderLost: if ``out`` is removed meanwhile.
        FileExistsError: if ``out`` holds a checkpoint and ``resume`` is not asked for.
        CheckpointError: if ``resume`` meets a checkpoint that does not belong to this run.
    """
    chosen = Settings.of(settings)
    how = RunOptions(device, resume, progress, threshold, label, watch)
    check_kinds(model, guide, data)
    folder = None if out is None else Path(out)
    one = Replicate(model, guide, data, chosen.seed, folder, track)
    (result,) = train([one], chosen, folder, how)
    return result


@dataclass(frozen=True)
class RunOptions(Options):
    """How a fit is run, whatever its result; see :func:`fit`."""

    device: Any = "auto"
    resume: bool = False
    progress: bool | None = None
    threshold: Annotated[float, Between(0.0, 1.0, "(]")] = 0.95
    label: Any = None
    watch: Watch = None
    several: bool = False


def train(
    replicates: Sequence[Replicate], settings: Settings, folder: Path | None, how: RunOptions
) -> list[Fit[Any, Any]]:
    """Train one pair, or several in common steps, whose checkpoint is in one folder."""
    modules = [part for one in replicates for part in (one.model, one.guide)]
    ranks = joined()
    folders = {path for path in (folder, *(one.out for one in replicates)) if path and ranks.first}
    with ExitStack() as held:
        stop = held.enter_context(StopSignal(patient=ranks.size > 1))
        held.enter_context(fitting(*modules))
        # Gradients, where a person has none: in a callback of another fit, for one.
        held.enter_context(torch.inference_mode(False))
        held.enter_context(torch.enable_grad())
        for path in sorted(folders):
            held.enter_context(claimed(path))
        if how.resume and folder is None and ranks.first:
            raise PyroccamError("resume=True without a folder", "out=")
        where = ranks.device(pick_device(how.device))
        moved: dict[int, Dataset] = {}  # replicates that share their data go on sharing it
        for one in replicates:
            if (own := id(one.data)) not in moved:
                double = torch.float64 if precision(one.model) is torch.float64 else None
                moved[own] = one.data.to(where, double)
            one.move(moved[own])
            if (one.out or how.watch) and ranks.first:
                one.watched = Watched(one.out, how.watch, one.seed if how.several else None)
        with reseeded(ranks.seed(settings.seed), where):
            trainer = Trainer(replicates, settings, out=folder)
            if how.resume:
                trainer.load()
            elif folder and ranks.first and (folder / CHECKPOINT).exists():
                raise FileExistsError(f"{folder} holds the checkpoint of a fit (resume=True)")
            name = str(how.label) if how.label else type(replicates[0].model).__name__
            name += f" x {len(replicates)}" if len(replicates) > 1 else ""
            shown = how.progress if ranks.first else False
            with FitProgress(name, trainer.total_steps, shown, trainer.step_number) as bar:
                trainer.run(bar, stop)
        sound = [_finish(one, trainer, how.threshold) for one in replicates if one.broken is None]
        if len(sound) == len(replicates):
            trainer.settle()
        if ranks.any(bool(stop)):
            kept = "saved; resume=True gives it" if folder else "the fits of this error"
            kept = ranks.from_first(lambda: kept)
            interrupted = Interrupted(f"Stopped after the last step, the fit is complete ({kept}).")
            interrupted.fits = sound
            raise interrupted
        if len(sound) < len(replicates):
            broken = [f"seed {one.seed}: {one.broken}" for one in replicates if one.broken]
            error = NonFiniteLoss(
                f"{len(broken)} of {len(replicates)} replicates were given up, the others are"
                f" complete (the fits of this error). {' '.join(broken)}"
            )
            error.fits = sound
            raise error
        return sound


_SAID = ("settings", "best_epoch", "val_nll", "seconds", "engine", "structure")


def _finish(one: Replicate, trainer: Trainer, threshold: float) -> Fit[Any, Any]:
    """The result of a replicate, written to its folder."""
    best = one.best
    assert best is not None
    structure = one.pair.structure(one.data, threshold, best["running"], one.kl_weight)
    settings = dataclasses.replace(trainer.settings, seed=one.seed)
    result = Fit(
        model=one.model,
        guide=one.guide,
        data=one.data,
        settings=settings,
        history=one.history,
        best_epoch=best["epoch"],
        val_nll=best["value"],
        seconds=trainer.elapsed,
        structure=structure,
        weights=one.pair.shares,
        out=one.out,
        engine={**trainer.step.describe(), "processes": trainer.ranks.size},
    )
    if one.out is not None and trainer.ranks.first:
        described = {name: getattr(result, name) for name in _SAID}
        described["settings"] = vars(settings)
        described["structure"] = None if structure is None else structure.to_json()
        write_json(one.out / "fit.json", {**described, "versions": versions()})
        write_history(one.out / HISTORY, result.history)
        save_weights(one.out / WEIGHTS, model=one.model, guide=one.guide)
        seal(one.out)
    return result


@checked
def fit_repeats(
    build: Callable[[int], tuple[M, G, Dataset]],
    seeds: Sequence[int],
    *,
    together: bool | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Repeats[M, G]:
    """Fit afresh for each seed, all in common steps where that pays.

    Together, the replicates are one vectorised network
    (:class:`~pyroccam.inference.training.step.TrainingStep`): each has its own initial weights,
    data, order of rows, noise, early stopping and chosen checkpoint, as it has alone. Results agree
    with single fits in distribution, not bit for bit: sums are ordered otherwise, and noise is
    drawn from a common stream.

    Arguments:
        build: makes model, guide and data for a seed; torch is seeded before the call, so that
            initial weights differ too.
        seeds: one for each repeat.
        together: in common steps. ``None`` does so for small networks without convolutions, if the
            replicates differ in their values only.
        out: each repeat gets the folder ``seed-<n>`` inside it; a common checkpoint is in ``out``.
        options: all others of :func:`fit`, settings among them; rows that ``watch`` is told have
            their ``seed``.

    Raises:
        PyroccamError: with ``together=True``, if the replicates differ in more than values.
        NonFiniteLoss: as for :func:`fit`; the sound fits are the ``fits`` of the error: together,
            all the others, which are finished first; else those before it.
        Interrupted: as for :func:`fit`; the ``fits`` of the error are those that are complete.
    """
    if "seed" in options:
        raise PyroccamError("seed=", "seeds=[...]")
    track = options.pop("track", None)
    run = {name: options.pop(name) for name in [*options] if name in vars(RunOptions())}
    how = RunOptions(**run, several=len(seeds) > 1)
    each = [Settings.of({**options, "seed": seed}) for seed in seeds]
    if not each or len(set(seeds)) < len(each):
        raise PyroccamError(f"seeds={[*seeds]}", "different numbers, at least one")
    start = time.perf_counter()
    folder = None if out is None else Path(out)
    made = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, guide, data = build(seed)
        check_kinds(model, guide, data)
        made.append(Replicate(model, guide, data, seed, folder and folder / f"seed-{seed}", track))
    refuse_one_network([one.model for one in made])
    if how.several and (_pays_together(made) if together is None else together):
        return Repeats(train(made, each[0], folder, how), time.perf_counter() - start)
    fits: list[Fit[M, G]] = []
    for one, own in zip(made, each, strict=True):
        try:
            fits += train([one], own, one.out, how)
        except (Interrupted, NonFiniteLoss) as error:
            error.fits = [*fits, *error.fits]
            raise
    return Repeats(fits, time.perf_counter() - start)


_SMALL = 200_000
"""Weights of a network; larger matrix products keep the processor busy alone."""


def _pays_together(replicates: Sequence[Replicate]) -> bool:
    first, *others = replicates
    # Convolutions of several networks become grouped convolutions, which no processor likes.
    if first.convolutional or sum(p.numel() for p in first.model.parameters()) > _SMALL:
        return False
    return all(first.unlike(other) is None for other in others)
