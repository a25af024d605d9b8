"""Thresholds at which a posterior is cut: a number, between clusters, or by what the cut costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.checks import as_number, unknown_name
from ..cutting.masks import Mask, apply_masks, masked
from ..posterior.predict import streamed
from .relevance import Irrelevance, search, valley

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = [
    "RULES",
    "TOLERANCE",
    "Threshold",
    "by_layer_now",
    "by_validation",
    "check_threshold",
    "choose_thresholds",
    "refuse_twice",
    "refuse_uncut",
    "with_zeros",
]

Threshold = Literal["validation", "valley", "noise"] | float | Mapping[str, float]

RULES = ("validation", "valley", "noise")
TOLERANCE = 0.001
"""Nats of a row that a cut may cost unless something else is asked for."""


def check_threshold(
    asked: Any, tolerance: Any = None, *, names: tuple[str, str] = ("threshold", "tolerance")
) -> None:
    """Refuse what can be no threshold, or tolerance, of any network.

    Arguments:
        asked, tolerance: see :func:`~pyroccam.inference.pruning.compression.compress`.
        names: of both, for error messages.

    Raises:
        ValueError: for an unknown rule, what is no number, or a negative tolerance.
    """

    values = asked.values() if isinstance(asked, Mapping) else [asked]
    known = asked is None or (isinstance(asked, str) and asked in RULES)
    if not known and any(math.isnan(as_number(value)) for value in values):
        rules = ", ".join(map(repr, RULES))
        raise ValueError(
            f"{names[0]} must be {rules}, a number or numbers by layer; got {asked!r}."
        )
    if tolerance is not None and not as_number(tolerance) >= 0:
        raise ValueError(f"{names[1]}={tolerance!r}: give a number of nats, 0 or more.")


def by_layer_now(asked: Mapping[str, float], model: BayesianNetwork) -> dict[str, float]:
    """Thresholds by the names that layers have now.

    Arguments:
        asked: by the names now, or before anything was cut.

    Raises:
        ValueError: for a name that is neither, or two of one layer.
    """
    refuse_twice("threshold", asked, model)
    given = {model.names.get(name, name): as_number(value) for name, value in asked.items()}
    unknown = sorted({*given} - {*model.layers})
    if unknown:
        raise ValueError(unknown_name("Bayesian layer", unknown[0], [*model.layers]))
    return given


def refuse_twice(what: str, asked: Mapping[str, Any], model: BayesianNetwork) -> None:
    """One number by the name that a layer has, and another by the one that it had, are two.

    Raises:
        ValueError: for a layer that is named twice.
    """
    for before, now in model.names.items():
        if before != now and before in asked and now in asked:
            raise ValueError(
                f"{what} names one layer twice: {before!r} is called {now!r} since the network was "
                "narrowed. Leave one of them out."
            )


def by_validation(asked: Threshold | None, data: Dataset) -> bool:
    """Thresholds of this kind are chosen on the validation rows, or not."""
    return asked == "validation" if asked is not None else len(data.x_val) > 0


def refuse_uncut(guide: NetworkGuide) -> None:
    """Refuse what has no network of posterior means to cut.

    Raises:
        ValueError: for layers without means, or random structure.
    """
    if guide.edges:
        raise ValueError(
            f"The structure of the network is random (site {guide.edges[0]!r}): take one, "
            "net = inference.discretise(fit), and go on with models.BayesianNetwork(net, ...)."
        )
    if guide.zero_mean:
        raise ValueError(
            f"The weights of layer {guide.zero_mean[0]!r} have no mean ({type(guide).__name__}), "
            "so there is no network of means to cut: take a fit of guides.MeanField(model)."
        )


def choose_thresholds(
    asked: Threshold | None,
    found: Mapping[str, Irrelevance],
    whole: nn.Module,
    model: BayesianNetwork,
    data: Dataset,
    tolerance: float | None,
) -> dict[str, float]:
    """A threshold for each layer; infinity leaves it whole.

    Arguments:
        asked: see :func:`~pyroccam.inference.pruning.compression.compress`; layers may have the
            names that they had before anything was cut.
        found: what is compared with them, by layer.
        whole: the mean network.
        model, data: of the fit.
        tolerance: of ``validation``, in nats.

    Raises:
        ValueError: for unknown layers or rules, ``validation`` without validation rows, or a
            tolerance of another rule or below zero.
    """
    check_threshold(asked, tolerance)
    if tolerance is not None and not by_validation(asked, data):
        rule = "'valley' (there are no validation rows)" if asked is None else repr(asked)
        raise ValueError(
            f"tolerance={tolerance!r} is of threshold='validation', and changes nothing for "
            f"{rule}: leave it out, or ask for threshold='validation'."
        )
    if asked is None:
        asked = "validation" if by_validation(asked, data) else "valley"
    if isinstance(asked, Mapping):
        given = by_layer_now(asked, model)
        return {name: given.get(name, math.inf) for name in found}
    if not isinstance(asked, str):
        return dict.fromkeys(found, as_number(asked))
    if asked == "noise":
        # A layer of noise, as on a residual branch that has died, is no error after a long run.
        return {name: max(0.0, float(one.values.min())) for name, one in found.items()}
    if asked == "valley":
        clusters = {name: valley(one.values) for name, one in found.items()}
        return {name: math.inf if t is None else t for name, t in clusters.items()}
    if not len(data.x_val):
        raise ValueError(
            "threshold='validation' needs validation rows, and the data has none: load it with a "
            "validation split, or use threshold='valley'."
        )

    x, y = data.split("val")

    @torch.no_grad()
    def cost(thresholds: Mapping[str, float]) -> float:
        net = with_zeros(whole, found, thresholds, model)
        (outputs,) = streamed(lambda part: net(part)[None], x)
        return -float(model.likelihood(outputs).log_prob(y).mean())

    def size(thresholds: Mapping[str, float]) -> float:
        parts = [
            float((one.values <= thresholds[name]).double().mean())
            * model.layers[name].affine.shape.weight.numel()
            for name, one in found.items()
        ]
        return sum(parts)

    # Not the number of errors: of the many thresholds that are tried, that picks the lucky ones.
    allowed = TOLERANCE if tolerance is None else as_number(tolerance)
    limit = cost(dict.fromkeys(found, math.inf)) + allowed
    values = {name: one.values for name, one in found.items()}
    # A rounding of the error must not decide.
    return search(values, cost, limit=limit + 1e-9, size=size)


def with_zeros(
    whole: nn.Module,
    found: Mapping[str, Irrelevance],
    thresholds: Mapping[str, float],
    model: BayesianNetwork,
) -> nn.Module:
    """The mean network with zeros for what is above the thresholds.

    Raises:
        ValueError: for a threshold that would cut a whole layer.
    """
    groups: dict[str, Mask] = {}
    weights: dict[str, Tensor] = {}
    for name, one in found.items():
        keep = one.values <= thresholds[name]
        if not keep.any():
            raise ValueError(
                f"The threshold {thresholds[name]:g} would cut the whole of layer {name!r}: the "
                f"least {one.statistic} of its {keep.numel()} is {float(one.values.min()):.3g}. "
                "Use a larger threshold for it, or train longer or with a weaker prior."
            )
        if keep.all():
            continue
        if not one.grouped:
            weights[name] = keep
        elif model.layers[name].affine.shape.output_groups:
            groups[name] = Mask(outputs=keep)
        else:
            groups[name] = Mask(inputs=keep)
    return apply_masks(masked(whole, groups), weights).net
