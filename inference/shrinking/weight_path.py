"""The networks of every weight λ of the KL (or of another number), out of one fit: what each
costs, and the choice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch

from ...data import Between, Options, Positive, PyroccamError, checked
from ...models import give
from ..cutting import count_parameters, multiply_adds, seconds_per_batch
from ..elbo import evidence
from ..files import Small
from ..posterior import evaluate_net, evaluate_outputs
from ..training import Fit
from .compression import compressed
from .options import Cut, Digits

if TYPE_CHECKING:
    from ipywidgets import Widget
    from matplotlib.figure import Figure

POINTS = 13
"""Weights of a path, if nobody says which."""

BISECTIONS = 4
"""Times that the interval in which a budget is met is halved, in logarithms."""

BATCH = 256
"""Rows in a pass that is timed, at most."""

BAND = (0.05, 0.95)
"""Quantiles of the loss over networks that are drawn from a posterior."""


@dataclass(frozen=True)
class Bytes(Options):
    """A budget: bytes that the file of a small network may have."""

    most: Positive

    def cost(self, point: PathPoint) -> float:
        return point.small.bytes


@dataclass(frozen=True)
class Milliseconds(Options):
    """A budget: time that a pass of at most 256 rows may take, here and now."""

    most: Positive

    def cost(self, point: PathPoint) -> float:
        return 1e3 * point.seconds


Budget = Bytes | Milliseconds


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
        small, small_scores: the small network, with few digits of its biases, too, and its metrics.
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
    small: Small = field(repr=False)
    small_scores: dict[str, float] = field(repr=False)
    multiply_adds: int
    seconds: float = math.nan

    @property
    def nll(self) -> float:
        """Of the small network, in nats of a row."""
        return self.small_scores["nll"]

    @property
    def parameters(self) -> int:
        return count_parameters(self.small.net)

    @property
    def widths(self) -> dict[str, int]:
        """Units, or channels, that are left of each layer that could be cut."""
        return {name: len(layer.outputs) for name, layer in self.small.report.layers.items()}

    @property
    def depth(self) -> int | None:
        """Blocks of a stack that are left; ``None`` where the depth is known."""
        return None if self.fit.structure is None else self.fit.structure.depth_chosen

    def to_json(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "scores": self.scores,
            "band": list(self.band),
            "elbo": self.elbo,
            "kl": self.kl,
            "small_scores": self.small_scores,
            "file_bytes": self.small.bytes,
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

    @checked
    def best(self, by: Literal["nll", "elbo"] = "nll") -> PathPoint:
        """The point whose small network predicts best, or whose bound on the evidence is the
        greatest."""
        if by == "elbo":
            return max(self.points, key=lambda point: point.elbo)
        return min(self.points, key=lambda point: point.nll)

    def within(self, *budgets: Budget) -> tuple[Path, PathPoint]:
        """The best small network that meets budgets.

        Of the points that meet them the one that predicts best is taken, and between it and its
        neighbours that do not, the weight of the KL is halved in, in logarithms, a few times.

        Arguments:
            budgets: ``Bytes``, ``Milliseconds`` or both.

        Returns:
            This path with the points between its own that were looked at, and the one of them.

        Raises:
            PyroccamError: for budgets that nothing on the path meets.

        Example:
            >>> from pyroccam import data, guides, inference, models
            >>> digits = data.load("digits")
            >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
            >>> model = models.BayesianNetwork(net, digits, prior=models.priors.LogUniform())
            >>> guide = guides.Conditional(guides.MeanField(model), low=0.1, high=10.0)
            >>> fit = inference.fit(model, guide, digits, epochs=2, progress=False)
            >>> path(fit, 3).within(Bytes(5_000))[1].small.bytes <= 5_000
            True
        """
        _refuse_unmet(self.points, budgets)
        points = {point.weight: point for point in self}
        for _ in range(BISECTIONS):
            best = _best(points.values(), budgets)
            order = sorted(points)
            at = order.index(best.weight)
            # A neighbour is worth a look where it is better, and not affordable.
            near = [points[order[k]] for k in (at - 1, at + 1) if 0 <= k < len(order)]
            better = [one for one in near if one.nll < best.nll and not _met(one, budgets)]
            if not better:
                break
            other = min(better, key=lambda point: point.nll)
            (between,) = self.measure([math.sqrt(best.weight * other.weight)])
            points[between.weight] = between
        whole = replace(self, points=tuple(points[weight] for weight in sorted(points)))
        return whole, _best(whole, budgets)

    def to_json(self) -> list[dict[str, Any]]:
        return [point.to_json() for point in self.points]

    def figure(self, chosen: PathPoint | None = None) -> Figure:
        """Loss with its band, bytes of the file and widths of layers over λ, with one of the points
        marked: by default the best."""
        from ..figures import weight_path  # imports matplotlib

        marked = self.best() if chosen is None else chosen
        return weight_path(self.to_json(), self.points.index(marked), self.split, self.over)

    def knob(self) -> Widget:
        """A slider over the weights for a notebook: the figure with the point marked, and what is
        left there. ``knob.point`` is the point that is chosen.

        Raises:
            ModuleNotFoundError: without ipywidgets.
        """
        from .slider import Knob

        return Knob(self)


@checked
def path(
    fit: Fit[Any, Any],
    weights: Annotated[int, Between(2)] | Sequence[float] = POINTS,
    *,
    draws: Annotated[int, Between(2)] = 20,
    cut: Cut | None = None,
) -> Path:
    """Read the posterior of every weight of the KL off one fit: how well it predicts, what it
    costs, and the small network that it leaves.

    Each network is cut and rounded by :func:`~pyroccam.inference.shrink`, with as few digits of its
    biases as move the loss of the rows by 0.001 nats at most, and timed, all in turn. Nothing is
    trained.

    Arguments:
        fit: of a :class:`~pyroccam.guides.Conditional` guide.
        weights: λ of the points, or how many, equally spaced in their logarithms over the range
            that was trained.
        draws: of networks, by which predictions are averaged, and of which the band is.
        cut: see :func:`~pyroccam.inference.shrink`.

    Returns:
        The points in the order of λ.

    Raises:
        PyroccamError: for a fit whose guide has one posterior, or of random structure, no weights,
            or one outside of the range.

    References:
        Grebenkova, Bakhteev, Strijov, ICAART 2023, of networks by λ out of one training.
    """
    if fit.guide.traits.variable is None:
        fit.guide.condition(1.0)  # which says so
    if fit.guide.edges and fit.structure is None:
        raise PyroccamError("A path of a fit of random structure", "one of weights or depth")
    chosen = _weights(fit.guide, weights)
    for weight in chosen:
        fit.guide.condition(weight)
    rows = "val" if len(fit.data.x_val) else "train"
    measure = partial(_points, fit, rows, draws, cut)
    return Path(measure(chosen), rows, fit.guide.traits.variable, measure)


def _points(
    fit: Fit[Any, Any], split: str, draws: int, cut: Cut | None, weights: Sequence[float]
) -> tuple[PathPoint, ...]:
    """Points, with the time of a batch, all in turn."""
    points = [_measured(fit.at(weight), weight, split, draws, cut) for weight in weights]
    nets = {
        str(k): partial(give, point.small.net.to(fit.data.device), fields=fit.data.fields)
        for k, point in enumerate(points)
    }
    found = seconds_per_batch(nets, fit.data.x_test[:BATCH])
    return tuple(replace(point, seconds=found[str(k)]) for k, point in enumerate(points))


def _met(point: PathPoint, budgets: Sequence[Budget]) -> bool:
    return all(one.cost(point) <= one.most for one in budgets)


def _best(points: Iterable[PathPoint], budgets: Sequence[Budget]) -> PathPoint:
    """Of the points that meet budgets the one that predicts best."""
    return min((p for p in points if _met(p, budgets)), key=lambda point: point.nll)


def _refuse_unmet(points: Sequence[PathPoint], budgets: Sequence[Budget]) -> None:
    if any(_met(point, budgets) for point in points):
        return
    least = []
    for one in budgets:
        cost, weight = min((one.cost(point), point.weight) for point in points)
        least.append(f"{one} (the least is {cost:.4g}, at λ = {weight:.3g})")
    raise PyroccamError(
        f"No network on the path from λ = {points[0].weight:g} to {points[-1].weight:g} meets "
        f"{' and '.join(least)}"
    )


def _weights(guide: Any, asked: Sequence[float] | int) -> list[float]:
    if isinstance(asked, Sequence):
        if not asked:
            raise PyroccamError("No weights of a path")
        return sorted(map(float, asked))
    low, high = math.log(guide.low), math.log(guide.high)
    inner = [math.exp(low + k * (high - low) / (asked - 1)) for k in range(1, asked - 1)]
    return [guide.low, *inner, guide.high]


def _measured(
    one: Fit[Any, Any], weight: float, split: str, draws: int, cut: Cut | None
) -> PathPoint:
    """All of a point but the time of a batch."""
    y = one.data.split(split)[1]
    outputs = one.outputs(one.data.split(split)[0], draws=draws)
    shares = outputs.new_full((len(outputs),), 1.0 / len(outputs))
    how = (one.model.likelihood, y, one.data.y_std)
    alone = [evaluate_outputs(part[None], shares.new_ones(1), *how)["nll"] for part in outputs]
    quantiles = torch.tensor(alone, dtype=torch.float64).quantile(torch.tensor(BAND).double())
    bound = evidence(one.model, one.guide, one.data, passes=2)
    with warnings.catch_warnings():  # which the small network keeps
        warnings.filterwarnings("ignore", "The cut by", UserWarning)
        small = compressed(one, cut, Digits(rest=True))
    net = small.net.to(one.data.device)
    return PathPoint(
        weight,
        one,
        evaluate_outputs(outputs, shares, *how),
        (float(quantiles[0]), float(quantiles[1])),
        bound.elbo,
        bound.kl,
        small,
        evaluate_net(net, one.model, one.data, split),
        # Of two rows: a normalisation without statistics cannot take one.
        multiply_adds(net, one.data.x_test[:2], one.data.fields) // 2,
    )
