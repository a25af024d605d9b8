"""Runs that are narrowed as they go: a fit, then others over what is left of the network."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...data import Dataset
from ...guides.base import NetworkGuide
from ...inference.cutting import cut
from ...inference.fits.fitting import Fit
from ...inference.pruning.narrowing import narrow
from ...inference.pruning.thresholds import (
    Threshold,
    by_layer_now,
    by_validation,
    refuse_uncut,
)
from ...inference.training.settings import Settings
from ...models.bayesian import BayesianNetwork
from .base import Pair, Stage

__all__ = [
    "first_settings",
    "lengths",
    "refuse_names",
    "refuse_uncuttable",
    "stages",
    "tell_uncuttable",
]


def lengths(at: Sequence[float], settings: Settings) -> tuple[str, list[int]]:
    """Unit and lengths of the fits of a run that is narrowed at fractions of the whole."""
    unit = "steps" if settings.epochs is None else "epochs"
    whole = settings.steps if settings.epochs is None else settings.epochs
    # Fractions that fall on one epoch are one.
    ends = sorted({max(1, round(f * whole)) for f in at} | {whole})
    return unit, [b - a for a, b in itertools.pairwise([0, *(e for e in ends if e <= whole)])]


def refuse_uncuttable(model: BayesianNetwork, guide: NetworkGuide, data: Dataset) -> None:
    """Try before the training whether the network can be cut at all.

    Raises:
        ValueError: if it cannot.
    """
    try:
        refuse_uncut(guide)
        _try_to_cut(model, data)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"This method cuts the network while it trains, which cannot be done: {error} "
            "--set narrow=[] trains the whole network to the end."
        ) from error


def tell_uncuttable(model: BayesianNetwork, data: Dataset) -> None:
    """Say before the training that the end of it will be no smaller network."""
    try:
        _try_to_cut(model, data)
    except (ValueError, RuntimeError) as error:
        warnings.warn(
            f"The network can be trained, but not be compressed in the end: {error}", stacklevel=2
        )


def _try_to_cut(model: BayesianNetwork, data: Dataset) -> None:
    cut(model.start_network(), data.x_train[:2].cpu())


def refuse_names(rule: Threshold | None, model: BayesianNetwork) -> None:
    """Refuse thresholds for layers that there are not, before the training."""
    if isinstance(rule, Mapping):
        by_layer_now(rule, model)


def first_settings(at: Sequence[float], settings: Settings) -> dict[str, Any]:
    """Settings of the fit before anything is cut; the learning rate falls in the last fit.

    Raises:
        ValueError: if the KL has not its full weight by then: nothing could be told by it.
    """
    unit, (first, *rest) = lengths(at, settings)
    if not rest:
        return {}
    whole = first + sum(rest)
    warmup = settings.kl_warmup * whole / first
    if warmup >= 1:
        raise ValueError(
            f"The network would first be narrowed after {first} of {whole} {unit}, while the KL "
            f"still gains weight (kl_warmup={settings.kl_warmup}). Set kl_warmup below "
            f"{first / whole:.3g}, or narrow={list(at)} to later fractions."
        )
    return {unit: first, "schedule": "constant", "kl_warmup": warmup}


def stages(
    at: Sequence[float],
    settings: Settings,
    rule: Threshold | None,
    tolerance: float | None,
    all_rows: bool,
) -> list[Stage]:
    """The fits over what the one before leaves.

    Arguments:
        at: fractions of the run at which the network is cut.
        settings: of the whole run.
        rule, tolerance: by which it is cut.
        all_rows: train on the validation rows in the last fit, too.
    """

    def over(all_rows: bool) -> Callable[[Fit], Pair]:
        def build(before: Fit) -> Pair:
            allowed = tolerance if by_validation(rule, before.data) else None
            data = before.data.all_rows() if all_rows else before.data
            return narrow(before, threshold=rule, tolerance=allowed, data=data)

        return build

    unit, (_, *rest) = lengths(at, settings)
    found = []
    for k, n in enumerate(rest, start=1):
        last = k == len(rest)
        own = {unit: n, "kl_warmup": 0.0, **({} if last else {"schedule": "constant"})}
        everything = last and all_rows
        found.append(Stage(f"narrow-{k}", over(everything), own, everything))
    return found
