"""The fits of a run that has several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ...data import Dataset
from ...inference.fits.fitting import Fit
from ...models.checks import as_number

__all__ = ["Options", "Pair", "Stage", "Stages", "no_stages", "positive", "whole"]

Pair = tuple[Any, nn.Module]
Options = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A further fit of a run, which begins where the one before it ended.

    Attributes:
        name: of its folder, inside the run's.
        build: from the fit before and the options to a pair. It depends on nothing else: a finished
            run is rebuilt by it from the weights of the fit before, with the thresholds of a
            narrowing as they were found (``narrow_at``).
        settings: that replace those of the fit before.
        all_rows: train on the validation rows, too.
    """

    name: str
    build: Callable[[Fit, Options], Pair]
    settings: dict[str, Any] = field(default_factory=dict)
    all_rows: bool = False

    def rows(self, data: Dataset) -> Dataset:
        """The data of this fit, after a fit of ``data``."""
        return data.all_rows() if self.all_rows else data


Stages = Callable[[Options, dict[str, Any]], Sequence[Stage]]
"""From the options and the settings of a run to the fits that follow the first."""


def no_stages(options: Options, settings: dict[str, Any]) -> Sequence[Stage]:
    """Of a run of one fit."""
    return ()


def positive(options: Options, name: str) -> float:
    """A rate or weight of a later fit, which the message names as it was given.

    Raises:
        ValueError: if it is no positive, finite number.
    """
    number = as_number(options[name])
    if not 0 < number < math.inf:
        raise ValueError(f"{name}={options[name]!r}: give a positive, finite number.")
    return number


def whole(options: Options, name: str, least: int) -> int:
    """A number of epochs, or of rounds.

    Raises:
        ValueError: if it is no whole number, or less than ``least``.
    """
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give a whole number of at least {least}.")
    return value
