"""The table of strangers: ours beside an ordinary training and its rivals, cell by cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

from pyroccam.inference.storage.whole import write_whole

from ...published.markdown import header, read_all, row
from .differences import (
    FEW,
    MEASURES,
    Verdict,
    intervals,
    left_by_channels,
    left_by_magnitude,
    left_by_ours,
    left_by_rivals,
    over_seeds,
    relative,
    signed_rank,
)
from .figure import draw

__all__ = ["read_cells", "write_table"]

Cell = dict[str, Any]
Cells = dict[tuple[str, str, str], list[Cell]]
"""Cells of all seeds by half, set and network."""

_MARKS = {"win": " +", "loss": " -", "tie": "", "one seed": ""}

_NOTE = (
    "Ours is the network that is handed back, whose weights are numbers; what the posterior itself"
    " predicts is in the files, under `test`.\n\n"
    "`+` and `-`: the mean difference over two seeds or more is further from zero than two standard"
    " errors, which of so few seeds is less than 95 % sure. Cells that share a set are counted as"
    " independent by the test over cells."
)


def read_cells(out: Path, method: str) -> Cells:
    """The rivals' parts and the method's, joined; a cell that lacks one of them is left out."""
    rivals, ours = read_all(out / "rivals"), read_all(out / method)
    found: Cells = {}
    for name in sorted(rivals.keys() & ours.keys()):
        cell = {**rivals[name], **ours[name]}
        found.setdefault((cell["half"], cell["set"], cell["network"]), []).append(cell)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "tuned", item[0])))


def write_table(out: Path, method: str) -> None:
    """Write ``<method>.md`` and ``<method>.png`` of the cells in ``rivals/`` and ``<method>/``."""
    cells = read_cells(out, method)
    whole = {key: good for key, of in cells.items() if (good := [c for c in of if _ended(c)])}
    lines = []
    for half in ("tuned", "kept"):
        if own := {key: of for key, of in whole.items() if key[0] == half}:
            lines += [f"Sets of the half `{half}`, means over seeds:", "", *_rows(own), ""]
            lines += [*_counts(own), "", *_sums(own), ""]
    failed = [
        f"{name} {network} {cell['seed']}"
        for (_, name, network), of in cells.items()
        for cell in of
        if not _ended(cell)
    ]
    lines += [f"Failed: {', '.join(failed)}.", ""] if failed else []
    lines += [_NOTE] if whole else []
    text = "\n".join(lines).rstrip() + "\n"
    write_whole(out / f"{method}.md", lambda file: file.write(text), "w")
    draw(whole, out / f"{method}.png")


def _ended(cell: Cell) -> bool:
    """Whether the cell ended with a network."""
    return "compressed" in cell.get("ours", {})


def _rows(cells: Cells) -> list[str]:
    lines = header(
        "set", "network", "rows", "seeds", "error: ordinary", "ours", "NLL: ordinary", "ours",
        "ECE: ordinary", "ours", "left, %", "by magnitude, %", "by channels, %", "time",
    )  # fmt: skip
    for (_, name, network), of in cells.items():
        verdicts = intervals(of)
        shown: list[object] = [name, network, of[0]["rows"], len(of)]
        for measure in MEASURES:
            theirs, ours = _means(of, measure)
            mark = _MARKS[verdicts[measure].verdict] if measure in verdicts else ""
            shown += ["", ""] if math.isnan(ours) else [f"{theirs:.3f}", f"{ours:.3f}{mark}"]
        for left in (left_by_ours, left_by_magnitude, left_by_channels):
            share = over_seeds(left, of)
            shown.append("" if share is None else f"{100 * share:.1f}")
        lines.append(row(*shown, f"{_time(of):.1f}"))
    return lines


def _means(of: list[Cell], measure: str) -> tuple[float, float]:
    """Of the ordinary training and of ours."""
    f = MEASURES[measure]
    ours = fmean(f(one["ours"]["compressed"]["test"]) for one in of)
    return fmean(f(one["ordinary"]["test"]) for one in of), ours


def _time(of: list[Cell]) -> float:
    """How many times as long ours took as the ordinary trainings, of which there is a time from
    just before and after it, or one of another day."""
    ours = [{"ordinary_seconds": one["ordinary"]["seconds"], **one["ours"]} for one in of]
    return fmean(one["seconds"] / one["ordinary_seconds"] for one in ours)


def _counts(cells: Cells) -> list[str]:
    found = [intervals(of) for of in cells.values()]
    words: tuple[Verdict, ...] = ("win", "tie", "loss", "one seed")
    lines = header("measure", "wins", "ties", "losses", "one seed")
    for measure in MEASURES:
        verdicts = Counter(one[measure].verdict for one in found if measure in one)
        lines.append(row(measure, *(verdicts[word] for word in words)))
    return lines


def _sums(cells: Cells) -> list[str]:
    """What is said of all cells together, a paragraph each."""
    both = [(over_seeds(left_by_rivals, of), over_seeds(left_by_ours, of)) for of in cells.values()]
    few = [ours for theirs, ours in both if theirs is not None and theirs < FEW]
    small = sum(ours is not None and ours < FEW for ours in few)
    times = [_time(of) for of in cells.values()]
    seeds = sorted(Counter(map(len, cells.values())).items())
    nll = [intervals(of)["NLL"].mean for of in cells.values()]
    errors = [relative(*reversed(_means(of, "error"))) for of in cells.values()]
    return [
        f"Cells by number of seeds: {', '.join(f'{count} of {n}' for n, count in seeds)}.",
        "",
        f"Pruning by magnitude, of weights or channels, leaves less than a third in {len(few)} "
        f"cells; in {small} of these ours does, too.",
        "",
        f"Time: median {median(times):.1f}, geometric mean {geometric_mean(times):.1f}.",
        "",
        f"Over cells, by the signed-rank test of Wilcoxon: {_pooled('NLL', nll)}; "
        f"{_pooled('error', errors)}.",
    ]


def _pooled(measure: str, differences: Iterable[float]) -> str:
    known = [d for d in differences if abs(d) > 1e-9]  # less is of the arithmetic
    lower, higher = sum(d < 0 for d in known), sum(d > 0 for d in known)
    return f"{measure} lower in {lower}, higher in {higher}, p = {signed_rank(known):.2g}"
