"""Any prior and guide over the weights: trained as numbers first, then as random, narrowed on the
way, and what is left as numbers again, where that is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn

from ... import guides, models
from ...data import Dataset, NotNegative, PyroccamError, Rule, Share, ShareOrZero
from ...inference.posterior import DrawnNetwork, Noise
from ...inference.shrinking import levels_of, narrow, refuse_uncut
from ...inference.training import Fit, Settings
from ...models import Scales
from .base import Pair, Stage, length_in
from .options import Layers, Threshold
from .weights import (
    OverWeights,
    by_validation,
    cut_of,
    named_layers,
    refuse_names,
    tell_uncuttable,
    try_to_cut,
)  # fmt: skip

_FIRST = "first:"


def _is_limit(asked: object) -> bool:
    try:
        return not isinstance(asked, str) or (
            asked.startswith(_FIRST) and float(asked.removeprefix(_FIRST)) >= 0
        )
    except ValueError:
        return False


Limit = Annotated[
    float | str | Mapping[str, float] | None,
    Rule("a number, numbers by layer, first:NUMBER for the layer used first, or null", _is_limit),
]
Fractions = Sequence[Share] | None
"""Of the run, after which the network is narrowed; none trains the whole network to the end."""


@dataclass(frozen=True)
class Bayes(OverWeights):
    """A prior and a guide over the weights of any network.

    Attributes:
        prior: prior of the weights, in words, such as ghs:1e-5 or pretrained:digits.
        guide: posterior of the weights, in words.
        start: fraction of the run for which weights are numbers at first, at the best of up to
            three learning rates, each of which is tried for a sixth of it; the posterior begins
            there.
        finish: fraction of the run for which each smaller network is trained as numbers in the end.
        scales: scales of groups are drawn for each ``example``, or once for a ``batch``.
        max_scale: largest standard deviation of a weight, its scales apart.
        threshold: rule or number by which the network is cut in the end.
        tolerance: nats of a row, and share of errors, that a smaller network may lose to the plain
            one; 0.01 if left out. A cut by the validation rows that is not trained on (finish=0,
            or narrow=) may cost so many nats, or 0.001.
        narrow: fractions of the run after which the network is cut on the way.
        narrow_at: rule or number of the cuts on the way.
        narrow_tolerance: tolerance of the cuts on the way; that of the last cut if left out.
        last_rows: ``all`` trains on the validation rows, too, after the last cut on the way.
        layers: layers with random weights, ``hidden`` ones, the ``penultimate`` or by name.
        random_biases: biases are random, too, or numbers.
        noise: draws of a prediction have noise on their ``weights`` or their ``activations``.
    """

    prior: str = "normal:1"
    guide: str = "mean-field"
    start: ShareOrZero = 0.0
    finish: ShareOrZero = 0.0
    scales: Scales = "example"
    max_scale: Limit = None
    threshold: Threshold | None = None
    tolerance: NotNegative | None = None
    narrow: Fractions = ()
    narrow_at: Threshold | None = None
    narrow_tolerance: NotNegative | None = None
    last_rows: Literal["all"] | None = None
    layers: Layers = None
    random_biases: bool = True
    noise: Noise = "weights"

    @property
    def cuts(self) -> dict[str, Threshold | None]:
        return {**super().cuts, **({"narrow_at": self.narrow_at} if self.narrow else {})}

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        prior = models.priors.parse_weights(self.prior)
        if isinstance(prior, models.priors.Pretrained):
            prior.start(net)
        model = models.BayesianNetwork(
            net,
            data,
            prior=prior,
            layers=named_layers(self.layers, net),
            likelihood=self.likelihood,
            random_biases=self.random_biases,
        )
        limit = self.max_scale
        if isinstance(limit, str):
            limit = {next(iter(model.layers)): float(limit.removeprefix(_FIRST))}
        more = {"scales": self.scales} | ({} if limit is None else {"max_scale": limit})
        guide = guides.parse(self.guide, model, **more)
        if self.finish and (guide.steps or levels_of(model)):
            raise PyroccamError(f"finish={self.finish:g}, and weights on levels", "finish=0")
        if guide.traits.point and self.threshold is not None:
            given = f"threshold={self.threshold!r} with guide={self.guide!r}, whose weights are"
            raise PyroccamError(f"{given} points")
        # These say now what they would say in the middle, or at the end.
        DrawnNetwork(model, guide, self.noise)
        refuse_names(model, self.threshold, self.narrow_at)
        if self.narrow:
            try:
                refuse_uncut(guide)
                try_to_cut(model, data)
            except (ValueError, RuntimeError) as error:
                why = f"narrow={list(self.narrow)} cuts the network while it trains: {error}"
                raise PyroccamError(why, hint="narrow=[]") from error
        elif not guide.traits.zero_mean:  # of which nothing is cut
            tell_uncuttable(model, data)
        return model, guide

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        if not self.narrow:
            yield "narrow_at", "changes nothing: no cut is on the way. Add narrow=[0.25,0.5]."
        yield from super().refusals(settings, data)
        by_rows = [name for name, rule in self.cuts.items() if by_validation(rule, data)]
        if "narrow_at" not in by_rows:
            without = "no cut on the way is by validation rows (narrow=, without narrow_at=)"
            yield "narrow_tolerance", f"changes nothing: {without}."
        if len(self._lengths(settings)) == 1:
            at = list(self.narrow or ())
            without = f"narrow={at} cuts nothing on the way. Set data.val_fraction=0 instead"
            yield "last_rows", f"changes nothing: {without}."
        if not len(data.x_val):
            yield "finish", "needs validation rows, and there are none."
            yield "last_rows", "changes nothing: there are no validation rows."
        if "threshold" in by_rows:
            chosen = f"threshold={self.threshold!r} is chosen. Add threshold=noise or a number"
            yield "last_rows", f"leaves no validation rows, on which {chosen}."

    def numbers(self, settings: Settings, data: Dataset) -> int:
        unit = settings.steps_per_epoch(data.N) if settings.epochs is None else 1
        return -(-self._parts(settings)[0] // unit)

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        return self.search(settings, data, bool(self.start) and not self.narrow)

    def _parts(self, settings: Settings) -> tuple[int, int]:
        """Epochs, or steps, in which weights are numbers at first, and random."""
        whole = settings.steps if settings.epochs is None else settings.epochs
        first, last = (round(part * whole) for part in (self.start, self.finish))
        if self.start and not first:
            first = min(1, whole - last - 1)
        return first, max(1, whole - first - last)

    def _lengths(self, settings: Settings) -> list[int]:
        """Epochs, or steps, of the fits of random weights, narrowed at fractions of their whole."""
        whole = self._parts(settings)[1]
        # Fractions that fall on one epoch are one.
        ends = sorted({max(1, round(f * whole)) for f in self.narrow or ()} | {whole})
        return [b - a for a, b in itertools.pairwise([0, *(e for e in ends if e <= whole)])]

    def first(self, settings: Settings) -> dict[str, Any]:
        """The learning rate falls in the last fit."""
        first, *rest = self._lengths(settings)
        unit, whole = length_in(settings), first + sum(rest)
        if not rest:
            return {} if whole == sum(self._parts(settings)) else {unit: whole}
        warmup = settings.kl_warmup * whole / first
        if warmup >= 1:
            given = f"narrow={list(self.narrow or ())} and kl_warmup={settings.kl_warmup}"
            raise PyroccamError(given, f"a kl_warmup below {first / whole:.3g}")
        return {unit: first, "schedule": "constant", "kl_warmup": warmup}

    def stages(self, settings: Settings) -> list[Stage]:
        """The fits over what the one before leaves."""
        tolerance = self.tolerance if self.narrow_tolerance is None else self.narrow_tolerance
        found: list[Stage] = []

        def over(all_rows: bool) -> Callable[[Fit], Pair]:
            def build(before: Fit) -> Pair:
                data = before.data.all_rows() if all_rows else before.data
                rule = cut_of(before, self.narrow_at, tolerance)
                return narrow(before, cut=rule, data=data)

            return build

        rest = self._lengths(settings)[1:]
        for k, n in enumerate(rest, start=1):
            last = k == len(rest)
            own: dict[str, Any] = {length_in(settings): n, "kl_warmup": 0.0}
            own |= {} if last else {"schedule": "constant"}
            all_rows = last and self.last_rows == "all"
            found.append(Stage(f"narrow-{k}", over(all_rows), own, all_rows))
        return found
