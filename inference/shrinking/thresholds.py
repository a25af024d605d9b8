"""Thresholds at which a posterior is cut: a number, between clusters, or by what the cut costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ...guides import NetworkGuide
from ...models import BayesianNetwork, unknown_name
from ..cutting import ROWS, Mask, masked
from ..posterior import outputs_of_rows
from ..training import nll_alone
from .options import TOLERANCE, ByValidation, Cut, Noise, PerLayer, Search, Thresholds, Valley
from .relevance import Irrelevance, search, valley

if TYPE_CHECKING:
    from ...data import Dataset

COSTLY = 0.05
"""Nats of a row from which on a cut by another rule is said to cost."""


class Chosen(NamedTuple):
    """Thresholds by layer, and sentences for a person who is handed what they leave."""

    thresholds: dict[str, float]
    warnings: list[str]


WORDS = ("first", "last", "linear", "convolution")


def by_layer(what: str, value: PerLayer[Any], model: BayesianNetwork) -> dict[str, float]:
    """A number for each layer.

    Arguments:
        what: the name of the numbers.
        value: one for all; or a list, in the order in which the network uses its layers; or by the
            name of the layer, now or before anything was cut, or else by ``first`` or ``last``, or
            else by its kind, ``linear`` or ``convolution``. A layer to which nothing applies has
            none.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = models.networks.perceptron((1, 8, 8), 10, hidden=(20,))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> by_layer("keep", {"linear": 0.1, "last": 0.5}, model)
        {'1': 0.1, '3': 0.5}
    """
    layers = model.layers
    if isinstance(value, Sequence):
        if len(value) != len(layers):
            raise PyroccamError(f"{what}={value!r}", f"one number, or {len(layers)}")
        value = dict(zip(layers, value, strict=True))
    elif not isinstance(value, Mapping):
        return dict.fromkeys(layers, float(value))
    for name in value:
        if name not in layers and name not in (*WORDS, *model.names):
            raise PyroccamError(unknown_name(f"layer in {what}=", name, (*layers, *WORDS)))
    found = {}
    for before, name in model.names.items():
        if before != name and before in value and name in value:
            raise PyroccamError(f"{what} names one layer twice: {before!r} is called {name!r} now")
        place, kind = layers[name].position, layers[name].affine.shape.weight
        words = [name, before, *["first"] * (place == 0), *["last"] * (place == len(layers) - 1)]
        words.append("convolution" if len(kind) > 2 else "linear")
        given = [float(value[word]) for word in words if word in value]
        if given:
            found[name] = given[0]
    return found


def refuse_uncut(guide: NetworkGuide) -> None:
    """Refuse layers without means, and random structure: there is no network of means to cut."""
    if guide.edges:
        raise PyroccamError(f"The structure of the network is random (site {guide.edges[0]!r})")
    if guide.traits.zero_mean:
        raise PyroccamError(f"The weights of layer {guide.traits.zero_mean[0]!r} have no mean")


def choose_thresholds(
    asked: Cut | None,
    found: Mapping[str, Irrelevance],
    whole: nn.Module,
    model: BayesianNetwork,
    data: Dataset,
) -> Chosen:
    """A threshold for each layer, infinity leaves it whole; and sentences for a person who is
    handed what they leave. They always leave a network.

    Where what was asked for would cut every path from the inputs to the outputs, or the whole of a
    layer, it is weakened as little as can be: to the smallest network within :data:`TOLERANCE` on
    the validation rows, or, without such rows, the smallest whose outputs depend on its inputs.

    Arguments:
        asked: where to cut; by the validation rows if there are some, or else at the valley.
        found: what is compared with them, by layer.
        whole: the mean network.

    Raises:
        PyroccamError: for unknown layers, ``ByValidation`` without validation rows, or a search.
    """
    if asked is None:
        asked = ByValidation() if len(data.x_val) else Valley()
    cuts = Cuts(whole, found, model, data)
    if isinstance(asked, ByValidation):
        if not len(data.x_val):
            raise PyroccamError(f"{asked} without validation rows", "Valley(), say")
        return Chosen(cuts.smallest(asked.nats), [])
    wanted = _wanted(asked, found, model)
    emptied = [name for name, one in found.items() if not (one.values <= wanted[name]).any()]
    if not emptied and cuts.leave_network(wanted):
        return Chosen(wanted, cuts.doubts(wanted, asked))
    weakened = cuts.smallest(TOLERANCE, wanted)
    what = f"the whole of layer {emptied[0]!r}" if emptied else "every path to the outputs"
    kept = (
        f"the smallest network within {TOLERANCE:g} nats of the whole one on the validation rows"
        if len(data.x_val)
        else "the smallest network of all (there are no validation rows to judge it by)"
    )
    said = f"{asked} would cut {what}; left is {kept}."
    return Chosen(weakened, [said, *cuts.doubts(weakened, asked)])


def _wanted(
    asked: Valley | Noise | Thresholds | Search,
    found: Mapping[str, Irrelevance],
    model: BayesianNetwork,
) -> dict[str, float]:
    if isinstance(asked, Thresholds):
        given = by_layer("Thresholds", asked.at, model)
        return {name: given.get(name, math.inf) for name in found}
    if isinstance(asked, Noise):
        # A layer of noise, as on a residual branch that has died, is no error after a long run.
        return {name: max(0.0, float(one.values.min())) for name, one in found.items()}
    if isinstance(asked, Valley):
        clusters = {name: valley(one.values) for name, one in found.items()}
        return {name: math.inf if t is None else t for name, t in clusters.items()}
    raise PyroccamError(f"cut={asked}", "one that trains nothing")


@dataclass(frozen=True)
class Cuts:
    """All cuts of a mean network by thresholds, with which what was ``found`` is compared."""

    whole: nn.Module
    found: Mapping[str, Irrelevance]
    model: BayesianNetwork
    data: Dataset

    @torch.no_grad()
    def cost(self, thresholds: Mapping[str, float]) -> float:
        """The mean negative log-likelihood of the validation rows, in nats."""
        x, y = self.data.split("val")
        net = with_zeros(self.whole, self.found, thresholds, self.model)
        return -float(self.model.likelihood(outputs_of_rows(net, x)).log_prob(y).mean())

    def leave_network(self, thresholds: Mapping[str, float]) -> bool:
        """True if the outputs still depend on the inputs (:func:`tells_apart`)."""
        net = with_zeros(self.whole, self.found, thresholds, self.model)
        return tells_apart(net, self.data.head(ROWS)[0])

    def size(self, thresholds: Mapping[str, float]) -> float:
        return sum(
            float((one.values <= thresholds[name]).double().mean()) * one.size
            for name, one in self.found.items()
        )

    def smallest(
        self, tolerance: float, above: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """The thresholds that keep the fewest weights that are a network.

        Arguments:
            tolerance: nats of a validation row that they may cost, if there are such rows.
            above: thresholds below which they must not be, by layer.
        """
        values = {name: one.values for name, one in self.found.items()}
        if above is not None:  # what these keep is kept together
            values = {name: v.clamp_min(above[name]) for name, v in values.items()}
        by_rows = len(self.data.x_val) > 0
        nothing = dict.fromkeys(self.found, math.inf)
        # A rounding of the error must not decide.
        limit = self.cost(nothing) + tolerance + 1e-9 if by_rows else 0.0

        # Not the number of errors: of the many thresholds that are tried, that picks the lucky.
        def cost(thresholds: Mapping[str, float]) -> float:
            found = self.cost(thresholds) if by_rows else 0.0
            return found if found > limit or self.leave_network(thresholds) else math.inf

        return search(values, cost, limit=limit, size=self.size)

    def doubts(self, thresholds: Mapping[str, float], asked: Cut) -> list[str]:
        """A sentence where the cut costs more than :data:`COSTLY`, or makes a network of one that
        knows something that is worse than knowing nothing."""
        if not len(self.data.x_val):
            return []
        before, after = self.cost(dict.fromkeys(self.found, math.inf)), self.cost(thresholds)
        nothing = nll_alone(self.data, "val")
        if after <= before + COSTLY and not before < nothing < after:
            return []
        return [
            f"The cut by {asked} costs: {after:.3f} nats on the validation rows, "
            f"{before:.3f} before it, {nothing:.3f} without looking at the inputs. Train it "
            "further, or cut by the validation rows."
        ]


@torch.no_grad()
def tells_apart(net: nn.Module, x: Tensor) -> bool:
    """True if the outputs of some rows differ, which they do not where no path of weights is left,
    or behind units that are always zero."""
    outputs = outputs_of_rows(net, x)
    return bool((outputs - outputs[:1]).abs().max() > 1e-6 * outputs.abs().max())


def with_zeros(
    whole: nn.Module,
    found: Mapping[str, Irrelevance],
    thresholds: Mapping[str, float],
    model: BayesianNetwork,
) -> nn.Module:
    """The mean network with zeros for what is above the thresholds."""
    masks: dict[str, Mask] = {}
    for name, one in found.items():
        keep = one.values <= thresholds[name]
        if keep.all():
            continue
        shape = model.layers[name].affine.shape
        side = "outputs" if shape.output_groups else "inputs"
        masks[name] = Mask(**{side if one.grouped else "weights": keep})
    return masked(whole, masks)
