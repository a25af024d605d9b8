"""The length of a run from one budget, in time or in steps: epochs of all of its parts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...data import Dataset
from ...data.errors import PyroccamError
from ...inference.training.settings import MOST_STEPS, Settings
from ...inference.training.trainer import Pace
from .config import RunConfig

__all__ = [
    "USED",
    "Budget",
    "Paces",
    "Part",
    "choose",
    "parts_of",
    "refuse_lengths",
    "same_length",
    "twice",
]

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}

LENGTHS = ("epochs", "steps")
"""Settings that say how long a run is."""

_CHOSEN = ("epochs", "batch_size", "compile")

USED = 0.9
"""The share of a time that is planned for: a machine is slower at times."""

BATCHES = (512, 4096)
"""Larger batches that are tried where the method's are too many."""

NUMBERS = 2**22
"""Numbers in the inputs of a larger batch, at most: what a network makes of them takes memory."""

LONG = 1000
"""Epochs of a run that has every part."""

COMPILES = 180.0
"""Seconds of traced steps from which on it may pay to compile them, which takes a minute or so."""


@dataclass(frozen=True)
class Budget:
    """What was asked for: seconds of the whole run, or its optimiser steps."""

    asked: str
    seconds: float | None
    steps: int | None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """From ``90s``, ``5min``, ``1h`` or ``6000steps``.

        Raises:
            PyroccamError: for another text, or nothing at all.
        """
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?(s|min|h|steps)", text)
        number = 0.0 if found is None else float(found[1])
        steps = found is not None and found[2] == "steps"
        if found is None or not number or (steps and number % 1):
            raise PyroccamError(
                f"--budget {text}: expected a time or a number of steps.\n"
                "Try --budget 90s, 5min, 1h or 6000steps."
            )
        if steps:
            return cls(text, None, int(number))
        return cls(text, number * _UNITS[found[2]], None)


@dataclass(frozen=True)
class Part:
    """Trainings of a run that are alike.

    Attributes:
        name: what is trained.
        number: how many, at most.
        epochs: of each.
    """

    name: str
    number: int
    epochs: int


@dataclass(frozen=True)
class Paces:
    """How long parts of a run take.

    Attributes:
        parts: by name.
        end: seconds of tests, figures and files.
        engine: how the steps run: rows of a batch, and whether they are compiled, of each pair.
        pays_from: by pair, steps from which on they are compiled.
    """

    parts: Mapping[str, Pace]
    end: float
    engine: tuple[int | str | None, ...] = ()
    pays_from: Mapping[str, int | None] = field(default_factory=dict)

    def seconds(self, config: RunConfig, data: Dataset, compare: bool) -> dict[str, float]:
        """Of each part of a run."""
        most, found = Settings.of(config.settings).evaluations, {}
        for part in parts_of(config, data, compare):
            pace = self.parts[part.name]
            looks = math.ceil(part.epochs / math.ceil(part.epochs / most))
            each = pace.begin + part.epochs * pace.epoch + looks * pace.evaluation
            found[part.name] = part.number * each
        return found


Measure = Callable[[RunConfig, "Paces | None"], Paces]
"""The paces of a run, and where steps run as those of the paces that are known, these."""


def refuse_lengths(config: RunConfig, sets: Mapping[str, Any]) -> None:
    """A budget is the only length that is asked for.

    Arguments:
        sets: settings that were asked for.

    Raises:
        PyroccamError: if another one is.
    """
    for name in (*LENGTHS, *config.chosen.lengths):
        if sets.get(name) is not None:
            raise PyroccamError(
                f"--budget chooses the length of the whole run, and {name}={sets[name]!r} another "
                "one.\nLeave one of them out."
            )


