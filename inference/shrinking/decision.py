"""The decision with which every smaller network begins: what is kept of a fit, and what goes."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ...models.layers import BayesianLayer
from ...models.plain import Edit
from ..cutting import ROWS, CutReport, cut, units_of
from ..posterior import Layer, layer_moments, mean_network, require
from ..training import (
    FEW,
    RATES,
    FitProgress,
    Teacher,
    Trained,
    may_teach,
    retrain,
    row_losses,
    score_untrained,
    teacher_of,
    trained,
)
from .depth import settled
from .options import NATS, Cut, Noise, Search
from .point_spread import spread_moments
from .relevance import Irrelevance, irrelevance, weight_irrelevance
from .thresholds import Chosen, choose_thresholds, refuse_uncut, tells_apart, with_zeros
from .weight_sharing import assigned_guide, levels_of, mixtures, on_levels

if TYPE_CHECKING:
    from ...data import Dataset
    from ..training import Fit

CONFIDENCE = 0.95
"""How sure it is that a network which is handed back loses no more than the largest loss."""

LARGEST_LOSS = 2.5
"""That loss, as a multiple of what may be lost on average."""

_LOSES = (
    "What is left needs a tolerance of {:.2g} beside the whole network, in nats of a row and in "
    "errors, by the {} validation rows."
)

FAILURES = 2
"""Networks that lose too much before a search ends, the first of them by its units."""


@dataclass(frozen=True)
class Decision:
    """A network of posterior means that was cut.

    Attributes:
        model, guide: the pair; a point estimate under a mixture prior shares the means of its
            components already.
        layers: the moments of all weights, by layer.
        whole: the network of the means.
        net, report: what is left of it, on the CPU, and of each layer.
        irrelevance, thresholds: by layer; both empty for a point estimate, but for a search.
        sizes: values that the weights of a layer share, by layer, where they share few.
        units: share of the weights that is left in the tensors, before what dies of a cut is gone.
        even: it is so in every layer.
    """

    model: BayesianNetwork
    guide: NetworkGuide
    layers: Mapping[str, Layer]
    whole: nn.Module
    net: nn.Module
    report: CutReport
    irrelevance: dict[str, Irrelevance]
    thresholds: dict[str, float]
    warnings: list[str]
    sizes: Mapping[str, int] = field(default_factory=dict)
    units: float = 1.0
    even: bool = False


def decide(fit: Fit, asked: Cut | None = None, *, to_levels: bool = False) -> Decision:
    """Choose the thresholds of a fit, set what is above them to zero, and cut what dies of it.

    A network of random depth is cut at the chosen one first. Of a point estimate only what is
    exactly zero is cut. A cut that had to be weakened, or that costs much on the validation rows,
    is warned of.

    Arguments:
        asked: where to cut; by the validation rows if there are some, or else at the valley.
        to_levels: round the means of layers whose prior has levels to these first, so that
            thresholds are chosen and judged by weights as they will be.

    Raises:
        PyroccamError: for a fit of another model, layers without means, random structure, or a cut
            of a point estimate; for a layer whose weights all round to zero.
    """
    require(fit, BayesianNetwork, "A cut")
    fit = settled(fit)
    model, guide = fit.model, fit.guide
    refuse_uncut(guide)
    if guide.free_values and mixtures(model):
        guide = assigned_guide(model, guide)
    layers = layer_moments(model, guide)
    whole = mean_network(model, guide, layers)
    levels = levels_of(model) if to_levels else {}
    if levels:
        whole = on_levels(whole, levels)
    found: dict[str, Irrelevance] = {}
    chosen = Chosen({}, [])
    if guide.traits.point:
        zeros = whole
        if asked is not None:
            given = f"cut={asked} of a point estimate, which has no spread"
            raise PyroccamError(given, "none, or a Search without a Draw")
        for name in model.layers:
            if not whole.get_parameter(f"{name}.weight".lstrip(".")).count_nonzero():
                raise PyroccamError(f"All weights of layer {name!r} are zero", hint="prune it less")
    else:
        found = irrelevance(model, guide, by="noise" if isinstance(asked, Noise) else "mode")
        chosen = choose_thresholds(asked, found, whole, model, fit.data)
        zeros = with_zeros(whole, found, chosen.thresholds, model)
    example = fit.data.head(ROWS)[0].cpu()
    net, report = cut(zeros.cpu(), example, round_to=1 if asked is None else asked.round_to)
    for sentence in chosen.warnings:
        warnings.warn(sentence, stacklevel=3)
    # Zero is none of the values: where weights are says which are zero.
    sizes = {**guide.sizes, **{name: len(own) - 1 for name, own in levels.items()}}
    return Decision(model, guide, layers, whole, net, report, found, *chosen, sizes)


def smallest(fit: Fit, how: Search) -> tuple[Decision, Trained]:
    """The smallest network that is shown not to be worse than the whole one, trained as numbers.

    First units go (:func:`of_units`), half of the weights in the tensors each time. From the first
    size that loses too much on, weights of the last good network go in the order of their
    irrelevance, in all layers alike, and units that have lost all of theirs with them. What is left
    is trained from the labels and from what the posterior predicts, and is judged by
    :func:`needed_tolerance`. The second that loses too much ends the search: sizes are tested in an
    order that is fixed but for where units fail, so that one that is too small passes at two places
    only, each at half of the risk. Where the very first loses too much, nothing goes for once: the
    whole network that learns from the posterior stands for the plain one if it is better, or where
    there are too few rows to tell, of which the posterior itself had to be as good
    (:func:`~pyroccam.inference.training.teacher.may_teach`); if not, no network learns from it.
    Where so few rows could not show of any network that it is as good, that one alone is tried.

    Returns:
        The plain network where no other passes, cut where it has zeros; with a warning where
        nothing was cut.

    References:
        Renda, Frankle, Carbin 2020, arXiv:2003.02389: weights of before may serve as well.
        Maurer, Hothorn, Lehmacher 1995, for tests in a fixed order; Dunn 1961 for parts of a risk.
    """
    if how.batch_size is not None:
        fit = replace(fit, settings=replace(fit.settings, batch_size=how.batch_size))
    nothing = dict.fromkeys(fit.model.layers, math.inf)
    means = at_thresholds(fit, nothing)
    # With all layers as they are, though weights that are zero already may leave some out.
    plain = how.plain
    if plain is None and fit.guide.traits.point:  # which is trained as numbers already
        ours = fit.history and fit.settings.optimizer != "sgd"  # whose rates are others
        rate = fit.settings.lr if ours else None
        plain = replace(score_untrained(means.whole.cpu(), fit), lr=rate)
    elif plain is None:
        plain = retrain(means.whole, fit, how.epochs)
    own = how.teacher == "posterior"  # of which it is asked whether it is as good as the plain one
    teacher = teacher_of(fit, None if own else plain.net)
    if own and teacher is not None and not may_teach(teacher, fit, plain.net):
        teacher = None
    found = at_thresholds(fit, nothing, means, plain.net, round_to=how.round_to)
    good, smaller, why = (found, replace(plain, net=found.net)), False, ""
    then_weights, whole_units = how.units == "first", True
    whole = [1.0] if 1.0 in how.shares and teacher is not None else []  # is still to be tried
    todo = [share for share in how.shares if share < 1]
    places = FAILURES if then_weights else 1
    alike = needed_tolerance(plain.held_out, plain.held_out, fit.data, places)
    failed = [alike] if how.nats is not None and alike > how.nats else []
    todo = whole if failed else todo or whole
    with FitProgress("search", then_weights + len(how.shares)) as bar:
        while todo:
            share, *rest = todo
            bar.next(f"{100 * share:g} % of the {'units' if whole_units else 'weights'}")
            by = share if whole_units else means.units
            draft = _draft(fit, means, plain, share, teacher, by, how)
            if draft is None:
                if whole_units and then_weights:
                    whole_units = False
                    continue
                why = "no way leads to the outputs of a smaller network"
                todo, whole = whole, []
                continue
            lr = how.lr or plain.lr or RATES[1]
            tried = trained(draft.net, fit, how.epochs, lr, teacher, how.out)
            needed = needed_tolerance(tried.held_out, plain.held_out, fit.data, places)
            if share == 1:  # the better one stays
                few = len(fit.data.x_val) < FEW
                better = few or mean_loss(tried.held_out, plain.held_out, fit.data)[0] <= 0
                good, teacher = ((draft, tried), teacher) if better else (good, None)
            elif how.nats is None or needed <= how.nats:
                if how.nats is None and needed > NATS:
                    draft = replace(draft, warnings=[_LOSES.format(needed, len(fit.data.x_val))])
                good, smaller, whole = (draft, tried), True, []
                means = replace(means, units=by)
            else:
                failed.append(needed)
                if len(failed) == FAILURES:
                    break
                if whole_units:
                    whole_units, rest = False, todo if then_weights else []
                rest, whole = whole + rest, []
            todo = rest
    decision, kept = good
    if failed:
        why = (
            f"by the {len(fit.data.x_val)} validation rows the least tolerance that a smaller one "
            f"needs is {min(failed):.2g}, and {how.nats:g} is allowed"
        )
    if why and not smaller:
        decision = replace(decision, warnings=[f"No weight was cut: {why}."])
    return decision, kept


def _draft(
    fit: Fit, means: Decision, plain: Trained, share: float, teacher: Teacher | None, by: float,
    how: Search,
) -> Decision | None:  # fmt: skip
    """What is left of that share of the weights, and of the share ``by`` in the tensors, as the
    posterior or the plain network has them, whichever predicts better; ``None`` if no way leads to
    the outputs."""
    even = how.units == "even"
    left = of_units(means.irrelevance, by, means.whole, fit, even=even)
    means = replace(means, irrelevance=left, units=by, even=even)
    for every_layer in (False, True):  # beside a skip connection a layer may go as a whole
        at = thresholds_of_share(means.irrelevance, share, every_layer=every_layer)
        zeros = with_zeros(means.whole, means.irrelevance, at, fit.model).cpu()
        if tells_apart(zeros, fit.data.head(ROWS)[0].cpu()):
            break
    else:
        return None
    sources = dict.fromkeys((means.whole, plain.net))  # one of a point estimate
    drafts = [at_thresholds(fit, at, means, one, round_to=how.round_to) for one in sources]
    return min(drafts, key=lambda one: float(row_losses(one.net, fit, teacher).mean()))


def of_units(
    irrelevance: Mapping[str, Irrelevance],
    share: float,
    whole: nn.Module,
    fit: Fit,
    *,
    even: bool = False,
) -> dict[str, Irrelevance]:
    r"""The irrelevance of weights, infinite of those that are in units that go if that share of the
    weights is to be left in the tensors.

    What a unit is worth is :math:`\sum E[w]^2 / V[w]` of its weights: twice what it costs in nats
    to set them to zero, where the posterior is a Gaussian.

    Arguments:
        even: by layer (:meth:`Units.gone <pyroccam.inference.cutting.units.Units.gone>`).

    References:
        Le Cun, Denker, Solla 1990, "Optimal brain damage".
    """
    found = dict(irrelevance)
    if share == 1.0:
        return found
    dims = {name: fit.model.layers[name].affine.output_dim for name in found}
    worth = {
        name: one.values.neg().clamp_max(50.0).exp().transpose(0, dims[name])
        for name, one in found.items()
    }
    net, example = copy.deepcopy(whole).cpu(), fit.data.head(ROWS)[0].cpu()
    masks = units_of(net, example).gone(worth, share, even=even)
    for name in masks.keys() & found.keys():
        mask = masks[name]
        values = found[name].values.clone().transpose(0, dims[name])
        if mask.outputs is not None:
            values[~mask.outputs] = math.inf
        if mask.inputs is not None:
            values[:, ~mask.inputs] = math.inf
        found[name] = replace(found[name], values=values.transpose(0, dims[name]))
    return found


def mean_loss(one: Tensor, other: Tensor, data: Dataset) -> Tensor:
    """What a network loses to another on average, in nats of a validation row and in errors,
    ``(2,)``; the arguments are those of :func:`needed_tolerance`."""
    differences = (one - other).double()
    if data.val_weights is None:
        return differences.mean(1)
    weights = data.val_weights.double().cpu()
    return differences @ (weights / weights.sum())


def needed_tolerance(one: Tensor, other: Tensor, data: Dataset, places: int = 1) -> float:
    r"""What has to be allowed for a network to stand for another, by validation rows.

    .. math:: \max_k \max\left(\bar d_k,\;
              \tfrac25 \left(\bar d_k + t_{1 - 0.05 / m, N - 1} \, s_k / \sqrt N\right)\right)

    of the differences d of the losses of rows (k = 1, in nats) and of errors (k = 2, 0 or 1), with
    their means and standard deviations s: so much is lost on average, and with 95 % certainty no
    more than two and a half times as much. The first decides where rows are many, the second where
    they are few. A few rows that both get right say little of the next one: in a classification
    one more error counts. Rows of different weights count as :math:`(\sum w)^2 / \sum w^2` rows.

    The certainty is that of Student's limit for rows that chose neither network. No checkpoint was
    chosen by the row that judges it; the learning rate, a temperature or the noise of a regression,
    and where a smaller network begins were chosen by all of them.

    Arguments:
        one, other: ``(2, N)``, as :func:`~pyroccam.inference.training.ordinary.cross_fit` has them.
        data: of the validation rows.
        places: m, networks that may pass by error, of which with 95 % certainty none does.

    Returns:
        That number; infinity for fewer than two rows.

    References:
        Student 1908, "The probable error of a mean"; Berger 1982 for limits that are all met;
        Laplace 1814 for the row that is missed; Kish 1965, Survey sampling, for weights.
    """
    differences = (one - other).double()
    weights = torch.ones(differences.shape[1], dtype=torch.float64)
    if data.val_weights is not None:
        weights = data.val_weights.double().cpu()
    if data.classes is not None:
        missed = differences.new_tensor([[0.0], [1.0]])
        differences = torch.cat([differences, missed], 1)
        weights = torch.cat([weights, weights.mean()[None]])
    weights = weights / weights.sum()
    rows = float(1.0 / weights.square().sum())
    if not rows > 1.0:
        return math.inf
    from scipy.special import stdtrit

    mean = differences @ weights
    error = ((differences - mean[:, None]).square() @ weights / (rows - 1)).sqrt()
    limit = mean + float(stdtrit(rows - 1, 1 - (1 - CONFIDENCE) / places)) * error
    return float(torch.maximum(mean, limit / LARGEST_LOSS).max())


def at_thresholds(
    fit: Fit,
    thresholds: Mapping[str, float],
    means: Decision | None = None,
    whole: nn.Module | None = None,
    left: float = 1.0,
    round_to: int = 1,
    even: bool = False,
) -> Decision:
    """The network of a size that :func:`smallest` tries.

    Arguments:
        means: of the same fit, where moments and irrelevance by weight are known.
        whole: what is cut, instead of the network of the means.
        left: share of the weights in the tensors, where these are not known.
        round_to: as for a cut.
        even: as for :func:`of_units`.
    """
    model, guide = fit.model, fit.guide
    layers = spread_moments(fit) if means is None else means.layers
    found = weight_irrelevance(model, layers) if means is None else means.irrelevance
    whole = mean_network(model, guide, layers) if whole is None else whole
    if means is None:
        found = of_units(found, left, whole, fit, even=even)
    zeros = with_zeros(whole, found, thresholds, model)
    exact = all(map(math.isinf, thresholds.values()))
    net, report = cut(zeros.cpu(), fit.data.head(ROWS)[0].cpu(), exact=exact, round_to=round_to)
    left, even = (left, even) if means is None else (means.units, means.even)
    at, sizes = dict(thresholds), guide.sizes
    return Decision(model, guide, layers, whole, net, report, found, at, [], sizes, left, even)


def thresholds_of_share(
    found: Mapping[str, Irrelevance], share: float, *, every_layer: bool
) -> dict[str, float]:
    """Thresholds by layer, at one irrelevance, that keep a share of all weights.

    Arguments:
        every_layer: the least irrelevant part of each layer stays.
    """
    values = torch.cat([one.values.flatten().double() for one in found.values()])
    sizes = torch.cat(
        [torch.full((one.values.numel(),), one.size / one.values.numel()) for one in found.values()]
    )
    order = values.argsort()
    reached = sizes[order].double().cumsum(0) / sizes.sum()
    last = min(int((reached < share - 1e-9).sum()), len(values) - 1)
    t = min(float(values[order[last]]), sys.float_info.max)
    least = {name: float(one.values.min()) for name, one in found.items() if every_layer}
    return {name: max(t, least.get(name, t)) for name in found}


def kept_of(report: CutReport, layer: BayesianLayer) -> tuple[Tensor | None, Tensor | None]:
    """Outputs ``(O,)`` and inputs ``(I,)`` that a cut left of a layer; ``None`` for all. Those of a
    convolution with groups stand by its outputs, ``(O, I)``."""
    part, affine = report.layers.get(layer.name), layer.affine
    if part is None:
        return None, None
    rows, each = affine.shape.weight[:2]
    if part.inputs_before == affine.shape.weight[1 - affine.output_dim]:
        return part.outputs, part.inputs
    edit = Edit(part.outputs.tolist(), part.inputs.tolist())
    return edit.in_groups(rows, each, part.inputs_before // each)[:2]
