"""The table and the figure of strangers: a method beside an ordinary training and its rivals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from pyroccam.inference.figures.style import CYCLE, GREY, INK, styled
from scipy import stats

from ...published.markdown import header, read_all, row

__all__ = ["difference", "draw", "read_cells", "relative", "signed_rank", "text_of", "verdict"]

Cell = dict[str, Any]

ERRORS = 2.0
"""Standard errors to both sides of a mean difference. Of three seeds 95 % would take 4.3 of them
(Student's t), of two 12.7: a mark says that the seeds agree, no more."""

FEW = 1 / 3
"""A network of which less is left has become small."""

LOST = 0.02
"""Nats of the validation rows that a rival may lose to the ordinary training."""

MEASURES = ("error", "NLL", "ECE")
_BY = ["half", "set", "network"]
_MARKS = {"win": " +", "loss": " -", "tie": "", "one seed": ""}

_NOTE = (
    "Ours is the network that is handed back, whose weights are numbers; what the posterior itself"
    " predicts is in the files, under `test`.\n\n"
    "`+` and `-`: the mean difference over two seeds or more is further from zero than two standard"
    " errors, which of so few seeds is less than 95 % sure. Cells that share a set are counted as"
    " independent by the test over cells."
)


def read_cells(out: Path, method: str) -> tuple[pd.DataFrame, list[str]]:
    """A row of each cell of which there are both files, and the names of those that failed."""
    rivals, ours = read_all(out / "rivals"), read_all(out / method)
    cells = [{**rivals[name], **ours[name]} for name in sorted(rivals.keys() & ours.keys())]
    cells.sort(key=lambda one: (one["half"] != "tuned", *(one[k] for k in _BY), one["seed"]))
    whole = [one for one in cells if "compressed" in one.get("ours", {})]
    failed = [f"{one['set']} {one['network']} {one['seed']}" for one in cells if one not in whole]
    return pd.DataFrame([_row(one) for one in whole]), failed


def _row(cell: Cell) -> Cell:
    """What is asked of a cell."""
    ours, ordinary = cell["ours"], cell["ordinary"]
    small = ours["compressed"]
    seconds = ours.get("ordinary_seconds", ordinary["seconds"])  # or those of another day
    found = {name: cell[name] for name in (*_BY, "seed", "rows")}
    for whose, test in (("", small["test"]), (" ordinary", ordinary["test"])):
        error = 1 - test["accuracy"] if "accuracy" in test else test["rmse"]
        scores = (error, test["nll"], test.get("ece", math.nan))
        found |= {f"{name}{whose}": v for name, v in zip(MEASURES, scores, strict=True)}
    rivals = {"by magnitude": _smallest(cell, "pruned"),
              "by channels": _smallest(cell, "structured")}  # fmt: skip
    known = [left for left in rivals.values() if not math.isnan(left)]
    return {
        **found,
        "ours": small["nonzero"] / small["parameters_before"],
        **rivals,
        "rivals": min(known, default=math.nan),
        "time": ours["seconds"] / seconds,
    }


def _smallest(cell: Cell, key: str) -> float:
    """The smallest share of the weights with which a rival is as good as the ordinary training; 1
    if it never is, and NaN if it was not tried, or its library cannot prune."""
    if key not in cell:
        return math.nan
    most = cell["ordinary"]["val_nll"] + LOST
    losses = [(one["val_nll"], one["left"]) for one in cell[key]]
    # The loss of a training that came to nothing is infinite, and null in the file.
    return min([1.0, *(left for loss, left in losses if loss is not None and loss <= most)])


def difference(seeds: pd.DataFrame, measure: str) -> tuple[float, float]:
    """The mean difference over seeds, ours minus the ordinary, and the half of its interval, two
    standard errors; of one seed that is infinite, as nothing is known."""
    found = seeds[measure] - seeds[f"{measure} ordinary"]
    half = ERRORS * found.sem() if len(found) > 1 else math.inf
    return float(found.mean(skipna=False)), float(half)


def verdict(mean: float, half: float) -> str:
    """``win`` or ``loss`` where the interval leaves out zero, or else ``tie``; none of one."""
    if math.isinf(half):
        return "one seed"
    return "tie" if abs(mean) <= half else "win" if mean < 0 else "loss"


def relative(ours: float, other: float) -> float:
    """A difference of errors without their unit, from -1 to 1, so that sets can be ranked."""
    return (ours - other) / (ours + other) if ours + other else 0.0


def signed_rank(differences: Iterable[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test; without any difference it is 1."""
    some = [one for one in differences if one]
    return float(stats.wilcoxon(some).pvalue) if some else 1.0


def text_of(found: pd.DataFrame, failed: list[str]) -> str:
    """The table in Markdown, a part for each half of the sets."""
    lines: list[str] = []
    for half, own in found.groupby("half", sort=False) if len(found) else ():
        cells = [(name, of) for name, of in own.groupby(["set", "network"], sort=False)]
        lines += [f"Sets of the half `{half}`, means over seeds:", "", *_rows(cells), ""]
        lines += [*_counts(cells), "", *_sums(own, cells), ""]
    lines += [f"Failed: {', '.join(failed)}.", ""] if failed else []
    lines += [_NOTE] if len(found) else []
    return "\n".join(lines).rstrip() + "\n"


Cells = list[tuple[Any, pd.DataFrame]]
"""Rows of all seeds, by set and network."""


def _rows(cells: Cells) -> Iterator[str]:
    yield from header(
        "set", "network", "rows", "seeds", "error: ordinary", "ours", "NLL: ordinary", "ours",
        "ECE: ordinary", "ours", "left, %", "by magnitude, %", "by channels, %", "time",
    )  # fmt: skip
    for names, of in cells:
        shown: list[object] = [*names, of["rows"].iloc[0], len(of)]
        for measure in MEASURES:
            ours, theirs = of[measure].mean(), of[f"{measure} ordinary"].mean()
            mark = _MARKS[verdict(*difference(of, measure))]
            shown += ["", ""] if math.isnan(ours) else [f"{theirs:.3f}", f"{ours:.3f}{mark}"]
        for left in ("ours", "by magnitude", "by channels"):
            share = of[left].mean()
            shown.append("" if math.isnan(share) else f"{100 * share:.1f}")
        yield row(*shown, f"{of.time.mean():.1f}")


def _counts(cells: Cells) -> Iterator[str]:
    words = ("win", "tie", "loss", "one seed")
    yield from header("measure", "wins", "ties", "losses", "one seed")
    for measure in MEASURES:
        known = [difference(of, measure) for _, of in cells]
        verdicts = Counter(verdict(*one) for one in known if not math.isnan(one[0]))
        yield row(measure, *(verdicts[word] for word in words))


def _sums(own: pd.DataFrame, cells: Cells) -> list[str]:
    """What is said of all cells together, a paragraph each."""
    means = own.groupby(["set", "network"], sort=False).mean(numeric_only=True)
    few = means[means.rivals < FEW]
    seeds = sorted(Counter(len(of) for _, of in cells).items())
    nll = [difference(of, "NLL")[0] for _, of in cells]
    errors = [relative(*pair) for pair in zip(means.error, means["error ordinary"], strict=True)]
    return [
        f"Cells by number of seeds: {', '.join(f'{count} of {n}' for n, count in seeds)}.",
        "",
        f"Pruning by magnitude, of weights or channels, leaves less than a third in {len(few)} "
        f"cells; in {(few.ours < FEW).sum()} of these ours does, too.",
        "",
        f"Time: median {median(means.time):.1f}, geometric mean {geometric_mean(means.time):.1f}.",
        "",
        f"Over cells, by the signed-rank test of Wilcoxon: {_pooled('NLL', nll)}; "
        f"{_pooled('error', errors)}.",
    ]


def _pooled(measure: str, differences: Iterable[float]) -> str:
    known = [d for d in differences if abs(d) > 1e-9]  # less is of the arithmetic
    lower, higher = sum(d < 0 for d in known), sum(d > 0 for d in known)
    return f"{measure} lower in {lower}, higher in {higher}, p = {signed_rank(known):.2g}"


_COLOURS = {"win": CYCLE[0], "tie": GREY, "loss": CYCLE[1], "one seed": GREY}

_LINEAR = 0.1
"""Nats of a difference up to which the scale is linear."""

_LOOKS: dict[str, dict[str, Any]] = {
    "by magnitude": {"marker": "x", "color": GREY},
    "by channels": {"marker": "^", "color": CYCLE[2], "markerfacecolor": "none"},
    "ours": {"marker": "o", "color": CYCLE[0]},
}


@styled
def draw(found: pd.DataFrame) -> Figure:
    """Differences of NLL with their intervals, those of one seed hollow, and shares left."""
    cells = [*found.groupby(_BY, sort=False)][::-1]
    figure = Figure(figsize=(9, 1.2 + 0.24 * len(cells)), layout="constrained")
    one, other = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for k, (_, of) in enumerate(cells):
        mean, half = difference(of, "NLL")
        colour, several = _COLOURS[verdict(mean, half)], len(of) > 1
        face = colour if several else "none"
        one.errorbar(mean, k, xerr=half if several else None, fmt="o", color=colour,
                     markerfacecolor=face, markersize=4)  # fmt: skip
    for name, look in _LOOKS.items():
        shares = [of[name].mean() for _, of in cells]
        other.plot(shares, range(len(cells)), linestyle="", markersize=5, label=name, **look)
    names = [f"{name}, {network}" for (_, name, network), _ in cells]
    one.set_yticks(range(len(names)), names)
    one.set_ylim(-0.8, len(names) - 0.2)
    tuned = sum(key[0] == "tuned" for key, _ in cells)
    said = ["hollow: one seed"] if any(len(of) == 1 for _, of in cells) else []
    if 0 < tuned < len(cells):
        said.insert(0, "above the line: tuned; below: kept aside")
        for axes in (one, other):
            axes.axhline(len(cells) - tuned - 0.5, color=INK, linewidth=0.8)
    one.axvline(0, color=INK, linewidth=0.8)
    if max(map(abs, one.get_xlim())) > _LINEAR:
        one.set_xscale("symlog", linthresh=_LINEAR)
    one.set_xlabel("NLL of the test rows, ours minus ordinary, nats")
    one.set_title("; ".join(said), fontsize="medium")
    other.set_xscale("log")
    other.xaxis.set_minor_formatter(NullFormatter())  # labels would overlap
    low, high = other.get_xlim()
    other.set_xlim(min(0.08, low), max(1.1, high))  # two ticks with a label, at least
    other.set_xlabel("share of the parameters left")
    # Above the axes, as a share may lie anywhere within.
    other.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize="small")
    return figure
