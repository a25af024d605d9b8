"""Tests of whether posterior probabilities of true values are uniform: no bias, the right width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from ..figures import CYCLE, GREY, INK, MARKERS, legend_above, new_figure, styled
from .finding import Finding, Verdict

Floats = NDArray[np.float64]

FLIPS = 4999
LEVEL = 0.05  # false-alarm rate of a verdict, over both tests and all quantities
SHOWN = 6  # lines in the figure


def symmetry(p: Floats, *, flips: int = FLIPS, seed: int = 0) -> tuple[Floats, Floats]:
    r"""A test that p and 1 - p have one distribution, for every column, and for all together.

    The statistic is the largest distance between the distribution functions of p and of 1 - p over
    the simulations, :math:`\max_u |F_n(u) - 1 + F_n((1 - u)^-)|`. With the simulations in the order
    of :math:`|p - ½|`, the greatest first, it is the largest distance from zero of the walk that
    the signs of p - ½ make, over n. If the distribution is symmetric, any simulation may as well
    have been mirrored: signs are flipped at random, those of all columns of a simulation together,
    for they depend on each other, and the largest statistic of all columns is compared with the
    largest after the flips.

    Arguments:
        p: ``(n, P)``, in [0, 1], rows independent.
        flips: random patterns of them.
        seed: of the patterns.

    Returns:
        the statistics ``(P,)`` and p-values ``(P,)``, family-wise over the columns: the chance
        that any is at most α, without bias, is at most α.

    References:
        Yao, Vehtari, Simpson, Gelman 2018, arXiv:1802.02538, for the symmetry; Westfall, Young
        1993, Resampling-based multiple testing, for the largest statistic.
    """
    rng = np.random.default_rng(seed)
    signs = rng.integers(0, 2, (flips, len(p)), dtype=np.int8) * np.int8(2) - np.int8(1)
    largest = np.zeros(flips)
    found = np.empty(p.shape[1])
    for column, values in enumerate(p.T):
        order = np.argsort(-np.abs(values - 0.5), kind="stable")
        own = np.sign(values - 0.5)[order].astype(np.int8)
        found[column] = np.abs(np.cumsum(own, dtype=np.int32)).max()
        walks = np.cumsum(signs[:, order] * own, axis=1, dtype=np.int32)
        np.maximum(largest, np.abs(walks).max(1), out=largest)
    above = (largest[:, None] >= found).sum(0)
    return found / len(p), (1.0 + above) / (1.0 + flips)


def dispersion(p: Floats) -> tuple[Floats, Floats]:
    """Test that the distances of p from ½ are those of a uniform p, for every column: the test of
    Kolmogorov and Smirnov on ``|2 p - 1|``.

    p is uniform if and only if it is symmetric and this is uniform. A posterior that is too narrow
    has distances that are too large, one that is too wide has small ones.

    Returns:
        the statistics ``(P,)`` and p-values ``(P,)``, each of its column alone (:func:`holm`).
    """
    folded = np.abs(2.0 * p - 1.0)
    from scipy import stats  # slow to import

    each = [stats.kstest(column, "uniform", method="exact") for column in folded.T]
    return np.array([t.statistic for t in each]), np.array([t.pvalue for t in each])


def holm(p_values: Floats) -> Floats:
    """p-values ``(P,)`` to family-wise ones, however they depend on each other.

    References:
        Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statistics 6.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    weights = len(p_values) - np.arange(len(p_values))
    adjusted = np.minimum(np.maximum.accumulate(p_values[order] * weights), 1.0)
    return adjusted[np.argsort(order)]


def detectable(simulations: int, columns: int) -> tuple[float, float, float]:
    """Faults that the two tests, each at ``LEVEL / 2`` over all columns, see half of the time:
    a normal posterior whose standard deviation is too small by a factor, too large by a factor, or
    whose mean is off, in standard deviations.

    That is where a wrong posterior moves the distribution function by the critical value. What no
    posterior reaches with so few simulations is 0 or infinite.
    """
    share = 0.5 * LEVEL / columns
    from scipy import optimize, stats  # slow to import

    critical = float(stats.kstwo.isf(share, simulations))

    def distance(log_factor: float) -> float:
        # Of |2 p - 1|: greatest where the densities of both normals are equal.
        c = math.exp(log_factor)
        w = 1.0 if c == 1.0 else math.sqrt(2.0 * log_factor / (c * c - 1.0))
        return abs(2.0 * float(ndtr(c * w) - ndtr(w))) - critical

    ends = [0.0, math.inf]
    for k, far in enumerate((-12.0, 12.0)):
        if distance(far) > 0.0:
            ends[k] = math.exp(float(optimize.brentq(distance, 0.0, far)))
    reach = float(-ndtri(share / 4)) / math.sqrt(simulations)  # of the largest of a walk
    shift = float(ndtri(0.5 + 0.5 * reach)) if reach < 1.0 else math.inf
    return ends[0], ends[1], shift


