"""Depth, widths and bits in one posterior: blocks pay for their weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from torch import nn

from ... import guides, models
from ...data import Dataset, NotNegative, Positive, PyroccamError, ShareOrZero
from ...inference.cutting import ROWS, count_parameters, multiply_adds, seconds_per_batch
from ...inference.elbo import evidence
from ...inference.figures import bytes_by_bound
from ...inference.posterior import mean_network, require
from ...inference.shrinking import levels_of, narrow, settled
from ...inference.training import Fit, Settings
from .. import draw_depth, draw_trade, save_figure
from .base import Finished, Pair, Stage, length_in, told
from .options import Threshold
from .weights import FILE, OverWeights, compress_run, cut_of, try_to_cut

_AROUND = 3  # depths on both sides of the chosen one that are cut for comparison
_POINTS = "normal:1"  # prior of the weights while they are numbers


@dataclass(frozen=True)
class FromNumbers(OverWeights):
    """A posterior over weights, and the depth of a stack, that begins where a fit of points ends.

    Attributes:
        prior: prior of the weights, in words.
        guide: posterior of the weights, in words.
        depth: prior of the depth, in words.
        number_bits: what a number that is no random weight costs, a scale or a shift, in that
            prior.
        scale: standard deviation of the weights where their posterior begins; the prior's
            suggestion if null. It is wide, so that what blocks cost has settled by the time their
            number is decided on.
        hold: fraction of the next fit in which q(d) stays as it begins.
        reach: depths that have half of q(d) where it begins, were there no deepest; uniform if
            null.
        start: fraction of the run in which weights are numbers, at first.
    """

    fractions: ClassVar[tuple[str, ...]] = ("start",)

    prior: str = "gnj"
    guide: str = "mean-field"
    depth: str = "uniform"
    number_bits: NotNegative = 0.0
    scale: Positive | None = 0.1
    start: ShareOrZero = 0.2
    hold: ShareOrZero = 0.5
    reach: Positive | None = None

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model, guide = self._posterior(net, data)
        if guide.traits.zero_mean:
            raise PyroccamError(f"guide={self.guide!r}", "one of weights with a mean")
        deepest = {site: torch.eye(len(one.logits))[-1] for site, one in model.structure.items()}
        alone = model.settled(data, deepest)
        try:
            try_to_cut(model if alone is None else alone[0], data)
        except (ValueError, RuntimeError) as error:
            raise PyroccamError(
                f"This method cuts the network, which cannot be done: {error}"
            ) from error
        pair = self._pair(model, guide)
        if not self.start:
            return pair
        points = self._model(net, data, _POINTS)
        return points, guides.Delta(points, structure=self._family(0.99))

    def _pair(self, model: Any, guide: Any) -> Pair:
        """What is trained of a model and the posterior of its weights."""
        return model, guide

    def _model(self, net: nn.Module, data: Dataset, prior: str, **more: Any) -> Any:
        """A model of the network."""
        weights = models.priors.parse_weights(prior)
        return models.BayesianStack(net, data, prior=weights, likelihood=self.likelihood, **more)

    def _posterior(self, net: nn.Module, data: Dataset) -> tuple[Any, Any]:
        depth = models.priors.parse(self.depth)
        model = self._model(net, data, self.prior, depth=depth, number_bits=self.number_bits)
        family = self._family(self.hold)
        return model, guides.parse(self.guide, model, structure=family, scale=self.scale)

    def _family(self, hold: float) -> guides.StructureFamily:
        return guides.StructureFamily(hold=hold, reach=self.reach)

    def _joint(self, before: Fit) -> Pair:
        net = mean_network(*require(before, models.BayesianNetwork, self.name))
        return self._pair(*self._posterior(net, before.data))

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        yield from super().refusals(settings, data)
        if settings.kl_warmup > self.hold:
            late = f"while the KL still gains weight (kl_warmup={settings.kl_warmup})"
            yield "hold", f"lets q(d) go {late}. Set it to more, or kl_warmup to less."

    def _parts(self, settings: Settings) -> dict[str, int]:
        """Epochs, or steps, of the fits and of what follows them, by the fractions of the run."""
        whole = settings.steps if settings.epochs is None else settings.epochs
        found = {name: round(getattr(self, name) * whole) for name in self.fractions}
        return {**found, "joint": max(1, whole - sum(found.values()))}

    def first(self, settings: Settings) -> dict[str, Any]:
        parts, unit = self._parts(settings), length_in(settings)
        if not self.start:
            return {unit: parts["joint"]}
        return {unit: max(1, parts["start"]), "kl_warmup": 0.0}

    def plain_epochs(self, settings: Settings, data: Dataset) -> int:
        """As many as usually go before the posterior."""
        return max(1, round(FromNumbers.start * settings.epochs_for(data.N)))

    def stages(self, settings: Settings) -> list[Stage]:
        """The posterior, if the first fit was of points."""
        if not self.start:
            return []
        length = self._parts(settings)["joint"]
        own = {length_in(settings): length, "kl_warmup": settings.kl_warmup}
        return [Stage("joint", self._joint, own)]


@dataclass(frozen=True)
class Occam(FromNumbers):
    """A posterior over the depth of a stack and its weights, then over what is left of it.

    Attributes:
        last: fraction of the run in which the network of the chosen depth, narrowed, is trained on.
        finish: fraction of the run for which each smaller network is trained as numbers in the end.
        threshold: rule or number by which the network is cut in the end.
        tolerance: nats of a row, and share of errors, that a smaller network may lose to the whole
            one as numbers; 0.01 if left out. A cut before the last fit, or of another depth, may
            cost so many nats, or 0.001.
        narrow_at: rule or number of the cut before the last fit.
    """

    over = "stack"
    passes = 10.0  # of the neighbours, too
    fractions = ("start", "last", "finish")

    last: ShareOrZero = 0.25
    finish: ShareOrZero = 0.15
    threshold: Threshold | None = None
    tolerance: NotNegative | None = None
    narrow_at: Threshold | None = None

    @property
    def cuts(self) -> dict[str, Threshold | None]:
        return {**super().cuts, **({"narrow_at": self.narrow_at} if self.last else {})}

    def _pair(self, model: Any, guide: Any) -> Pair:
        if self.finish and (guide.steps or levels_of(model)):
            raise PyroccamError(f"finish={self.finish:g}, and weights on levels", "finish=0")
        return model, guide

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        yield from super().refusals(settings, data)
        if not self.last:
            yield "narrow_at", "changes nothing: no fit follows that cut. Set last=0.25."
        if not len(data.x_val):
            yield "finish", "needs validation rows, and there are none."

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        return self.search(settings, data, False)

    def stages(self, settings: Settings) -> list[Stage]:
        def rest(before: Fit) -> Pair:
            one = settled(before)
            if one.guide.traits.point:
                return one.model, one.guide
            return narrow(one, cut=cut_of(one, self.narrow_at, self.tolerance))

        found = super().stages(settings)
        if self.last:
            own = {length_in(settings): max(1, self._parts(settings)["last"]), "kl_warmup": 0.0}
            found.append(Stage("narrow-1", rest, own))
        return found

    def compared(self, fits: Sequence[Fit]) -> tuple[Fit, nn.Module]:
        joint = self._with_depth(fits)
        stack: Any = mean_network(*require(joint, models.BayesianStack, "occam"))
        return settled(joint), stack.at(stack.max_depth)

    def _with_depth(self, fits: Sequence[Fit]) -> Fit:
        """The fit over depth and weights."""
        return fits[1 if self.start else 0]

    def report(self, run: Finished) -> dict[str, Any]:
        """What was learnt of the depth, and the report of all methods over weights."""
        joint = self._with_depth(run.fits)
        assert joint.structure is not None
        neighbours = self._neighbours(joint)
        if run.out is not None:
            draw_depth(joint, run.out / "figures")
            if run.figures:
                _draw(joint, neighbours, run.out / "figures")
        depth = {"depth": joint.structure.to_json(), "neighbours": neighbours}
        # What is cut is one network, which the stack itself is not.
        alone = run if self.last else replace(run, fits=[*run.fits, settled(joint)])
        found = super().report(alone)
        learnt = [*map(told, joint.structures), *found["learnt"]]
        return {**depth, **found, "learnt": learnt}

    def _neighbours(self, joint: Fit) -> list[dict[str, Any]]:
        """Networks of the depths around the chosen one, each cut and packed by the posterior that
        all share, without further training: a trade of error for size."""
        assert joint.structure is not None
        chosen, deepest = joint.structure.depth_chosen, len(joint.structure.depth_probs) - 1
        depths = range(max(0, chosen - _AROUND), min(deepest, chosen + _AROUND) + 1)
        rows: dict[int, dict[str, Any]] = {}
        nets: dict[str, nn.Module] = {}
        for depth in depths:
            with TemporaryDirectory() as scratch, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The cut by", UserWarning)
                one = settled(joint, depth)
                try:
                    rule = cut_of(one, self.threshold, self.tolerance)
                    small, found = compress_run(one, rule, Path(scratch) / FILE)
                except (ValueError, RuntimeError):  # of which nothing would be left, say
                    continue
            bound = evidence(one.model, one.guide, one.data, rows=ROWS, passes=2)
            nets[str(depth)] = small.net.to(joint.data.x_test.device)
            rows[depth] = {
                "depth": depth,
                "chosen": depth == chosen,
                "parameters": count_parameters(small.net),
                "multiply_adds": multiply_adds(small.net, joint.data.x_test[:1]),
                "file_bytes": found["file_bytes"],
                "weight_bytes": found["weight_bytes"],
                "kl_bytes": bound.kl / (8 * math.log(2.0)),
                "number_bytes": self.number_bits * joint.model.count_numbers(depth) / 8,
                "test": found["test"],
            }
        speed = seconds_per_batch(nets, joint.data.x_test[:256]) if nets else {}
        return [row | {"seconds_per_batch": speed[str(d)]} for d, row in rows.items()]


def _draw(joint: Fit, neighbours: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """The trade of error for size."""
    chosen = [k for k, row in enumerate(neighbours) if row["chosen"]]
    if not chosen:
        return
    labels = [str(row["depth"]) for row in neighbours]
    draw_trade(joint, neighbours, labels, chosen[0], folder)
    predicted = [max(1.0, row["kl_bytes"] + row["number_bytes"]) for row in neighbours]
    coded = [max(1.0, row["weight_bytes"]) for row in neighbours]
    sizes = [row["file_bytes"] for row in neighbours]
    picture = bytes_by_bound(predicted, sizes, coded, labels, chosen[0])
    save_figure(picture, joint.data, folder / "bytes")
