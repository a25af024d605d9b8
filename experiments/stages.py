"""The fits of a run that has several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..data import Dataset
from ..inference.fit import Fit

__all__ = ["Options", "Pair", "Stage", "Stages", "no_stages"]

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
