"""The decision with which every smaller network begins: what is kept of a fit, and what goes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.checks import as_number
from ...models.likelihoods import Classification
from ..cutting.report import CutReport
from ..cutting.surgery import ROWS, cut, has_path
from ..fits.retraining import RATES, Retrained, retrain, row_losses
from ..fits.teacher import FEW, Teacher, teacher_of
from ..posterior.family import require
from ..posterior.weight_moments import mean_network
from .relevance import Irrelevance, irrelevance
from .thresholds import Chosen, Threshold, choose_thresholds, refuse_uncut, with_zeros
from .weight_sharing import assigned_guide, mixtures

if TYPE_CHECKING:
    from ..fits.fitting import Fit

__all__ = [
    "NATS",
    "SHARES",
    "Decision",
    "at_thresholds",
    "decide",
    "inside",
    "smallest",
    "thresholds_of_share",
]


SHARES = (0.8, 0.65, 0.5, 0.33, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.017, 0.012, 0.008)
"""Shares of the weights that networks of the search keep, before what dies of a cut is gone."""

NATS = 0.02
"""What a smaller network may lose of a validation row."""

SLACK = 1.1
"""How many times as large as that of a trained network the squared error of a teacher may be."""

ROUNDS = 3
"""Trainings of the whole network, one after the other, at most."""


@dataclass(frozen=True)
class Decision:
    """A network of posterior means that was cut.

    Attributes:
        model, guide: the pair; a point estimate under a mixture prior shares the means of its
            components already.
        whole: the network of the means.
        net: what is left of it, on the CPU.
        report: what the cut left of each layer.
        irrelevance, thresholds: by layer; both empty for a point estimate.
        warnings: what a person should know of the thresholds, said already.
    """

    model: BayesianNetwork
    guide: NetworkGuide
    whole: nn.Module
    net: nn.Module
    report: CutReport
    irrelevance: dict[str, Irrelevance]
    thresholds: dict[str, float]
    warnings: list[str]


def decide(
    fit: Fit, asking: str, threshold: Threshold | None = None, tolerance: float | None = None
) -> Decision:
    """Choose the thresholds of a fit, set what is above them to zero, and cut what dies of it.

    Of a point estimate only what is exactly zero is cut. A cut that had to be weakened, or that
    costs much on the validation rows, is warned of.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`.
        asking: the function that needs it, for the error.
        threshold, tolerance: see :func:`~pyroccam.inference.pruning.compression.compress`.

    Raises:
        TypeError: for a fit of another model.
        ValueError: for layers without means, random structure, thresholds that cannot be, or any
            threshold for a point estimate.
    """
    depth = "To cut the depth of a learnt-depth network use inference.prune."
    model, guide = require(fit, BayesianNetwork, asking, depth)
    refuse_uncut(guide)
    if guide.free_values and mixtures(model):
        guide = assigned_guide(model, guide)
    whole = mean_network(model, guide)
    found: dict[str, Irrelevance] = {}
    chosen = Chosen({}, [])
    if guide.is_point:
        zeros = whole
        _check_point(whole, model, threshold, tolerance)
    else:
        found = irrelevance(model, guide, by="noise" if threshold == "noise" else "mode")
        chosen = choose_thresholds(threshold, found, whole, model, fit.data, tolerance)
        zeros = with_zeros(whole, found, chosen.thresholds, model)
    net, report = cut(zeros.cpu(), fit.data.x_train[:ROWS].cpu())
    for sentence in chosen.warnings:
        warnings.warn(sentence, stacklevel=3)
    return Decision(model, guide, whole, net, report, found, *chosen)


def smallest(
    fit: Fit, epochs: int, trained: nn.Module | None = None, tolerance: float | None = None
) -> tuple[Decision, Retrained]:
    """The smallest network on the way from the whole one to almost nothing that is as good.

    Weights go in the order of their irrelevance, in all layers alike, and units that have lost all
    of theirs with them; at each size the rest is trained as numbers, from the labels and, where it
    predicts well, from the posterior
    (:func:`~pyroccam.inference.fits.teacher.teacher_of`). A network is as good as the whole one,
    trained until that gains little, or with a teacher as long as it, if its mean loss on the
    validation rows, with a standard error of the difference for luck, is above that of the whole by
    no more than is allowed. Sizes are bisected, as if a smaller network were never better. With
    fewer than 50 validation rows, and no posterior to learn from, the whole is kept as it is.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`, with validation rows.
        epochs: passes of each training.
        trained: the whole network as numbers, or else the posterior means. What is left begins with
            its weights, at the end of its training, where they predict better than the means.
        tolerance: what is allowed, in nats of a row; 0.02 by default.

    References:
        Renda, Frankle, Carbin 2020, arXiv:2003.02389: weights of before may serve as well.
    """
    model, guide = fit.model, fit.guide
    found = irrelevance(model, guide, by="weight")
    sources = [mean_network(model, guide)]
    if trained is not None:
        sources.append(trained)

    def loss(one: tuple[Decision, Retrained]) -> float:
        return float(one[1].losses.mean())

    allowed = NATS if tolerance is None else as_number(tolerance)
    teacher = _teacher(fit, sources[-1], epochs, allowed)
    nothing = dict.fromkeys(found, math.inf)
    first = [at_thresholds(fit, nothing, found, source) for source in sources]
    few = len(fit.data.x_val) < FEW and teacher is None
    # What so few rows would gain is not to be told from luck.
    once = retrain(first[-1].net, fit, epochs, () if few else RATES, teacher)
    last = _trained_out(once, fit, epochs, allowed, teacher)
    whole, end = (first[-1], once), (first[-1], last)
    means = first[0], retrain(first[0].net, fit, 0, (), teacher)
    good = [whole if few else min(end, means, key=loss)]
    sources = [sources[0], end[1].net]
    # With time the whole network becomes more like its teacher, which does not make it better.
    rivals = [end] if teacher is None else [whole, end]
    rates: Sequence[float] = RATES[1:]  # what lost much needs no small steps
    low, high = 0, 0 if few else len(SHARES)  # all before low are good, none from high on
    while low < high:
        middle = (low + high) // 2
        at = thresholds_of_share(found, SHARES[middle])
        zeros = with_zeros(sources[0], found, at, model).cpu()
        if not has_path(zeros, fit.data.x_train[:2].cpu()):
            high = middle
            continue
        drafts = [at_thresholds(fit, at, found, source) for source in sources]
        best = min(drafts, key=lambda one: float(row_losses(one.net, fit, teacher).mean()))
        tried = best, retrain(best.net, fit, epochs, rates, teacher)
        rates = [tried[1].lr or rates[-1]]  # what suits one size suits the others
        worse = [tried[1].losses - one.losses for _, one in rivals]
        if min(map(_upper, worse)) <= allowed:
            good.append(tried)
            low = middle + 1
        else:
            high = middle
    decision, again = min(good, key=lambda one: _nonzero(one[1].net))
    if few:
        said = (
            f"Nothing was cut: {len(fit.data.x_val)} validation rows do not tell what may go, "
            f"{FEW} may. Load the data with a larger val_fraction, or set a threshold."
        )
        decision = replace(decision, warnings=[said])
    return decision, again


def _teacher(fit: Fit, whole: nn.Module, epochs: int, allowed: float) -> Teacher | None:
    """The posterior, where it is worth learning from.

    Targets that a network has not learnt to the end say little of that: where there are rows
    enough, one at its end is the rival. To it the posterior may be second by :data:`SLACK`, as the
    other half of what is learnt are the targets.
    """
    teacher = teacher_of(fit, whole)
    classes = type(fit.model.likelihood) is Classification
    if teacher is None or classes or len(fit.data.x_val) < FEW:
        return teacher
    alone = _trained_out(retrain(whole, fit, epochs), fit, epochs, allowed)
    return teacher_of(fit, alone.net, SLACK)


def _trained_out(
    first: Retrained, fit: Fit, epochs: int, allowed: float, teacher: Teacher | None = None
) -> Retrained:
    """What was trained once, trained again and again until that gains no more than half of what may
    be lost."""
    found, before = first, first.before
    for _ in range(ROUNDS - 1):
        after = float(found.losses.mean())
        if found.lr is None or before - after <= allowed / 2:
            break
        found, before = retrain(found.net, fit, epochs, (found.lr,), teacher), after
    return replace(found, before=first.before)


def _nonzero(net: nn.Module) -> int:
    return sum(int(p.count_nonzero()) for p in net.parameters())


def at_thresholds(
    fit: Fit,
    thresholds: Mapping[str, float],
    found: Mapping[str, Irrelevance] | None = None,
    whole: nn.Module | None = None,
) -> Decision:
    """The network of a size that :func:`smallest` tries.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`.
        thresholds: by layer.
        found: the irrelevance by weight, if it is known.
        whole: what is cut, instead of the network of the means.
    """
    model, guide = fit.model, fit.guide
    found = irrelevance(model, guide, by="weight") if found is None else found
    whole = mean_network(model, guide) if whole is None else whole
    zeros = with_zeros(whole, found, thresholds, model)
    net, report = cut(zeros.cpu(), fit.data.x_train[:ROWS].cpu())
    return Decision(model, guide, whole, net, report, dict(found), dict(thresholds), [])


ERRORS = 1.0
"""Standard errors of a mean difference that are added to it for luck."""


def _upper(worse: Tensor) -> float:
    """The mean of differences of rows ``(N,)``, and a standard error of it for luck: what is not
    above a limit then is below it in five of six sets of such rows that are just at it."""
    spread = float(worse.std()) if len(worse) > 1 else 0.0
    return float(worse.mean()) + ERRORS * spread / len(worse) ** 0.5


def thresholds_of_share(found: Mapping[str, Irrelevance], share: float) -> dict[str, float]:
    """Thresholds by layer, at one irrelevance, that keep a share of all weights; the least
    irrelevant part of each layer stays."""
    values = torch.cat([one.values.flatten().double() for one in found.values()])
    sizes = torch.cat(
        [torch.full((one.values.numel(),), one.size / one.values.numel()) for one in found.values()]
    )
    order = values.argsort()
    reached = sizes[order].double().cumsum(0) / sizes.sum()
    last = min(int((reached < share - 1e-9).sum()), len(values) - 1)
    t = float(values[order[last]])
    return {name: max(t, float(one.values.min())) for name, one in found.items()}


def _check_point(
    net: nn.Module, model: BayesianNetwork, threshold: Threshold | None, tolerance: float | None
) -> None:
    """A point estimate has no spread; some of each layer must be left of it."""
    for name, value in (("threshold", threshold), ("tolerance", tolerance)):
        if value is not None:
            raise ValueError(
                f"{name}={value!r}: a point estimate has no spread to compare its weights with, so "
                f"it takes no {name}. Its zeros are cut; pruning.prune_weights makes more."
            )
    for name in model.layers:
        if not net.get_parameter(f"{name}.weight".lstrip(".")).count_nonzero():
            raise ValueError(
                f"All weights of layer {name!r} are zero: prune it less, by a smaller sensitivity= "
                "or c=, or a larger keep=, of this layer."
            )


def inside(net: nn.Module, name: str) -> str:
    """Name of a layer in a cut network: it, or the cell it is in, may stand behind a selection of
    inputs."""
    cell, _, own = name.rpartition(".")
    if cell and not hasattr(net.get_submodule(cell), own):
        return f"{cell}.1.{own}"
    return f"{name}.1" if isinstance(net.get_submodule(name), nn.Sequential) else name
