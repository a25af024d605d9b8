"""The networks of every weight λ of the KL (or of another number), out of one fit: what each
costs, and the choice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch
from matplotlib.figure import Figure
from torch import nn

from ...data.errors import PyroccamError
from ...models.checks import as_number, one_of, whole
from ...models.plain.description import DescriptionError
from ..cutting.cost import count_parameters, multiply_adds, seconds_per_batch
from ..elbo.full_data import evidence
from ..figures.sizes import weight_path
from ..fits.result import Fit
from ..packing import PackedSize, write
from ..packing.quantise import Bits, quantised
from ..packing.rest import rest_bits
from ..posterior.predict import evaluate_net, evaluate_outputs, validated
from ..pruning.compression import Compressed, compress
from ..pruning.thresholds import TOLERANCE, Threshold, check_threshold

if TYPE_CHECKING:
    from ipywidgets import Widget

__all__ = ["Path", "PathPoint", "path", "path_figure", "within"]

POINTS = 13
"""Weights of a path, if nobody says which."""

BISECTIONS = 4
"""Times that the interval in which a budget is met is halved, in logarithms."""

BATCH = 256
"""Rows in a pass that is timed, at most."""

BAND = (0.05, 0.95)
"""Quantiles of the loss over networks that are drawn from a posterior."""


@dataclass(frozen=True)
class PathPoint:
    """The posterior of one weight of the KL, and the small network that it leaves.

    Attributes:
        weight: λ, the weight of the KL or the number that the guide is conditional on.
        fit: of this weight, with an ordinary guide.
        scores: metrics of the fit, on the rows of the path.
        band: quantiles, of 0.05 and 0.95, of the negative log-likelihood of one network that is
            drawn from the posterior, in nats.
        elbo: of the training rows, at the full weight of the KL, in nats; of points and improper
            priors no bound. Of a path over that weight it is the greatest near 1, for which it is
            the objective; of one over a number of the prior it is that of the prior with it.
        kl: of the posterior, in nats; of an improper prior up to a constant.
        small: the compressed network.
        rest: significand bits of what it holds beside its weights, by name.
        small_scores: metrics of the network in its file, on the rows of the path.
        file_bytes: of that file.
        multiply_adds: of one row.
        seconds: of a batch of at most 256 rows, measured in turn with the other points that were
            asked for.
    """

    weight: float
    fit: Fit[Any, Any] = field(repr=False)
    scores: dict[str, float] = field(repr=False)
    band: tuple[float, float] = field(repr=False)
    elbo: float
    kl: float
    small: Compressed = field(repr=False)
    rest: dict[str, Bits] = field(repr=False)
    small_scores: dict[str, float] = field(repr=False)
    file_bytes: int
    multiply_adds: int
    seconds: float = math.nan

    @property
    def net(self) -> nn.Module:
        """The network in the file."""
        return quantised(self.small.net, self.rest)

    @property
    def nll(self) -> float:
        """Of the small network, in nats of a row."""
        return self.small_scores["nll"]

    @property
    def parameters(self) -> int:
        """Of the small network."""
        return count_parameters(self.small.net)

    @property
    def widths(self) -> dict[str, int]:
        """Units, or channels, that are left of each layer that could be cut."""
        return {name: len(layer.outputs) for name, layer in self.small.report.layers.items()}

    @property
    def depth(self) -> int | None:
        """Blocks of a stack that are left; ``None`` where the depth is known."""
        return None if self.fit.structure is None else self.fit.structure.blocks_left

    def write(self, file: str | FilePath) -> PackedSize:
        """Write the small network into the file whose bytes were counted; without its description
        where a module of it has none, and :func:`~pyroccam.inference.packing.read` then needs the
        ``net`` as its ``skeleton``."""
        return _packed(self.small.net, file, self.rest)

    def to_json(self) -> dict[str, Any]:
        """The numbers, for a result file."""
        return {
            "weight": self.weight,
            "scores": self.scores,
            "band": list(self.band),
            "elbo": self.elbo,
            "kl": self.kl,
            "small_scores": self.small_scores,
            "file_bytes": self.file_bytes,
            "parameters": self.parameters,
            "depth": self.depth,
            "widths": self.widths,
            "multiply_adds": self.multiply_adds,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Path(Sequence[PathPoint]):
    """Posteriors and small networks by the weight of the KL, from the least weight to the largest.

    Attributes:
        points: of the path.
        split: whose rows were predicted, ``val``, or ``train`` where there are no others.
        over: what λ is, ``kl_weight`` or a number of the model by its path.
        measure: points of other weights, in the same way.
    """

    points: tuple[PathPoint, ...]
    split: str
    over: str
    measure: Callable[[Sequence[float]], tuple[PathPoint, ...]] = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: Any) -> Any:
        return self.points[index]

    def best(self, by: Literal["nll", "elbo"] = "nll") -> PathPoint:
        """The point whose small network predicts best, or whose bound is the greatest.

        Arguments:
            by: ``nll``, the negative log-likelihood of the rows of the path; ``elbo``, the bound on
                the evidence of the training rows. For a budget see
                :func:`~pyroccam.inference.within`.
        """
        one_of("by", by, ("nll", "elbo"))
        if by == "elbo":
            return max(self.points, key=lambda point: point.elbo)
        return min(self.points, key=lambda point: point.nll)

    def within(
        self, *, bytes: float | None = None, milliseconds: float | None = None
    ) -> tuple[Path, PathPoint]:
        """The best small network that meets a budget, see :func:`~pyroccam.inference.within`.

        Arguments:
            bytes: that the packed file may have.
            milliseconds: that a pass of at most 256 rows may take.

        Returns:
            This path with the points between its own that were looked at, and the one of them.

        Raises:
            PyroccamError: for no budget, one that is not positive, or one that nothing on the path
                meets.
        """
        budget = _Budget(bytes, milliseconds)
        budget.refuse_unmet(self.points)
        points = {point.weight: point for point in self}
        for _ in range(BISECTIONS):
            best = budget.best(points.values())
            order = sorted(points)
            at = order.index(best.weight)
            # A neighbour is worth a look where it is better, and not affordable.
            near = [points[order[k]] for k in (at - 1, at + 1) if 0 <= k < len(order)]
            better = [one for one in near if one.nll < best.nll and not budget.met(one)]
            if not better:
                break
            other = min(better, key=lambda point: point.nll)
            (between,) = self.measure([math.sqrt(best.weight * other.weight)])
            points[between.weight] = between
        whole = replace(self, points=tuple(points[weight] for weight in sorted(points)))
        return whole, budget.best(whole)

    def to_json(self) -> list[dict[str, Any]]:
        """The numbers of all points, for a result file."""
        return [point.to_json() for point in self.points]

    def figure(self, chosen: PathPoint | None = None) -> Figure:
        """Loss with its band, bytes of the file and widths of layers over λ, with one of the points
        marked: by default the best."""
        marked = self.best() if chosen is None else chosen
        return path_figure(self.to_json(), self.points.index(marked), self.split, self.over)

    def knob(self) -> Widget:
        """A slider over the weights for a notebook: the figure with the point marked, and what is
        left there. ``knob.point`` is the point that is chosen.

        Raises:
            ModuleNotFoundError: without ipywidgets.
        """
        try:
            from .knob import Knob
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "The knob is a widget of ipywidgets, which is not installed.\n"
                "Run pip install ipywidgets, or take the figure of the path."
            ) from error
        return Knob(self)


def path_figure(
    rows: Sequence[Mapping[str, Any]], chosen: int, split: str, over: str = "kl_weight"
) -> Figure:
    """The figure of a path by its numbers, such as those in a result file.

    Arguments:
        rows: of :meth:`Path.to_json`.
        chosen: position of the point that is marked.
        split, over: of the path.
    """
    layers = dict.fromkeys(name for row in rows for name in row["widths"])
    return weight_path(
        [row["weight"] for row in rows],
        [row["scores"]["nll"] for row in rows],
        [row["band"] for row in rows],
        [row["small_scores"]["nll"] for row in rows],
        [row["file_bytes"] for row in rows],
        {name: [row["widths"].get(name, 0) for row in rows] for name in layers},
        chosen,
        depths=[row["depth"] for row in rows if row["depth"] is not None],
        rows={"val": "validation", "train": "training"}.get(split, split),
        **({} if over == "kl_weight" else {"label": over}),
    )


def path(
    fit: Fit[Any, Any],
    weights: Sequence[float] | int = POINTS,
    *,
    split: str | None = None,
    draws: int = 20,
    threshold: Threshold | None = None,
    tolerance: float | None = None,
) -> Path:
    """Read the posterior of every weight of the KL off one fit: how well it predicts, what it
    costs, and the small network that it leaves.

    Each network is cut and rounded by :func:`~pyroccam.inference.compress`, packed, with as few
    digits of its biases as move the loss of the rows by 0.001 nats at most, and timed, all in turn.
    Nothing is trained.

    Arguments:
        fit: of a :class:`~pyroccam.guides.Conditional` guide.
        weights: λ of the points, or how many, equally spaced in their logarithms over the range
            that was trained.
        split: whose rows are predicted; those of validation if there are some, or else those of
            training.
        draws: of networks, by which predictions are averaged, and of which the band is.
        threshold, tolerance: of the cut, see :func:`~pyroccam.inference.compress`.

    Returns:
        The points in the order of λ.

    Raises:
        PyroccamError: for a fit whose guide has one posterior.
        ValueError: for fewer than two draws, no weights, or one outside of the range.

    References:
        Grebenkova, Bakhteev, Strijov, ICAART 2023, of networks by λ out of one training.
    """
    chosen, rows = _checked(fit, weights, split, draws, threshold, tolerance)
    measure = partial(_points, fit, (rows, draws, threshold, tolerance))
    return Path(measure(chosen), rows, fit.guide.traits.variable, measure)


def _points(
    fit: Fit[Any, Any], how: tuple[Any, ...], weights: Sequence[float]
) -> tuple[PathPoint, ...]:
    return _timed([_measured(fit.at(weight), weight, *how) for weight in weights])


def within(
    fit: Fit[Any, Any],
    *,
    bytes: float | None = None,
    milliseconds: float | None = None,
    weights: Sequence[float] | int = POINTS,
    split: str | None = None,
    draws: int = 20,
    threshold: Threshold | None = None,
    tolerance: float | None = None,
) -> PathPoint:
    """The best small network on the path of a fit that meets a budget.

    Of the points that meet it the one that predicts best is taken, and between it and its
    neighbours that do not, the weight of the KL is halved in, in logarithms, a few times.

    Arguments:
        fit, weights, split, draws, threshold, tolerance: see :func:`path`.
        bytes: that the packed file may have.
        milliseconds: that a pass of at most 256 rows may take, measured here and now.

    Returns:
        The point: its ``fit``, its ``small`` network, and ``write`` for the file.

    Raises:
        PyroccamError: for a fit whose guide has one posterior.
        ValueError: for no budget, one that is not positive, or one that nothing on the path meets.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> digits = data.load("digits")
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.LogUniform())
        >>> guide = guides.Conditional(guides.MeanField(model), low=0.1, high=10.0)
        >>> fit = inference.fit(model, guide, digits, epochs=2, progress=False)
        >>> inference.within(fit, bytes=5_000, weights=3).file_bytes <= 5_000
        True
    """
    _Budget(bytes, milliseconds)  # which is checked before anything is measured
    how: dict[str, Any] = {"split": split, "draws": draws, "tolerance": tolerance}
    whole = path(fit, weights, threshold=threshold, **how)
    return whole.within(bytes=bytes, milliseconds=milliseconds)[1]


@dataclass(frozen=True)
class _Budget:
    """What a small network may cost."""

    bytes: float | None
    milliseconds: float | None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            raise PyroccamError(
                "A path got no budget.\nGive bytes=, milliseconds= or both; for the network that "
                "predicts best, inference.path(fit).best()."
            )
        for name, value in given.items():
            if not 0 < as_number(value) < math.inf:
                raise PyroccamError(
                    f"A budget got {name}={value!r}.\nGive a positive, finite number."
                )

    def met(self, point: PathPoint) -> bool:
        return all(costs <= limit for costs, limit in self._costs(point).values())

    def best(self, points: Iterable[PathPoint]) -> PathPoint:
        """Of the points that meet it the one that predicts best."""
        return min(filter(self.met, points), key=lambda point: point.nll)

    def refuse_unmet(self, points: Sequence[PathPoint]) -> None:
        """Refuse a path on which no network meets it."""
        if any(map(self.met, points)):
            return
        least = []
        for name in self._costs(points[0]):
            costs = [(*self._costs(point)[name], point.weight) for point in points]
            cost, limit, weight = min(costs)
            least.append(f"{name}={limit:g} (the least is {cost:.4g}, at λ = {weight:.3g})")
        raise PyroccamError(
            f"No network on the path from λ = {points[0].weight:g} to {points[-1].weight:g} meets "
            f"{' and '.join(least)}.\nGive a larger budget, or train guides.Conditional over a "
            "wider range (low=, high=)."
        )

    def _costs(self, point: PathPoint) -> dict[str, tuple[float, float]]:
        """What a point costs, and may cost, by what was asked for."""
        costs = {"bytes": float(point.file_bytes), "milliseconds": 1e3 * point.seconds}
        limits = vars(self)
        return {n: (cost, limits[n]) for n, cost in costs.items() if limits[n] is not None}


def _checked(
    fit: Fit[Any, Any],
    weights: Sequence[float] | int,
    split: str | None,
    draws: int,
    threshold: Threshold | None,
    tolerance: float | None,
) -> tuple[list[float], str]:
    """λ in rising order, and the rows; what cannot be is refused before anything is computed."""
    if not hasattr(fit, "guide"):
        raise PyroccamError(
            f"A path is of one fit, as inference.fit gives it, got {type(fit).__name__}.\n"
            "Of repeats give one, such as repeats.fits[0]."
        )
    if fit.guide.traits.variable is None:
        fit.guide.condition(1.0)  # which says so
    if fit.guide.edges and fit.structure is None:
        raise PyroccamError(
            f"A path has cut networks, but structure is random here (site {fit.guide.edges[0]!r})."
            "\nTake inference.discretise(fit.at(weight)) for the weights that you want."
        )
    whole("draws", draws, 2)
    check_threshold(threshold, tolerance)
    chosen = _weights(fit.guide, weights)
    for weight in chosen:
        fit.guide.condition(weight)
    rows = split if split is not None else "val" if len(fit.data.x_val) else "train"
    if not len(fit.data.split(rows)[0]):
        raise PyroccamError(
            f"The data set has no rows to predict in split={rows!r}.\nGive another split."
        )
    return chosen, rows


def _weights(guide: Any, asked: Sequence[float] | int) -> list[float]:
    if isinstance(asked, Integral) and not isinstance(asked, bool):
        count = whole("weights", int(asked), 2)
        low, high = math.log(guide.low), math.log(guide.high)
        inner = [math.exp(low + k * (high - low) / (count - 1)) for k in range(1, count - 1)]
        return [guide.low, *inner, guide.high]
    if not isinstance(asked, Iterable) or not (given := list(asked)):
        raise PyroccamError(
            f"weights: got {asked!r}.\nGive some of the range that was trained, or how many of it."
        )
    return sorted(map(as_number, given))


def _measured(
    one: Fit[Any, Any],
    weight: float,
    split: str,
    draws: int,
    threshold: Threshold | None,
    tolerance: float | None,
) -> PathPoint:
    """All of a point but the time of a batch."""
    y = one.data.split(split)[1]
    outputs = one.outputs(one.data.split(split)[0], draws=draws)
    shares = outputs.new_full((len(outputs),), 1.0 / len(outputs))
    how = (one.model.likelihood, y, one.data.y_std)
    alone = [evaluate_outputs(part[None], shares.new_ones(1), *how)["nll"] for part in outputs]
    quantiles = torch.tensor(alone, dtype=torch.float64).quantile(torch.tensor(BAND).double())
    bound = evidence(one.model, one.guide, one.data, passes=2)
    with warnings.catch_warnings():  # which the compressed network keeps
        warnings.filterwarnings("ignore", "The cut by threshold", UserWarning)
        small = compress(one, threshold=threshold, tolerance=tolerance)
    net = small.net.to(one.data.x_test.device)

    def scores(net: nn.Module, split: str) -> dict[str, float]:
        likelihood = validated(one.model.likelihood, net, one.data)
        return evaluate_net(net, one.model, one.data, split, likelihood=likelihood)

    judged = "val" if len(one.data.x_val) else split
    rest = rest_bits(net, lambda net: scores(net, judged)["nll"], TOLERANCE)
    with TemporaryDirectory() as scratch:
        written = _packed(net, FilePath(scratch) / "small.pocc", rest)
    return PathPoint(
        weight,
        one,
        evaluate_outputs(outputs, shares, *how),
        (float(quantiles[0]), float(quantiles[1])),
        bound.elbo,
        bound.kl,
        small,
        rest,
        scores(quantised(net, rest), split),
        written.total,
        # Of two rows: a normalisation without statistics cannot take one.
        multiply_adds(net, one.data.x_test[:2], one.data.fields) // 2,
    )


def _packed(net: nn.Module, file: str | FilePath, rest: Mapping[str, Bits]) -> PackedSize:
    try:
        return write(net, file, bits=rest)
    except DescriptionError:  # of a module that has no words
        return write(net, file, bits=rest, describe_net=False)


def _timed(points: Sequence[PathPoint]) -> tuple[PathPoint, ...]:
    """The points with the time of a batch, all in turn."""
    nets = {str(k): point.small.net for k, point in enumerate(points)}
    data = points[0].fit.data
    found = seconds_per_batch(nets, data.x_test[:BATCH], fields=data.fields)
    return tuple(replace(point, seconds=found[str(k)]) for k, point in enumerate(points))
