"""A network of every size, from one fit over all weights of the KL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path as FilePath
from typing import Annotated, Any

from torch import nn

from ... import guides, models
from ...data import Dataset, NotNegative, Positive, PyroccamError, Rule
from ...inference.cutting import count_parameters
from ...inference.figures import weight_path
from ...inference.posterior import mean_network, require
from ...inference.shrinking import Bytes, Milliseconds, PathPoint, path, settled
from ...inference.training import Fit, Settings
from ...models.networks import NETWORKS, DepthStack
from .. import draw_depth, draw_trade, save_figure
from .base import Finished, Pair, told, uncut
from .occam import FromNumbers
from .options import Threshold
from .weights import cut_of, evaluate, refuse_names

_PATH = "A network for each weight λ of the KL"
"""Title of what is said of the networks along that weight."""

_OF_STACKS = ("depth", "number_bits", "hold", "reach")  # options of a depth that is learnt
_LABELS = 5  # of networks in a figure, the chosen one apart

Pivots = Annotated[int, Rule("a whole number of at least 2", lambda n: n >= 2)]


@dataclass(frozen=True)
class EverySize(FromNumbers):
    """A posterior for every weight of the KL, over the weights of any network and the depth of a
    stack. In the end networks are read off along that weight, and one of them is chosen: the best
    by the validation rows, of those that a budget allows where there is one.

    Attributes:
        low: the least weight of the KL that is trained, for the largest network.
        high: the largest weight, for the smallest network.
        pivots: of the broken lines that the parameters of the posterior are as functions of the
            weight, see :class:`~pyroccam.guides.Conditional`.
        points: networks that are read off, at first.
        bytes: that the file of the chosen network may have.
        milliseconds: that the chosen network may take for 256 rows, here.
        threshold: rule or number by which the networks are cut.
        tolerance: nats of a row that a cut by the validation rows may cost; 0.001 if left out. To
            the plain network the chosen one may lose so much, or 0.01.
    """

    over = "net"

    low: Positive = 0.02
    high: Positive = 2.0
    pivots: Pivots = 6
    points: Pivots = 9
    bytes: Positive | None = None
    milliseconds: Positive | None = None
    threshold: Threshold | None = None
    tolerance: NotNegative | None = None

    @property
    def gives_way(self) -> bool:
        return self.bytes is None and self.milliseconds is None

    @property
    def passes(self) -> float:
        """Of the networks along the path, each drawn, cut, rounded and packed."""
        return 2.2 * self.points

    @property
    def networks(self) -> dict[str, Callable[..., nn.Module]]:
        return {**super().networks, **NETWORKS}

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        if not len(data.x_val):
            raise PyroccamError(f"{self.name} of no validation rows", hint="data.val_fraction=0.1")
        return super().build(net, data)

    def _model(self, net: nn.Module, data: Dataset, prior: str, **more: Any) -> Any:
        if isinstance(net, DepthStack):
            return super()._model(net, data, prior, **more)
        for one in fields(self):
            if one.name in _OF_STACKS and (value := getattr(self, one.name)) != one.default:
                known = f"--network {' or '.join(NETWORKS)}"
                raise PyroccamError(f"{one.name}={value!r} of a net without a depth", hint=known)
        weights = models.priors.parse_weights(prior)
        return models.BayesianNetwork(net, data, prior=weights, likelihood=self.likelihood)

    def _pair(self, model: Any, guide: Any) -> Pair:
        if model.structure and isinstance(self.threshold, Mapping):
            raise PyroccamError("threshold= by layer, of a stack", "one rule or number for all")
        refuse_names(model, self.threshold)
        found = guides.Conditional(guide, low=self.low, high=self.high, pivots=self.pivots)
        if all(guide.factor_of(site).is_point for site in guide.sites):
            raise PyroccamError(f"guide={self.guide!r}, whose weights are points", "mean-field")
        return model, found

    def further(self, begin: Callable[[], nn.Module], data: Dataset) -> dict[str, Pair]:
        return {"joint": self._pair(*self._posterior(begin(), data))} if self.start else {}

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        yield from super().refusals(settings, data)
        if settings.kl_weight != 1.0:
            yield "kl_weight", "is one weight of the KL, and all from low= to high= are learnt."

    def concluded(self, result: Fit, known: Mapping[str, Any]) -> tuple[Fit, Mapping[str, Any]]:
        """The fit of one weight of the KL, and the networks along it."""
        if "path" in known:
            return _of(result, known["path"]["weight"]), {"path": known["path"]}
        rule = cut_of(result, self.threshold, self.tolerance)
        try:
            found = path(result, self.points, cut=rule)
        except (ValueError, RuntimeError) as error:  # of a cut, say; what was trained is written
            weight = math.sqrt(self.low * self.high)
            told = {"weight": weight, "split": "val", "unmet": str(error), "networks": []}
            return _of(result, weight), {"path": told}
        best, said = found.best(), dict[str, Any]()
        asked = ((Bytes, self.bytes), (Milliseconds, self.milliseconds))
        budgets = [kind(most) for kind, most in asked if most is not None]
        if budgets:
            try:
                found, best = found.within(*budgets)
            except ValueError as error:  # which is raised when all is written
                said = {"unmet": str(error)}
        rows = [_row(point, "unmet" not in said and point.weight == best.weight) for point in found]
        if not budgets:
            ends = {found[0].weight: "low", found[-1].weight: "high"}
            if name := ends.get(best.weight):
                reason = f"The best network is that of {name}={best.weight:g}, the end of what was "
                end = f"{reason}trained: there may be a better one beyond. Set {name}=."
                said = {"warnings": [end]}
        told = {"weight": best.weight, "split": found.split, **said, "networks": rows}
        return _of(result, best.weight), {"path": told}

    def compared(self, fits: Sequence[Fit]) -> tuple[Fit, nn.Module]:
        whole: Any = mean_network(*require(fits[0], models.BayesianNetwork, self.name))
        if fits[0].structure is not None:
            whole = whole.at(whole.max_depth)
        return settled(fits[0]), whole

    def report(self, run: Finished) -> dict[str, Any]:
        """The networks along the path, and the report of all methods over weights on the one that
        was chosen."""
        chosen, found = run.fits[-1], dict(run.said)
        if chosen.structure is not None:
            found["depth"] = chosen.structure.to_json()
        learnt = [*_told(found["path"]), *map(told, chosen.structures)]
        if run.out is not None and "unmet" not in found["path"]:
            if chosen.structure is not None:
                draw_depth(chosen, run.out / "figures")
            if run.figures:
                _draw(chosen, found["path"], run.out / "figures")
        alone = [chosen, settled(chosen)]
        if "unmet" not in found["path"]:
            found |= super().report(replace(run, fits=alone))
            warned = [*found["path"].get("warnings", []), *found.get("warnings", [])]
            return {**found, "warnings": warned, "learnt": [*learnt, *found["learnt"]]}
        whole = count_parameters(self.compared(alone)[1])
        why = found["path"]["unmet"]
        learnt = [*learnt, uncut(f"Nothing was cut: {why}")]
        return {**found, "parameters": whole, "not_compressed": why, "learnt": learnt}


def _of(result: Fit, weight: float) -> Fit:
    """The fit of one weight, with the history of the training that all have in common."""
    found = result.at(weight)
    found.history = result.history
    return found


def _row(point: PathPoint, chosen: bool) -> dict[str, Any]:
    test = evaluate(point.fit, point.small.net)
    return {**point.to_json(), "chosen": chosen, "test": test}


def _told(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The networks along the weight of the KL, for ``learnt``: bytes are of the file, units those
    that are left of each layer, ms of 256 rows, scores of the test rows.
    """
    rows, networks = [], found["networks"]
    for one in networks:
        widths = [str(width) for width in one["widths"].values()]
        shown = widths if len(widths) <= 6 else [*widths[:3], "…", *widths[-2:]]
        row = {"λ": f"{one['weight']:.3g}", "": "chosen" if one["chosen"] else ""}
        row |= {"bytes": one["file_bytes"], "parameters": one["parameters"]}
        row |= {} if one["depth"] is None else {"blocks": one["depth"]}
        row |= {"units": "-".join(shown), "ms": f"{1e3 * one['seconds']:.2g}"}
        row |= {n: f"{one['test'][n]:.4f}" for n in ("accuracy", "rmse", "nll") if n in one["test"]}
        rows.append(row)
    if not rows:
        return []
    sizes = [one["file_bytes"] for one in networks]
    said = [
        f"{len(rows)} networks of {min(sizes):,} to {max(sizes):,} bytes were read off the fit."
    ]
    said += [
        f"Chosen is that of λ = {one['weight']:.3g}, with {one['file_bytes']:,} bytes."
        for one in networks
        if one["chosen"]
    ]
    return [{"title": _PATH, "sentences": said, "rows": rows}]


def _draw(chosen: Fit, found: Mapping[str, Any], folder: FilePath) -> None:
    """What the networks cost and leave by weight, and their trade of error for size."""
    networks = found["networks"]
    place = next(k for k, row in enumerate(networks) if row["chosen"])
    picture = weight_path(networks, place, found["split"])
    save_figure(picture, chosen.data, folder / "path")
    named = {round(k * (len(networks) - 1) / (_LABELS - 1)) for k in range(_LABELS)} | {place}
    labels = [f"{row['weight']:.2g}" if k in named else "" for k, row in enumerate(networks)]
    how = {"others": "other λ", "seconds": "seconds"}
    draw_trade(chosen, networks, labels, place, folder, **how)
