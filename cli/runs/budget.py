"""The length of a run from one budget, in time or in steps: epochs of all of its parts.

A time is planned by one epoch of the run's own pair, one of its training as numbers, and its tests,
which are timed before it begins.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ...data import Dataset, PyroccamError
from ...inference.posterior import mean_network
from ...inference.training import (
    EVALUATIONS,
    MOST_STEPS,
    RATES,
    Pace,
    Replicate,
    Settings,
    Trainer,
    epochs_of_numbers,
    pick_device,
    trainer_of,
)
from ..methods import Pair
from .building import build_network, untrained
from .config import RunConfig

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}

LENGTHS = ("epochs", "steps")
"""Settings that say how long a run is."""

USED = 0.9
"""The share of a time that is planned for: a machine is slower at times."""

LONG = 1000
"""Epochs of a run that has every part."""

COMPILES = 180.0
"""Seconds of training from which on steps may be compiled, which takes a minute or so."""

FIGURES = 5.0
"""Seconds of figures, files and the speed of small networks, beside what predictions take."""


@dataclass(frozen=True)
class Budget:
    """What was asked for: seconds of the whole run, or its optimiser steps."""

    asked: str
    seconds: float | None
    steps: int | None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """From ``90s``, ``5min``, ``1h`` or ``6000steps``."""
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?(s|min|h|steps)", text)
        number = 0.0 if found is None else float(found[1])
        steps = found is not None and found[2] == "steps"
        if found is None or not number or (steps and number % 1):
            raise PyroccamError(f"--budget {text}", "90s, 5min, 1h or 6000steps, say")
        if steps:
            return cls(text, None, int(number))
        return cls(text, number * _UNITS[found[2]], None)


class Part(NamedTuple):
    """Trainings of a run that are alike: what is trained, how many at most, the epochs of each."""

    name: str
    number: int
    epochs: int


@dataclass(frozen=True)
class Paces:
    """How long an epoch of a pair and of a training as numbers takes, and seconds of tests, figures
    and files in the end."""

    fit: Pace
    plain: Pace
    end: float

    def seconds(self, config: RunConfig, data: Dataset, compare: bool) -> float:
        """Of a whole run."""
        most, total = config.training.evaluations, self.end
        for part in parts_of(config, data, compare):
            plain = part.name in ("numbers", "search")
            pace, at_most = (self.plain, EVALUATIONS) if plain else (self.fit, most)
            every = math.ceil(part.epochs / at_most)
            looks = math.ceil(part.epochs / every) if every else 1
            each = pace.begin + part.epochs * pace.epoch + looks * pace.evaluation
            total += part.number * each
        return total


def parts_of(config: RunConfig, data: Dataset, compare: bool) -> list[Part]:
    """The trainings of a run, in their order."""
    whole, method = config.training, config.chosen
    names = [config.method, *(stage.name for stage in config.stages)]
    found = []
    if epochs := method.numbers(whole, data) or (compare and method.plain_epochs(whole, data)):
        rates = len(method.rates(whole))
        found = [Part("numbers", 1, epochs_of_numbers(epochs, len(data.x_val) > 0, rates))]
    found += [
        Part(name, 1, Settings.of(config.settings_of(number)).epochs_for(data.N))
        for number, name in enumerate(names)
    ]
    more = method.trainings(whole, data, compare)
    return found + [Part(name, *each) for name, each in more.items()]


def with_epochs(config: RunConfig, data: Dataset, epochs: int) -> RunConfig:
    """A run of so many epochs, its parts in the proportions that they have."""
    usual = config.training.epochs_for(data.N)
    options = dict(config.options)
    for name in config.chosen.lengths:
        if options[name]:
            options[name] = max(1, round(options[name] * epochs / usual))
    settings = {k: v for k, v in config.settings.items() if k not in LENGTHS}
    return replace(config, options=options, settings={**settings, "epochs": epochs})


def same_length(config: RunConfig, other: RunConfig, sets: Mapping[str, Any]) -> RunConfig:
    """A run with what a budget chose for another one of the same method; settings that were asked
    for stay."""
    settings = {name: v for name, v in config.settings.items() if name not in LENGTHS}
    settings |= {
        n: other.settings[n] for n in ("epochs", "compile") if n in other.settings and n not in sets
    }
    options = {**config.options, **{n: other.options[n] for n in config.chosen.lengths}}
    return replace(config, settings=settings, options=options, budget=other.budget)


def within(
    budget: Budget,
    config: RunConfig,
    data: Dataset,
    *,
    compare: bool,
    device: str,
    kept: RunConfig | None,
    sets: Mapping[str, Any],
    began: float,
    clock: Callable[[], float] = time.perf_counter,
) -> RunConfig:
    """A run that keeps to a budget. What was chosen is in its configuration: a run that is gone on
    with is as long as it was to be when it began, on whatever machine.

    Arguments:
        config: the run, with the proportions of its parts.
        kept: the same run as it was begun, if it was.
        sets: settings that were asked for.
        began: when the command began, by the ``clock`` in seconds.
    """
    for name in (*LENGTHS, *config.chosen.lengths):
        if sets.get(name) is not None:
            raise PyroccamError(f"both --budget and {name}={sets[name]!r}", "one length")
    if kept is not None:
        if kept.budget.get("asked") != budget.asked:
            then = f"--budget {kept.budget['asked']}" if kept.budget else "no --budget"
            raise PyroccamError(f"the run was started with {then}", "the same")
        return same_length(config, kept, sets)
    paces, most = None, float(budget.steps or 0)
    if budget.seconds is not None:
        if config.settings.get("compile") is None:
            config = replace(config, settings={**config.settings, "compile": "graph"})
        where = data.to(pick_device(device))
        paces = measure(with_epochs(config, data, LONG), where, clock)
        most = USED * budget.seconds - (clock() - began)
    found = choose(config, data, budget.asked, most, paces, compare=compare)
    long = paces is not None and paces.seconds(found, data, compare) >= COMPILES
    if long and "compile" not in sets:
        found = replace(found, settings={**found.settings, "compile": None})
    return found


def measure(
    config: RunConfig, data: Dataset, clock: Callable[[], float] = time.perf_counter
) -> Paces:
    """The paces of a run, by its own steps, evaluations and tests on the device of the data. Random
    numbers stay as they are."""
    device, chosen = data.device, config.chosen
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run says it
        torch.manual_seed(config.settings["seed"])
        begin = partial(build_network, config, data)
        first = chosen.build(begin(), data)
        pairs = [first, *chosen.further(begin, data).values()]
        paces = [_trainer(config, pair, data).rehearse(clock) for pair in pairs]
        result = untrained(first, data, config.training)
        plain = paces[0]
        if {"numbers", "search"} & {part.name for part in parts_of(config, data, False)}:
            net = mean_network(result.model, result.guide)
            plain = trainer_of(net, result, LONG, RATES[0]).rehearse(clock)
        start = clock()
        chosen.on_test(result)
        end = FIGURES + chosen.passes * (clock() - start)
    return Paces(max(paces, key=lambda pace: pace.epoch), plain, end)


def _trainer(config: RunConfig, pair: Pair, data: Dataset) -> Trainer:
    model, guide = pair
    for part in pair:
        part.to(data.device)
    settings = Settings.of(config.settings_of(0))
    return Trainer([Replicate(model, guide, data, settings.seed)], settings)


def choose(
    config: RunConfig,
    data: Dataset,
    asked: str,
    most: float,
    paces: Paces | None,
    *,
    compare: bool,
) -> RunConfig:
    """The longest run that a budget allows, with what was chosen in its ``budget``.

    Arguments:
        config: the run, with the proportions of its parts.
        asked: the budget, in words.
        most: seconds that are left, or steps.
        paces: of the run; without them it is steps that count.
    """

    each = config.training.steps_per_epoch(data.N)

    def steps(epochs: int) -> list[tuple[str, int]]:
        parts = parts_of(with_epochs(config, data, epochs), data, compare)
        return [(name, number * length * each) for name, number, length in parts]

    def cost(epochs: int) -> float:
        if paces is None:
            return sum(count for _, count in steps(epochs))
        return paces.seconds(with_epochs(config, data, epochs), data, compare)

    def said(epochs: int) -> str:
        unit = " steps" if paces is None else " s"
        told = ", ".join(f"{'up to ' * (n == 'search')}{k:,} {n}" for n, k in steps(epochs))
        return f"{epochs:,} epochs, as steps: {told}; {cost(epochs):,.0f}{unit} in all"

    least = _least(config, data, compare)
    if cost(least) > most:
        raise PyroccamError(f"--budget {asked} is too short", f"what the least asks: {said(least)}")
    low, high = least, 1 + MOST_STEPS // each
    while high - low > 1:  # the first is allowed, the second is not
        middle = min((low + high) // 2, 2 * low)
        low, high = (middle, high) if cost(middle) <= most else (low, middle)
    chosen = with_epochs(config, data, low)
    return replace(chosen, budget={"asked": asked, "said": f"--budget {asked}: {said(low)}."})


def _least(config: RunConfig, data: Dataset, compare: bool) -> int:
    """The fewest epochs of which every part of a run has one."""

    def names(epochs: int) -> list[str]:
        try:
            found = parts_of(with_epochs(config, data, epochs), data, compare)
        except ValueError:  # too short to follow each other
            return []
        return [part.name for part in found]

    every = names(LONG)
    return next((n for n in range(1, LONG) if names(n) == every), LONG)
