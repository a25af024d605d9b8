"""The decision with which every smaller network begins: what is kept of a fit, and what goes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ...models.layers import BayesianLayer
from ..cutting import ROWS, CutReport, cut, has_path
from ..posterior import Layer, layer_moments, mean_network, require
from ..training import FEW, RATES, Retrained, Teacher, may_teach, retrain, row_losses, teacher_of
from .depth import settled
from .options import Cut, Noise, Search
from .relevance import Irrelevance, irrelevance, weight_irrelevance
from .thresholds import Chosen, choose_thresholds, refuse_uncut, with_zeros
from .weight_sharing import assigned_guide, levels_of, mixtures, on_levels

if TYPE_CHECKING:
    from ..training import Fit

SHARES = (0.33, 0.17, 0.085, 0.042, 0.021, 0.01)
"""Shares of the weights that networks of the search keep, before what dies of a cut is gone."""

SMALLER = 8
"""Trainings of smaller networks, at most."""

ROUNDS = 3
"""Trainings of the whole network, one after the other, at most."""


@dataclass(frozen=True)
class Decision:
    """A network of posterior means that was cut.

    Attributes:
        model, guide: the pair; a point estimate under a mixture prior shares the means of its
            components already.
        layers: the moments of all weights, by layer.
        whole: the network of the means.
        net, report: what is left of it, on the CPU, and of each layer.
        irrelevance, thresholds: by layer; both empty for a point estimate.
        sizes: values that the weights of a layer share, by layer, where they share few.
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
            raise PyroccamError(f"cut={asked} of a point estimate, which has no spread", "none")
        for name in model.layers:
            if not whole.get_parameter(f"{name}.weight".lstrip(".")).count_nonzero():
                raise PyroccamError(f"All weights of layer {name!r} are zero", hint="prune it less")
    else:
        found = irrelevance(model, guide, by="noise" if isinstance(asked, Noise) else "mode")
        chosen = choose_thresholds(asked, found, whole, model, fit.data)
        zeros = with_zeros(whole, found, chosen.thresholds, model)
    net, report = cut(zeros.cpu(), fit.data.head(ROWS)[0].cpu())
    for sentence in chosen.warnings:
        warnings.warn(sentence, stacklevel=3)
    # Zero is none of the values: where weights are says which are zero.
    sizes = {**guide.sizes, **{name: len(own) - 1 for name, own in levels.items()}}
    return Decision(model, guide, layers, whole, net, report, found, *chosen, sizes)


def trainings(rate_is_known: bool) -> int:
    """Trainings of a search, at most: of the whole network once more than its rounds, without a
    teacher, and where no rate is known with and without a teacher at all of them."""
    return 1 + ROUNDS + SMALLER + (0 if rate_is_known else 2 * (len(RATES) - 1))


