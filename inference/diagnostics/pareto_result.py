"""Verdicts by Pareto k̂ on a posterior: one for each block, and a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from ..figures import CYCLE, INK, MARKERS, legend_above, new_figure, styled
from .finding import WORST_FIRST, Finding, Verdict, finite, verdict_of

GOOD = 0.5  # k̂ below which the variance of the ratios is finite
TV_GOOD, TV_DOUBTFUL = 0.1, 0.3
NOISE_MOST = 0.5  # nats, of log ratios of a subset of the rows
MANY = 100  # numbers of a block, from which on a slight error of each makes a large k-hat


@dataclass(frozen=True)
class KhatBlock:
    """The k̂ of one block of latents.

    Attributes:
        name: of the block.
        sites: in it.
        dimension: numbers in it; of what is discrete, values that it can have.
        khat, error: and its standard error; ``None`` where there is none.
        share: of the draws that is effective in importance sampling from q to the posterior.
        limit: up to which k̂ is usable, by the number of draws.
        total_variation: of what is discrete, between q and the full conditional.
        noise: standard deviation of the log ratios that comes of taking few rows, in nats.
        rows: that were taken, where not all.
        refused: why there is no answer.
    """

    name: str
    sites: tuple[str, ...]
    dimension: int
    khat: float | None = None
    error: float | None = None
    share: float | None = None
    limit: float | None = None
    total_variation: float | None = None
    noise: float = 0.0
    rows: int | None = None
    refused: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict by k̂: ``good`` below 0.5, ``doubtful`` up to the limit (0.7 of many draws),
        then ``poor``, or ``doubtful`` of 100 numbers or more, of which slight errors suffice; by
        the total variation, up to 0.1, 0.3 and beyond. Of a subset of the rows never ``good``."""
        if self.refused is not None:
            return "refused"
        if self.total_variation is not None:
            bounds, value = (TV_GOOD, TV_DOUBTFUL), self.total_variation
        else:
            assert self.khat is not None
            assert self.limit is not None
            bounds, value = (min(GOOD, self.limit), self.limit), self.khat
        found = verdict_of(value, *bounds)
        if found == "poor" and self.khat is not None and self.dimension >= MANY:
            return "doubtful"
        return "doubtful" if found == "good" and self.rows is not None else found

    def finding(self) -> Finding:
        """The verdict in words."""
        name = f"k-hat of {self.name}" if self.total_variation is None else f"q of {self.name}"
        numbers: dict[str, Any] = {"dimension": self.dimension, "sites": list(self.sites)}
        for key in ("khat", "error", "share", "limit", "total_variation", "rows"):
            value = getattr(self, key)
            if value is not None:
                numbers[key] = finite(value)
        if self.refused is not None:
            return Finding(name, "refused", self.refused, numbers)
        return Finding(name, self.verdict, " ".join(self._sentences()), numbers)

    def _sentences(self) -> list[str]:
        found = []
        if self.total_variation is not None:
            found.append(
                f"Of {self.dimension} values, q is off by {self.total_variation:.2f} in total "
                f"variation; {100 * (self.share or 0.0):.0f} % of its draws would count."
            )
            if self.verdict != "good":
                found.append("Train q longer, or with a larger guide_lr.")
        else:
            found.append(f"k-hat is {self.khat:.2f} ± {self.error:.2f} (limit {self.limit:.2f}).")
            found.append(
                f"In {self.dimension:,} dimensions a slight error of each is enough for that: its "
                "draws cannot be weighted to those of the posterior, and more it does not say."
                if self.verdict == "doubtful" and (self.khat or 0.0) > (self.limit or 0.0)
                else {
                    "good": "q is a good proposal for the posterior here.",
                    "doubtful": "q is usable here, and its tails are too light.",
                    "poor": "q is too narrow here, or in the wrong place: its spread understates "
                    "what is not known. Train longer, lift max_scale=, or take another guide.",
                }[self.verdict]
            )
        if self.rows is not None:
            found.append(
                f"Only {self.rows} rows were taken, scaled up: that is the posterior of other "
                f"data, by {self.noise:.2f} nats; rows=None tells."
            )
        return found


@dataclass(frozen=True)
class Khat:
    """The k̂ of all blocks that were looked at.

    Attributes:
        blocks: in the order of the model.
        draws: S of each.
    """

    blocks: tuple[KhatBlock, ...]
    draws: int

    def findings(self) -> list[Finding]:
        """One for each block."""
        return [block.finding() for block in self.blocks]

    def finding(self) -> Finding:
        """The worst verdict of a block; ``refused`` if all are."""
        each = self.findings()
        verdict = min((one.verdict for one in each), key=WORST_FIRST.index)
        concerned = [one for one in each if one.verdict == verdict]
        text = f"{concerned[0].name[0].upper()}{concerned[0].name[1:]}: {concerned[0].text}"
        if len(each) > 1:
            counts = [(v, sum(one.verdict == v for one in each)) for v in WORST_FIRST]
            parts = ", ".join(f"{count} {v}" for v, count in counts if count)
            text = f"Of {len(each)} blocks, {parts}. {text}"
        pairs = zip(self.blocks, each, strict=True)
        numbers = {"draws": self.draws, "blocks": {b.name: f.numbers for b, f in pairs}}
        figure = None if verdict == "refused" else self.figure()
        return Finding("k-hat", verdict, text, numbers, figure)

    @styled
    def figure(self) -> Figure:
        """k̂ of every block that has one, with two standard errors; discrete blocks by their total
        variation, hollow."""
        shown = [block for block in self.blocks if block.refused is None]
        fig = new_figure(1.1 + 0.24 * len(shown))
        ax = fig.subplots()
        for place, block in enumerate(reversed(shown)):
            if block.total_variation is not None:
                ax.plot(
                    block.total_variation, place, MARKERS[1], color=CYCLE[1],
                    markerfacecolor="white", label="total variation",
                )  # fmt: skip
                continue
            k, error = min(block.khat or 0.0, 3.0), block.error or 0.0
            ax.errorbar(
                k, place, xerr=2 * error, color=CYCLE[0], marker=MARKERS[0], capsize=2.0,
                linestyle="", label="k-hat",
            )  # fmt: skip
        limits = [block.limit for block in shown if block.limit is not None]
        for limit in sorted({GOOD, *limits}) if limits else []:
            ax.axvline(limit, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.set_yticks(range(len(shown)), [block.name for block in reversed(shown)])
        ax.set(xlabel="k-hat", ylim=(-0.6, len(shown) - 0.4))
        ax.grid(False)
        legend_above(ax, ["k-hat", "total variation"])
        return fig
