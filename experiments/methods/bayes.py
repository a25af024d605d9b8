"""Any prior and guide over the weights, narrowed while it trains where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn

from ... import guides, models
from ...data import Dataset
from ...inference.posterior.draws import DrawnNetwork, Noise
from ...inference.pruning.thresholds import Threshold, by_validation
from ...inference.training.settings import Settings
from ...models.layers.local_reparameterisation import Scales
from . import narrowing
from .base import Pair, Stage
from .options import Layers, Nats, Rule
from .weights import OverWeights, named_layers

__all__ = ["Bayes"]

_FIRST = "first:"


def _of_first(text: str) -> bool:
    try:
        return text.startswith(_FIRST) and float(text.removeprefix(_FIRST)) >= 0
    except ValueError:
        return False


Limit = Annotated[
    float | str | Mapping[str, float] | None,
    Rule(
        "a number, numbers by layer, first:NUMBER for the layer that is used first, or null",
        lambda limit: not isinstance(limit, str) or _of_first(limit),
    ),
]
Fractions = Annotated[
    Sequence[float] | None,
    Rule(
        "the fractions of the run after which the network is narrowed, such as [0.25,0.5], or [] "
        "to train the whole network to the end",
        lambda at: all(0 < one < 1 for one in at or ()),
    ),
]


@dataclass(frozen=True)
class Bayes(OverWeights):
    """A prior and a guide over the weights of any network.

    Attributes:
        prior: of the weights, in words.
        guide: in words.
        scales: whether the scales of groups are drawn for each ``example`` or once for a ``batch``.
        max_scale: largest standard deviation of a weight, relative to the scales.
        threshold: by which the network is cut in the end.
        tolerance: what a cut by the validation rows may cost, in nats of a row.
        narrow: fractions of the run after which the network is cut on the way.
        narrow_at: threshold of the cuts on the way.
        narrow_tolerance: tolerance of the cuts on the way; that of the last if left out.
        last_rows: ``all`` trains on the validation rows, too, after the last cut on the way.
        layers: that are random; all by default.
        random_biases: biases are random, too.
        noise: of a draw: of the weights, or of the activations.
    """

    prior: str = "normal:1"
    guide: str = "mean-field"
    scales: Scales = "example"
    max_scale: Limit = None
    threshold: Threshold | None = None
    tolerance: Nats | None = 0.001
    narrow: Fractions = ()
    narrow_at: Threshold | None = None
    narrow_tolerance: Nats | None = None
    last_rows: Literal["all"] | None = None
    layers: Layers = None
    random_biases: bool = True
    noise: Noise = "weights"

    @property
    def drawn(self) -> Noise:
        return self.noise

    @property
    def last_cut(self) -> tuple[Threshold | None, float | None]:
        return self.threshold, self.tolerance

    @property
    def cuts(self) -> dict[str, Threshold | None]:
        on_the_way = {"narrow_at": self.narrow_at} if self.narrow else {}
        return {"threshold": self.threshold, **on_the_way}

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model = models.BayesianNetwork(
            net,
            data,
            prior=models.priors.parse_weights(self.prior),
            layers=named_layers(self.layers, net),
            random_biases=self.random_biases,
        )
        more: dict[str, Any] = {"scales": self.scales}
        if isinstance(self.max_scale, str):
            more["max_scale"] = {next(iter(model.layers)): float(self.max_scale[len(_FIRST) :])}
        elif self.max_scale is not None:
            more["max_scale"] = self.max_scale
        guide = guides.parse(self.guide, model, **more)
        # These say now what they would say in the middle, or at the end.
        DrawnNetwork(model, guide, self.noise)
        for rule in (self.threshold, self.narrow_at):
            narrowing.refuse_names(rule, model)
        if self.narrow:
            narrowing.refuse_uncuttable(model, guide, data)
        elif not guide.zero_mean:  # of which nothing is cut
            narrowing.tell_uncuttable(model, data)
        return model, guide

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        if not self.narrow:
            yield "narrow_at", "changes nothing: no cut is on the way. Add narrow=[0.25,0.5]."
        yield from super().refusals(settings, data)
        by_rows = [name for name, rule in self.cuts.items() if by_validation(rule, data)]
        if by_rows == ["narrow_at"] and self.narrow_tolerance is not None:
            yield "tolerance", "changes nothing: it is of the last cut. Add threshold=validation."
        if "narrow_at" not in by_rows:
            without = "no cut on the way is by validation rows (narrow=, without narrow_at=)"
            yield "narrow_tolerance", f"changes nothing: {without}."
        at = list(self.narrow or ())
        if len(narrowing.lengths(at, settings)[1]) == 1:
            without = f"narrow={at} cuts nothing on the way. Set data.val_fraction=0 instead"
            yield "last_rows", f"changes nothing: {without}."
        if not len(data.x_val):
            yield "last_rows", "changes nothing: there are no validation rows."
        if "threshold" in by_rows:
            chosen = f"threshold={self.threshold!r} is chosen. Add threshold=noise or a number"
            yield "last_rows", f"leaves no validation rows, on which {chosen}."

    def first(self, settings: Settings) -> dict[str, Any]:
        return narrowing.first_settings(self.narrow or (), settings)

    def stages(self, settings: Settings) -> list[Stage]:
        allowed = self.tolerance if self.narrow_tolerance is None else self.narrow_tolerance
        all_rows = self.last_rows == "all"
        return narrowing.stages(self.narrow or (), settings, self.narrow_at, allowed, all_rows)