@dataclass(frozen=True)
class Calibration:
    """The places of true values in their posteriors, over simulations.

    Attributes:
        names: of the quantities.
        p: posterior probability of what is below the true value, ``(n, P)``.
        bias: family-wise p-values of the test of symmetry, ``(P,)``.
        width: family-wise p-values of the test of the distances from ½, ``(P,)``.
    """

    names: tuple[str, ...]
    p: Floats = field(repr=False)
    bias: Floats = field(repr=False)
    width: Floats = field(repr=False)

    @classmethod
    def of(cls, names: Sequence[str], p: Floats, seed: int = 0) -> Calibration:
        """Test the probabilities."""
        _, bias = symmetry(p, seed=seed)
        _, alone = dispersion(p)
        return cls(tuple(names), p, bias, holm(alone))

    @property
    def biased(self) -> list[int]:
        """Positions of the quantities whose posterior lies to one side of the truth."""
        return np.flatnonzero(self.bias <= 0.5 * LEVEL).tolist()

    @property
    def misjudged(self) -> list[int]:
        """Positions of those whose truths are too far from the middle of the posterior, or too
        near: it is too narrow, or too wide, or, where it is biased as well, perhaps only that."""
        return np.flatnonzero(self.width <= 0.5 * LEVEL).tolist()

    @property
    def verdict(self) -> Verdict:
        """``poor`` where a test rejects, which happens to an exact posterior with the chance
        0.05; else ``good``, or ``doubtful`` where a standard deviation of half its size would
        not have been seen."""
        if self.biased or self.misjudged:
            return "poor"
        count, quantities = self.p.shape
        return "good" if detectable(count, quantities)[0] > 0.5 else "doubtful"

    def finding(self) -> Finding:
        """The verdict in words, with the figure."""
        count, quantities = self.p.shape
        low, high, shift = detectable(count, quantities)
        folded = np.abs(2.0 * self.p - 1.0).mean(0)
        numbers: dict[str, Any] = {"simulations": count, "quantities": quantities, "level": LEVEL}
        each = {"bias": self.bias, "width": self.width, "mean_p": self.p.mean(0)}
        for name, values in (each | {"mean_distance": folded}).items():
            numbers[name] = dict(zip(self.names, values.tolist(), strict=True))
        numbers["detectable"] = {"narrow": low, "wide": high, "shift": shift}
        said = []
        for above, words in ((True, "too low"), (False, "too high")):
            if odd := [k for k in self.biased if (self.p[:, k].mean() > 0.5) == above]:
                said.append(f"The posterior of {self._named(odd)} is biased: {words}.")
        for narrow, words in ((True, "narrow"), (False, "wide")):
            rest = [k for k in self.misjudged if k not in self.biased]
            if odd := [k for k in rest if (folded[k] > 0.5) == narrow]:
                said.append(f"The posterior of {self._named(odd)} is too {words}.")
        if said:
            said.append(
                "Train longer; if that does not help, the family of the guide (or a max_scale=) "
                "is the limit: take another, or report less certainty."
            )
        else:
            said.append(
                f"In {count} simulations true values lie in their posteriors as they should. "
                f"Deviations below {low:.2f} or above {high:.2f} of the right ones, and means off "
                f"by {shift:.2f} of them, would have been seen more often than not."
            )
            if self.verdict == "doubtful":
                said.append("That is coarse: take more simulations.")
        return Finding("VSBC", self.verdict, " ".join(said), numbers, self.figure())

    def _named(self, positions: Sequence[int]) -> str:
        shown = ", ".join(self.names[k] for k in positions[:3])
        more = len(positions) - 3
        return f"{shown} and {more} more" if more > 0 else shown

    @styled
    def figure(self) -> Figure:
        """Distribution functions of p less those of a uniform one, with a band that at most
        5 % of the figures leave if all is well. Of many quantities those with the smallest
        p-values have colours.

        A line above the band on the left and below it on the right (too narrow), the reverse (too
        wide), or on one side of zero (biased).
        """
        fig = new_figure(3.2)
        ax = fig.subplots()
        count, quantities = self.p.shape
        from scipy import stats  # slow to import

        reach = float(stats.kstwo.isf(LEVEL / quantities, count))
        grid = np.linspace(0.0, 1.0, 201)
        up = np.minimum(reach, 1.0 - grid)
        down = np.maximum(-reach, -grid)
        ax.fill_between(grid, down, up, color=GREY, alpha=0.2, linewidth=0, label="band")
        worst = np.argsort(np.minimum(self.bias, self.width), kind="stable")
        for k in worst[SHOWN:]:
            ax.plot(grid, self._excess(k, grid), color=GREY, linewidth=0.6, alpha=0.6)
        labels = ["band"]
        for look, k in enumerate(worst[:SHOWN]):
            labels.append(self.names[k])
            ax.plot(
                grid, self._excess(k, grid), color=CYCLE[look], marker=MARKERS[look],
                markevery=(10 * look, 60), label=self.names[k],
            )  # fmt: skip
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.set(xlabel="p", ylabel="share of simulations below p, less p", xlim=(0.0, 1.0))
        legend_above(ax, labels)
        return fig

    def _excess(self, column: int, grid: Floats) -> Floats:
        ranked = np.sort(self.p[:, column])
        found: Floats = np.searchsorted(ranked, grid, side="right") / len(ranked) - grid
        return found