def smallest(fit: Fit, how: Search) -> tuple[Decision, Retrained]:
    """The smallest network on the way from the whole one to almost nothing that is as good.

    Weights go in the order of their irrelevance, in all layers alike, and units that have lost all
    of theirs with them; at each size the rest is trained as numbers, from the labels and, where
    that helps the whole network, from the posterior. A network is as good as the whole one, trained
    until that gains little, or with a teacher as long as it, if its mean loss on the validation
    rows is above that of the whole by no more than half of what is allowed, and with a standard
    error of the difference for luck by no more than all of it. Sizes are halved until two in a row
    are not as good, as one may fail by luck; one more lies between the last that is and the next.
    With fewer than 50 validation rows, and no posterior to learn from, the whole is kept as it is.

    References:
        Renda, Frankle, Carbin 2020, arXiv:2003.02389: weights of before may serve as well.
    """
    if fit.guide.traits.point:
        raise PyroccamError(f"cut={how} of a point estimate, which has no spread", "none")
    epochs, allowed, trained = how.epochs, how.nats, how.trained
    nothing = dict.fromkeys(fit.model.layers, math.inf)
    means = at_thresholds(fit, nothing)
    # With all layers as they are, though weights that are zero already may leave some out.
    whole = means.whole if trained is None else trained.net
    rates: tuple[float, ...] = RATES if trained is None else (trained.lr or RATES[1],)
    teacher, once = _taught(fit, whole, epochs, rates)

    def cut_where_zero(kept: Retrained) -> tuple[Decision, Retrained]:
        decision = at_thresholds(fit, nothing, means, kept.net)
        return decision, replace(kept, net=decision.net)

    if len(fit.data.x_val) < FEW and teacher is None:
        decision, kept = cut_where_zero(once)
        said = (
            f"Nothing was cut: {len(fit.data.x_val)} validation rows do not tell what may go, "
            f"{FEW} may. Load the data with a larger val_fraction, or set a threshold."
        )
        return replace(decision, warnings=[said]), kept
    last = _trained_out(once, fit, epochs, allowed, teacher)
    # With time the whole network becomes more like its teacher, which does not make it better.
    rivals = [last] if teacher is None else [once, last]
    rates = _rates_of_smaller(once.lr or rates[len(rates) // 2])
    search = _Search(fit, means, [means.whole, last.net], rivals, epochs, allowed, teacher, rates)
    untrained = means, retrain(means.net, fit, 0, (), teacher)
    good = [min(cut_where_zero(last), untrained, key=_loss), *search.run()]
    return min(good, key=lambda one: _nonzero(one[1].net))


@dataclass
class _Search:
    """Smaller and smaller networks, each trained: of whole networks (``sources``), with the weights
    of which the smaller ones may begin, and as good as one of the ``rivals``. The rate of the last
    network that was as good is tried first, and ``left`` trainings may still be made."""

    fit: Fit
    means: Decision
    sources: list[nn.Module]
    rivals: list[Retrained]
    epochs: int
    allowed: float
    teacher: Teacher | None
    rates: Sequence[float]
    left: int = SMALLER

    def run(self) -> list[tuple[Decision, Retrained]]:
        good: list[tuple[Decision, Retrained]] = []
        least, most, failed = 1.0, 0.0, 0  # shares: the last that was good, and the next
        for share in SHARES:
            tried = self._at(share)
            if tried is not None:
                good.append(tried)
                least, failed = share, 0
                continue
            most = share if failed == 0 else most
            failed += 1
            if failed == 2:
                break
        if failed and (tried := self._at(math.sqrt(least * most))) is not None:
            good.append(tried)
        return good

    def _at(self, share: float) -> tuple[Decision, Retrained] | None:
        """A network of that size that is as good; at a rate that suited others first."""
        at = thresholds_of_share(self.means.irrelevance, share)
        zeros = with_zeros(self.sources[0], self.means.irrelevance, at, self.fit.model).cpu()
        if not self.left or not has_path(zeros, self.fit.data.head(2)[0].cpu()):
            return None
        drafts = [at_thresholds(self.fit, at, self.means, source) for source in self.sources]
        losses = [row_losses(one.net, self.fit, self.teacher).mean() for one in drafts]
        best = drafts[losses.index(min(losses))]
        for lr in self.rates[: self.left]:
            self.left -= 1
            tried = retrain(best.net, self.fit, self.epochs, [lr], self.teacher)
            worse = [tried.losses - one.losses for one in self.rivals]
            if any(is_as_good(one, self.allowed) for one in worse):
                self.rates = sorted(self.rates, key=lambda one: one != lr)
                return best, tried
            if min(float(one.mean()) for one in worse) > 3 * self.allowed:
                break  # no rate makes up for that
        return None


def _rates_of_smaller(lr: float) -> tuple[float, ...]:
    at = RATES.index(lr) if lr in RATES else 1
    return RATES[at : at + 2] if at < len(RATES) - 1 else RATES[: at - 2 : -1]


def _loss(one: tuple[Decision, Retrained]) -> float:
    return float(one[1].losses.mean())


def _taught(
    fit: Fit, whole: nn.Module, epochs: int, rates: Sequence[float]
) -> tuple[Teacher | None, Retrained]:
    """The posterior, where the whole network learns from it, and that network; else none, and the
    network that learns from labels alone.

    It is worth learning from where it may teach and does not make the loss of the labels worse by
    more than a standard error, which few rows do not tell."""
    few = len(fit.data.x_val) < FEW
    alone = retrain(whole, fit, epochs, () if few else rates)
    teacher = teacher_of(fit)
    if teacher is None or not may_teach(teacher, fit, alone.net):
        return None, alone
    taught = retrain(whole, fit, epochs, rates, teacher)
    worse = row_losses(taught.net, fit) - alone.losses
    good = few or float(worse.mean()) <= _error(worse)
    return (teacher, taught) if good else (None, alone)


def _trained_out(
    first: Retrained, fit: Fit, epochs: int, allowed: float, teacher: Teacher | None = None
) -> Retrained:
    """What was trained once, trained again and again until that gains no more than a quarter of
    what may be lost."""
    found, before = first, first.before
    for _ in range(ROUNDS - 1):
        after = float(found.losses.mean())
        if found.lr is None or before - after <= allowed / 4:
            break
        found, before = retrain(found.net, fit, epochs, (found.lr,), teacher), after
    return replace(found, before=first.before)


def _nonzero(net: nn.Module) -> int:
    return sum(int(p.count_nonzero()) for p in net.parameters())


def at_thresholds(
    fit: Fit,
    thresholds: Mapping[str, float],
    means: Decision | None = None,
    whole: nn.Module | None = None,
) -> Decision:
    """The network of a size that :func:`smallest` tries.

    Arguments:
        means: of the same fit, where moments and irrelevance by weight are known.
        whole: what is cut, instead of the network of the means.
    """
    model, guide = fit.model, fit.guide
    layers = layer_moments(model, guide) if means is None else means.layers
    found = weight_irrelevance(model, layers) if means is None else means.irrelevance
    whole = mean_network(model, guide, layers) if whole is None else whole
    zeros = with_zeros(whole, found, thresholds, model)
    net, report = cut(zeros.cpu(), fit.data.head(ROWS)[0].cpu())
    return Decision(model, guide, layers, whole, net, report, found, dict(thresholds), [])


def is_as_good(worse: Tensor, allowed: float) -> bool:
    """True if differences of rows ``(N,)`` have a mean of half of what is allowed, at most, and of
    no more than that with a standard error of it for luck: what is just at the limit then passes in
    one of six sets of such rows."""
    return float(worse.mean()) <= allowed / 2 and float(worse.mean()) + _error(worse) <= allowed


def _error(values: Tensor) -> float:
    return float(values.std()) / len(values) ** 0.5 if len(values) > 1 else 0.0


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


def inside(net: nn.Module, name: str) -> str:
    """Name of a layer in a cut network: it, or the cell it is in, may stand behind a selection of
    inputs."""
    cell, _, own = name.rpartition(".")
    if cell and not hasattr(net.get_submodule(cell), own):
        return f"{cell}.1.{own}"
    return f"{name}.1" if isinstance(net.get_submodule(name), nn.Sequential) else name


def kept_of(report: CutReport, layer: BayesianLayer) -> tuple[Tensor | None, Tensor | None]:
    """Outputs and inputs that a cut left of a layer; ``None`` for all."""
    part, affine = report.layers.get(layer.name), layer.affine
    if part is None:
        return None, None
    # A channel of a depthwise convolution has one input, whichever it is.
    plain = part.inputs_before == affine.shape.weight[1 - affine.output_dim]
    return part.outputs, part.inputs if plain else None
