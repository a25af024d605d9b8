"""The paces of a run, measured on pairs that are thrown away."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ...data import Dataset
from ...data.errors import PyroccamError
from ...inference.fits.fitting import Fit, pick_device
from ...inference.fits.retraining import RATES, PlainTraining, row_losses
from ...inference.pruning.decision import SMALLER
from ...inference.training.replicate import Replicate
from ...inference.training.settings import Settings
from ...inference.training.trainer import Pace, Trainer
from ..methods.base import Pair
from .budget import USED, Budget, Paces, choose, parts_of, refuse_lengths, same_length
from .building import build_network, untrained
from .config import RunConfig
from .run import RunOptions, begun

__all__ = ["measure", "within"]

FIGURES = 5.0
"""Seconds of figures, files and the speed of small networks, beside what predictions take."""

RETRAINED = 64
"""Steps of a training as numbers that are timed, of a network that was not cut."""


def within(
    budget: Budget,
    config: RunConfig,
    data: Dataset,
    options: RunOptions,
    out: Path,
    sets: Mapping[str, Any],
    began: float,
    clock: Callable[[], float] = time.perf_counter,
) -> RunConfig:
    """A run that keeps to a budget. What was chosen is in its configuration: a run that is gone on
    with is as long as it was to be when it began, on whatever machine.

    Arguments:
        config, data: the run, with the proportions of its parts.
        options: as it is run.
        out: its folder.
        sets: settings that were asked for.
        began: when the command began, by the ``clock`` in seconds.

    Raises:
        PyroccamError: for a budget that is too short, or is not the only length asked for.
    """
    refuse_lengths(config, sets)
    if options.resume and (out / "config.json").exists() and begun(out):
        kept = RunConfig.read(out)
        if kept.budget.get("asked") == budget.asked:
            return same_length(config, kept, sets)
        then = f"with --budget {kept.budget.get('asked')}" if kept.budget else "without --budget"
        raise PyroccamError(f"{out} was started {then}.\nRepeat the command as it was.")
    where = data.to(pick_device(options.device)) if budget.steps is None else data
    return choose(
        config,
        where,
        budget,
        compare=options.compare,
        free="batch_size" not in sets and not config.chosen.full_batch,
        measure=partial(measure, data=where, compare=options.compare, clock=clock),
        left=lambda: USED * (budget.seconds or 0.0) - (clock() - began),
    )


def measure(
    config: RunConfig,
    known: Paces | None = None,
    *,
    data: Dataset,
    compare: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> Paces:
    """The paces of a run, by its own steps, evaluations and tests; or those that are known, if they
    are of steps that run in the same way. Random numbers stay as they are.

    Arguments:
        data: on the device.
        compare: the run trains other networks for comparison.
        clock: the time in seconds.
    """
    device = data.device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run says it
        torch.manual_seed(config.settings["seed"])
        chosen = config.chosen
        begin = partial(build_network, config, data)
        parts = parts_of(config, data, compare)
        first, *others = [part.name for part in parts if part.name != "numbers"]
        pairs = {first: chosen.build(begin(), data)}
        pairs |= {n: pair for n, pair in chosen.further(begin, data).items() if n in others}
        trainers = {name: _trainer(config, pair, data) for name, pair in pairs.items()}
        size = Settings.of(config.settings).batch_size
        if known is not None:
            ways = (_way(one, known.pays_from.get(name)) for name, one in trainers.items())
            if known.engine == (size, *ways):
                return known
        paces = {name: one.rehearse(clock) for name, one in trainers.items()}
        pays_from = {name: one.step.pays_from for name, one in trainers.items()}
        engine = (size, *(_way(one, pays_from[name]) for name, one in trainers.items()))
        stages = [stage.name for stage in config.stages]
        result = untrained(pairs[first], data, Settings.of(config.settings))
        end = _end(config, result, clock) if known is None else known.end
        for part in parts:
            if part.name in ("numbers", "search"):
                paces[part.name] = _retraining(result, part.number, clock)
            paces.setdefault(part.name, [*paces.values()][-1 if part.name in stages else 0])
    return Paces(paces, end, engine, pays_from)


def _way(trainer: Trainer, pays_from: int | None) -> bool | Literal["graph"] | None:
    """How the steps of a trainer run, if it is known from how many on they are compiled."""
    step = trainer.step
    if step.compile is not None or pays_from is None:
        return step.compile
    return any(steps >= pays_from for steps in (step.steps or {}).values()) or "graph"


def _trainer(config: RunConfig, pair: Pair, data: Dataset) -> Trainer:
    model, guide = pair
    for part in pair:
        part.to(data.device)
    settings = Settings.of(config.settings_of(0))
    return Trainer([Replicate(model, guide, data, settings.seed)], settings)


def _end(config: RunConfig, result: Fit, clock: Callable[[], float]) -> float:
    """Seconds of tests, figures and files."""
    for _ in range(2):
        start = clock()
        config.chosen.on_test(result)
        took = clock() - start
        if took > 2.0:  # what was imported for it is little
            break
    return FIGURES + config.chosen.passes * took


def _retraining(result: Fit, number: int, clock: Callable[[], float]) -> Pace:
    """The mean pace at which networks of a search are trained as numbers. The first are whole; the
    others are taken to be half as slow as that, beside what a step takes of however few rows."""
    net = result.posterior.mean_network()
    row_losses(net, result)
    start = clock()
    row_losses(net, result)
    look = clock() - start
    begin, whole = _step(net, result, result.settings.batch_size, look, clock)
    least = min(whole, _step(net, result, 2, look, clock)[1])
    smaller = SMALLER / number if number > SMALLER else 0.0
    step = whole - smaller * (whole - least) / 2
    # A last, smaller batch is traced, too.
    return Pace(3 * look + 2 * begin, step * result.settings.steps_per_epoch(result.data.N), look)


def _step(
    net: nn.Module, result: Fit, size: int, look: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Seconds to trace a step of so many rows, of the training as numbers, and of each step."""
    data = result.data
    rows = min(data.N, RETRAINED * size) // size * size or data.N  # of one shape of batch
    some = data.first(rows)
    settings = replace(result.settings, batch_size=size)
    each = settings.steps_per_epoch(some.N)
    epochs = math.ceil(RETRAINED / each)
    training = PlainTraining(net, replace(result, data=some, settings=settings))
    times = []
    for _ in range(2):
        start = clock()
        training(epochs, RATES[0])
        times.append(clock() - start)
    first, again = times
    looks = max(0.0, again - (epochs + 1) * look)
    return max(0.0, first - again), looks / (epochs * each)
