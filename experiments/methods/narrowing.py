"""Runs that are narrowed as they go: a fit, then others over what is left of the network."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...data import Dataset
from ...guides.mean_field import NetworkGuide
from ...inference.cutting import cut
from ...inference.fits.fitting import Fit
from ...inference.pruning.narrowing import narrow
from ...inference.pruning.thresholds import by_validation, check_threshold, refuse_uncut
from ...models.bayesian import BayesianNetwork
from .stages import Options, Pair, Stage

__all__ = [
    "first_settings",
    "refuse_rows",
    "refuse_rules",
    "refuse_uncuttable",
    "refuse_unused",
    "stages",
    "tell_uncuttable",
]


def _lengths(options: Options, settings: dict[str, Any]) -> tuple[str, list[int]]:
    """Epochs, or steps, of the fits of a run that is narrowed at fractions of the whole."""
    at = options["narrow"] or []
    if not isinstance(at, list) or not all(isinstance(f, float) and 0 < f < 1 for f in at):
        raise ValueError(
            f"narrow={at!r}: give the fractions of the run after which the network is narrowed, "
            "such as [0.25,0.5], or [] to train the whole network to the end."
        )
    unit = "steps" if settings.get("epochs") is None else "epochs"
    whole = int(settings[unit])
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


def refuse_rules(options: Options, data: Dataset) -> None:
    """What can be no threshold is said before the training.

    Raises:
        ValueError: for one, for a tolerance below zero, or for ``validation`` without such rows.
    """
    check_threshold(options.get("threshold"), options.get("tolerance"))
    names = ("narrow_at", "narrow_tolerance")
    check_threshold(*map(options.get, names), names=names)
    for name in ("threshold", "narrow_at"):
        if options.get(name) == "validation" and not len(data.x_val):
            raise ValueError(
                f"{name}=validation needs validation rows, and there are none. Add --set "
                f"data.val_fraction=0.1, or --set {name}=valley, noise or a number."
            )


def refuse_unused(asked: Mapping[str, Any], options: Options, data: Dataset) -> None:
    """A rule or a tolerance by which nothing is cut would be a setting without effect.

    Raises:
        ValueError: for one that was asked for.
    """
    if asked.get("narrow_at") is not None and not options.get("narrow"):
        raise ValueError(
            f"narrow_at={asked['narrow_at']!r} changes nothing: it is of cuts on the way, and "
            "there are none. Add --set narrow=[0.25,0.5], or --set threshold= for the last cut."
        )
    in_the_end = by_validation(options.get("threshold"), data)
    on_the_way = bool(options.get("narrow")) and by_validation(options.get("narrow_at"), data)
    shared = on_the_way and options.get("narrow_tolerance") is None
    used = {"tolerance": in_the_end or shared, "narrow_tolerance": on_the_way}
    for name, has_effect in used.items():
        if asked.get(name) is not None and not has_effect:
            raise ValueError(
                f"{name}={asked[name]!r} changes nothing: it is of cuts by the validation rows, of "
                f"which there are {len(data.x_val)}. "
                "Add --set threshold=validation for the last one; narrow_tolerance is of those on "
                "the way (narrow=, without narrow_at=)."
            )


def refuse_rows(options: Options, settings: dict[str, Any], data: Dataset) -> None:
    """The last fit trains on the validation rows where nothing else needs them.

    Raises:
        ValueError: if something does, or there are none.
    """
    asked = options.get("last_rows")
    if asked is None:
        return
    if asked != "all":
        raise ValueError(f"last_rows={asked!r}: give all, or null for the training rows alone.")
    if len(_lengths(options, settings)[1]) == 1:
        raise ValueError(
            f"last_rows=all is of the fit after the last cut, and narrow={options['narrow']} cuts "
            "nothing on the way. To train on all rows from the start, --set data.val_fraction=0."
        )
    if not len(data.x_val):
        raise ValueError("last_rows=all changes nothing: there are no validation rows.")
    if by_validation(options["threshold"], data):
        raise ValueError(
            f"last_rows=all leaves no validation rows, on which threshold={options['threshold']!r} "
            "is chosen. Add --set threshold=noise, valley or a number."
        )


def first_settings(options: Options, settings: dict[str, Any]) -> dict[str, Any]:
    """Of the fit before anything is cut; the learning rate falls in the last fit.

    Raises:
        ValueError: if the KL has not its full weight by then: nothing could be told by it.
    """
    unit, lengths = _lengths(options, settings)
    if len(lengths) == 1:
        return {}
    whole, first = sum(lengths), lengths[0]
    warmup = settings["kl_warmup"] * whole / first
    if warmup >= 1:
        raise ValueError(
            f"The network would first be narrowed after {first} of {whole} {unit}, while the KL "
            f"still gains weight (kl_warmup={settings['kl_warmup']}). Set kl_warmup below "
            f"{first / whole:.3g}, or narrow={options['narrow']} to later fractions."
        )
    return {unit: first, "schedule": "constant", "kl_warmup": warmup}


def stages(options: Options, settings: dict[str, Any]) -> list[Stage]:
    """The fits over what the one before leaves."""

    def build(before: Fit, options: Options, all_rows: bool) -> Pair:
        rule, allowed = options["narrow_at"], options.get("narrow_tolerance")
        allowed = options["tolerance"] if allowed is None else allowed
        chosen = by_validation(rule, before.data)
        data = before.data.all_rows() if all_rows else before.data
        return narrow(before, threshold=rule, tolerance=allowed if chosen else None, data=data)

    unit, (_, *lengths) = _lengths(options, settings)
    found = []
    for k, n in enumerate(lengths, start=1):
        last = k == len(lengths)
        own = {unit: n, "kl_warmup": 0.0, **({} if last else {"schedule": "constant"})}
        everything = last and options.get("last_rows") == "all"
        found.append(Stage(f"narrow-{k}", partial(build, all_rows=everything), own, everything))
    return found