def parts_of(config: RunConfig, data: Dataset, compare: bool) -> list[Part]:
    """The trainings of a run, in their order."""
    whole, method = Settings.of(config.settings), config.chosen
    names = [config.method, *(stage.name for stage in config.stages)]
    found = [Part("numbers", *first)] if (first := method.numbers(whole, data))[0] else []
    found += [
        Part(name, 1, Settings.of(config.settings_of(number)).epochs_for(data.N))
        for number, name in enumerate(names)
    ]
    more = method.trainings(whole, data, compare)
    return found + [Part(name, *each) for name, each in more.items()]


def with_epochs(config: RunConfig, data: Dataset, epochs: int) -> RunConfig:
    """A run of so many epochs, its parts in the proportions that they have."""
    usual = Settings.of(config.settings).epochs_for(data.N)
    options = dict(config.options)
    for name in config.chosen.lengths:
        if options[name]:
            options[name] = max(1, round(options[name] * epochs / usual))
    settings = {k: v for k, v in config.settings.items() if k not in LENGTHS}
    return replace(config, options=options, settings={**settings, "epochs": epochs})


def steps_of(config: RunConfig, data: Dataset, compare: bool) -> int:
    """Optimiser steps of a whole run, at most."""
    each = Settings.of(config.settings).steps_per_epoch(data.N)
    return sum(part.number * part.epochs for part in parts_of(config, data, compare)) * each


def twice(config: RunConfig, data: Dataset, compare: bool) -> str:
    """The budget to ask for, for a run of twice the length."""
    asked = config.budget.get("asked", "")
    if found := re.fullmatch(r"([\d.]+) ?(\D+)", asked):
        return f"{2 * float(found[1]):.15g}{found[2]}"
    return f"{2 * steps_of(config, data, compare)}steps"


def same_length(config: RunConfig, other: RunConfig, sets: Mapping[str, Any]) -> RunConfig:
    """A run with what a budget chose for another one of the same method.

    Arguments:
        sets: settings that were asked for, which stay.
    """
    settings = {name: v for name, v in config.settings.items() if name not in LENGTHS}
    settings |= {n: other.settings[n] for n in _CHOSEN if n in other.settings and n not in sets}
    options = {**config.options, **{n: other.options[n] for n in config.chosen.lengths}}
    return replace(config, settings=settings, options=options, budget=other.budget)


