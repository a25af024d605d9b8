"""The table and the figure of strangers: ours beside an ordinary training, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from ...inference.figures.style import CYCLE, GREY, INK, styled
from ...inference.storage.whole import write_whole
from ..reproduce.markdown import header, read_all, row

__all__ = ["Interval", "read_cells", "write_table"]

Cell = dict[str, Any]

ERRORS = 2.0
"""Standard errors to both sides of a mean difference."""


@dataclass(frozen=True)
class Interval:
    """A mean difference over seeds, ours minus the other's: the lower, the better.

    Attributes:
        mean: of the differences.
        half: half of the width, two standard errors.
    """

    mean: float
    half: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> Interval:
        """The interval of paired differences, one for each seed; a single one has no width."""
        n = len(differences)
        spread = stdev(differences) if n > 1 else 0.0
        return cls(fmean(differences), ERRORS * spread / math.sqrt(n))

    @property
    def verdict(self) -> str:
        """``win`` or ``loss`` where the interval leaves out zero, or else ``tie``."""
        if abs(self.mean) <= self.half:
            return "tie"
        return "win" if self.mean < 0 else "loss"


def read_cells(out: Path, method: str) -> dict[tuple[str, str, str], list[Cell]]:
    """Cells of all seeds by half, set and network: the rivals' part and the method's, joined.

    Those of which one part is not there yet are left out.
    """
    rivals, ours = read_all(out / "rivals"), read_all(out / method)
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for name in sorted(rivals.keys() & ours.keys()):
        cell = {**rivals[name], **ours[name]}
        found.setdefault((cell["half"], cell["set"], cell["network"]), []).append(cell)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "tuned", item[0])))


def error_of(test: dict[str, float]) -> float:
    """The share of wrong answers, or the root mean square error."""
    return 1 - test["accuracy"] if "accuracy" in test else test["rmse"]


def left_by_magnitude(cell: Cell) -> float:
    """The smallest share of the weights with which magnitude pruning is as good, by the same
    0.02 nats of the validation rows, as the ordinary training; 1 if there is none."""
    most = cell["ordinary"]["val_nll"] + 0.02
    good = [one["left"] for one in cell.get("pruned", ()) if one["val_nll"] <= most]
    return min([1.0, *good])


_MEASURES: dict[str, Callable[[dict[str, float]], float]] = {
    "error": error_of,
    "NLL": lambda test: test["nll"],
    "ECE": lambda test: test.get("ece", math.nan),
}


def write_table(out: Path, method: str) -> None:
    """Write ``<method>.md`` and ``<method>.png`` of the cells in ``rivals/`` and ``<method>/``."""
    cells = {key: _whole(of) for key, of in read_cells(out, method).items()}
    lines = []
    for half in ("tuned", "kept"):
        own = {key: of for key, of in cells.items() if key[0] == half and of}
        if not own:
            continue
        lines += [f"Sets of the half `{half}`, means over seeds:", "", *_rows(own), ""]
        lines += [*_counts(own), ""]
    failed = [key for key, of in cells.items() if not of]
    lines += [f"Failed: {', '.join(' '.join(key[1:]) for key in failed)}."] if failed else []
    text = "\n".join(lines).rstrip() + "\n"
    write_whole(out / f"{method}.md", lambda file: file.write(text), "w")
    _draw({key: of for key, of in cells.items() if of}, out / f"{method}.png")


def _whole(cells: list[Cell]) -> list[Cell]:
    """The cells that ended with a network."""
    return [one for one in cells if "compressed" in one.get("ours", {})]


def _intervals(cells: list[Cell]) -> dict[str, Interval]:
    found = {}
    for name, measure in _MEASURES.items():
        both = [(one["ours"]["compressed"]["test"], one["ordinary"]["test"]) for one in cells]
        differences = [measure(ours) - measure(other) for ours, other in both]
        if not any(map(math.isnan, differences)):
            found[name] = Interval.of(differences)
    return found


def _left(cell: Cell) -> float:
    small = cell["ours"]["compressed"]
    return float(small["nonzero"] / small["parameters_before"])


def _rows(cells: dict[tuple[str, str, str], list[Cell]]) -> list[str]:
    lines = header(
        "set", "network", "rows", "seeds", "error: ordinary", "ours", "NLL: ordinary", "ours",
        "ECE: ordinary", "ours", "left, %", "by magnitude, %", "time",
    )  # fmt: skip
    for (_, name, network), of in cells.items():
        verdicts = _intervals(of)
        shown: list[object] = [name, network, of[0]["rows"], len(of)]
        for measure, f in _MEASURES.items():
            theirs, ours = (
                fmean(f(test) for test in tests)
                for tests in (
                    [one["ordinary"]["test"] for one in of],
                    [one["ours"]["compressed"]["test"] for one in of],
                )
            )
            mark = {"win": " +", "loss": " -", "tie": ""}
            said = mark[verdicts[measure].verdict] if measure in verdicts else ""
            shown += ["", ""] if math.isnan(ours) else [f"{theirs:.3f}", f"{ours:.3f}{said}"]
        shown += [f"{100 * fmean(map(_left, of)):.1f}"]
        shown += [f"{100 * fmean(map(left_by_magnitude, of)):.1f}"]
        times = [one["ours"]["seconds"] / one["ordinary"]["seconds"] for one in of]
        lines.append(row(*shown, f"{fmean(times):.1f}"))
    return lines


def _counts(cells: dict[tuple[str, str, str], list[Cell]]) -> list[str]:
    found = {key: _intervals(of) for key, of in cells.items()}
    lines = header("measure", "wins", "ties", "losses")
    for measure in _MEASURES:
        verdicts = [one[measure].verdict for one in found.values() if measure in one]
        lines.append(row(measure, *(verdicts.count(word) for word in ("win", "tie", "loss"))))
    return lines


@styled
def _draw(cells: dict[tuple[str, str, str], list[Cell]], path: Path) -> None:
    """Differences of NLL with their intervals beside shares of weights that are left."""
    if not cells:
        return
    figure = Figure(figsize=(9, 1.2 + 0.24 * len(cells)), layout="constrained")
    one, other = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for k, of in enumerate(reversed(cells.values())):
        found = _intervals(of)["NLL"]
        colour = {"win": CYCLE[0], "tie": GREY, "loss": CYCLE[1]}[found.verdict]
        one.errorbar(found.mean, k, xerr=found.half, fmt="o", color=colour, markersize=4)
        other.plot(fmean(map(left_by_magnitude, of)), k, "x", color=GREY, markersize=5)
        other.plot(fmean(map(_left, of)), k, "o", color=CYCLE[0], markersize=4)
    names = [f"{name}, {network}" for _, name, network in reversed(cells)]
    one.set_yticks(range(len(names)), names)
    tuned = sum(key[0] == "tuned" for key in cells)
    for axes in (one, other):
        if 0 < tuned < len(cells):
            axes.axhline(len(cells) - tuned - 0.5, color=INK, linewidth=0.8)
    one.axvline(0, color=INK, linewidth=0.8)
    one.set_xscale("symlog", linthresh=0.1)
    one.set_xlabel("NLL of the test rows, ours minus ordinary, nats")
    one.set_title("above the line: tuned; below: kept aside", fontsize="medium")
    other.set_xscale("log")
    other.set_xlabel("share of the parameters left")
    other.plot([], [], "o", color=CYCLE[0], label="ours")
    other.plot([], [], "x", color=GREY, label="magnitude pruning")
    other.legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=110)