def choose(
    config: RunConfig,
    data: Dataset,
    budget: Budget,
    *,
    compare: bool,
    free: bool,
    measure: Measure,
    left: Callable[[], float],
) -> RunConfig:
    """The longest run that a budget allows, with what was chosen in its ``budget``.

    Rows in a batch are those of the method; where so small ones do not leave every part an epoch,
    the fewest of the larger ones that do.

    Arguments:
        config, data: the run, with the proportions of its parts.
        compare: it trains other networks for comparison.
        free: the size of the batches may be chosen.
        measure: the paces of a run, for a time.
        left: seconds of a time that are left now.

    Raises:
        PyroccamError: for a budget that is too short.
    """
    size = Settings.of(config.settings).batch_size
    most = min(data.N // 10, NUMBERS // math.prod(data.input_shape)) if free else 0
    sizes = [size, *(b for b in BATCHES if size < b <= most)]
    tried: list[_Length] = []
    paces: Paces | None = None
    for rows in sizes:
        one = replace(config, settings={**config.settings, "batch_size": rows})
        if budget.steps is None:
            tried.append(_by_time(one, data, compare, paces, measure, left))
        else:
            tried.append(_longest(one, data, compare, None, budget.steps))
        paces = tried[-1].paces
        if tried[-1].epochs or (paces is not None and left() <= paces.end):
            break
    found = tried[-1]
    if not found.epochs:
        gone = 0.0 if budget.seconds is None else budget.seconds * USED - left()
        raise PyroccamError(
            f"--budget {budget.asked} is too short. The shortest run: "
            f"{found.said(data, compare, found.least)}.\nTry "
            f"--budget {found.enough(data, compare, gone)}, or larger batches (--set "
            "batch_size=...)."
        )
    said = f"--budget {budget.asked}: {found.said(data, compare, found.epochs)}."
    if found is not tried[0]:
        said += f" It is too short for {found.least} epochs in batches of {size}."
    chosen = with_epochs(found.config, data, found.epochs)
    return replace(chosen, budget={"asked": budget.asked, "said": said})


@dataclass(frozen=True)
class _Length:
    """What a budget allows for batches of one size: 0 epochs if nothing."""

    config: RunConfig
    epochs: int
    least: int
    paces: Paces | None

    def said(self, data: Dataset, compare: bool, epochs: int) -> str:
        """The parts of a run of so many epochs, in words."""
        config = with_epochs(self.config, data, epochs)
        whole = Settings.of(config.settings)
        each = whole.steps_per_epoch(data.N)
        told = []
        for part in parts_of(config, data, compare):
            most = "up to " if part.name == "search" else ""
            text = f"{most}{part.number * part.epochs * each:,} {part.name}"
            if self.paces is not None:
                text += f" ({1e3 * self.paces.parts[part.name].epoch / each:.2g} ms each)"
            told.append(text)
        many = "s" if epochs > 1 else ""
        text = f"{epochs:,} epoch{many} in batches of {whole.batch_size} rows, as steps: "
        text += ", ".join(told)
        if self.paces is None:
            return text
        total = sum(self.paces.seconds(config, data, compare).values())
        return f"{text}; {total:.0f} s of training and {self.paces.end:.0f} s of tests and figures"

    def enough(self, data: Dataset, compare: bool, gone: float) -> str:
        """The budget of the shortest run, beside seconds that have gone already."""
        config = with_epochs(self.config, data, self.least)
        if self.paces is None:
            return f"{steps_of(config, data, compare)}steps"
        total = sum(self.paces.seconds(config, data, compare).values()) + self.paces.end
        return f"{math.ceil((total + gone) / USED)}s"


def _by_time(
    config: RunConfig,
    data: Dataset,
    compare: bool,
    known: Paces | None,
    measure: Measure,
    left: Callable[[], float],
) -> _Length:
    """The steps are as fast as they are where there are so many of them."""
    plain = config.settings.get("compile") is None
    if plain:
        config = replace(config, settings={**config.settings, "compile": "graph"})
    paces = measure(with_epochs(config, data, LONG), known)
    found = _longest(config, data, compare, paces, left())
    for _ in range(2):  # a short run may not be traced
        epochs = found.epochs or found.least
        again = measure(with_epochs(config, data, epochs), paces)
        if again is paces:
            break
        paces = again
        found = _longest(config, data, compare, paces, left())
    if not plain or not found.epochs:
        return found
    seconds = paces.seconds(with_epochs(config, data, found.epochs), data, compare)
    if sum(s for name, s in seconds.items() if name != "search") < COMPILES:
        return found
    config = replace(config, settings={**config.settings, "compile": None})
    compiled = measure(with_epochs(config, data, found.epochs), paces)
    other = _longest(config, data, compare, compiled, left())
    return other if other.epochs > found.epochs else found


def _longest(
    config: RunConfig, data: Dataset, compare: bool, paces: Paces | None, most: float
) -> _Length:
    """The most epochs that a number of steps, or of seconds at some paces, allows."""

    def allowed(epochs: int) -> bool:
        one = with_epochs(config, data, epochs)
        if paces is None:
            return steps_of(one, data, compare) <= most
        return sum(paces.seconds(one, data, compare).values()) + paces.end <= most

    least = _least(config, data, compare)
    if not allowed(least):
        return _Length(config, 0, least, paces)
    low, high = least, 1 + MOST_STEPS // Settings.of(config.settings).steps_per_epoch(data.N)
    while high - low > 1:  # the first is allowed, the second is not
        middle = min((low + high) // 2, 2 * low)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return _Length(config, low, least, paces)


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
