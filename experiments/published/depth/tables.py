"""Tables of learnt depth: spirals, scans, the head, images, UCI sets, noise."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from ..markdown import header, plus_minus, read_all, row
from .noise import METHODS as FITTED
from .noise import SETS, WAYS
from .spirals import METHODS

__all__ = ["head", "images", "noise", "scans", "spirals", "uci"]


def spirals(folder: Path) -> Iterable[str]:
    """Accuracy and depth of every method, before and after pruning."""
    files = read_all(folder, METHODS)
    if len(files) < len(METHODS):
        return
    yield from header(
        "method", "accuracy", "pruned", "NLL", "chosen depth", "by exact posterior",
        "total variation to exact, largest", "pruned, times faster",
    )  # fmt: skip
    for method, found in files.items():
        runs, spread = found["runs"], found["spread"]
        s = [r["structure"] for r in runs]
        distance = [x["tv_to_exact"] if x["tv_running"] is None else x["tv_running"] for x in s]
        faster = [
            r["pruned"]["seconds_per_batch_before"] / r["pruned"]["seconds_per_batch"] for r in runs
        ]
        yield row(
            method,
            plus_minus(spread["test"]["accuracy"]),
            plus_minus(spread["pruned"]["accuracy"]),
            plus_minus(spread["test"]["nll"], 3),
            # of the estimate that trained the weights: q itself is the exact one in the end
            ", ".join(str(x["depth_chosen_running"] or x["depth_chosen"]) for x in s),
            ", ".join(str(x["depth_chosen_exact"]) for x in s),
            f"{max(distance):.4f}" if method != "ldn-marginal" else "q is the exact one",
            f"{min(faster):.1f} to {max(faster):.1f}",
        )
        if "ddn" in spread:
            yield row(
                "ddn at that depth", plus_minus(spread["ddn"]["accuracy"]), "",
                plus_minus(spread["ddn"]["nll"], 3), "", "", "", "",
            )  # fmt: skip


def scans(folder: Path) -> Iterable[str]:
    """Chosen depth and accuracy at each point."""
    scans = read_all(folder, ["scans"]).get("scans", {})
    for scan in scans.values():
        points = scan["points"]
        spreads = [p["spread"] for p in points]
        yield from header(scan["setting"], *(str(p["value"]) for p in points))
        if all("depth_chosen" in s for s in spreads):
            yield row("chosen depth", *(plus_minus(s["depth_chosen"], 1) for s in spreads))
        yield row("accuracy, %", *(plus_minus(s["accuracy"], 1, 100) for s in spreads))
        common = []
        for name in ("seeds", "steps"):
            numbers = [p[name] for p in points]
            if len(set(numbers)) > 1:
                yield row(name, *numbers)
            else:
                common.append(f"{numbers[0]} {name}")
        yield ""
        if common:
            yield f"{', '.join(common)}."
            yield ""


def head(folder: Path) -> Iterable[str]:
    """How far running statistics are from those of batches."""
    for found in read_all(folder, ["head"]).values():
        yield from header("statistics in the head", "largest gap over depths, nats")
        for kind, m in found["summary"].items():
            yield row(kind, plus_minus(m["largest_gap"], 3))


_NAMES = {
    "ldn": "LDN, all depths",
    "ldn-pruned": "LDN, pruned",
    "ldn-single": "LDN, single exit",
    "ldn-cost": "LDN, cost prior",
    "ldn-cost-pruned": "LDN, cost prior, pruned",
    "ldn-cost-single": "LDN, cost prior, single exit",
}


def images(folder: Path) -> Iterable[str]:
    """Learnt depth under two priors, and fixed depths."""
    for name, found in read_all(folder, ("mnist", "fashion-mnist")).items():
        yield from header(
            f"{name}, {found['seeds']} seeds", "error, %", "NLL", "ECE, %", "poster's ECE, %"
        )
        for contender, m in found["test"].items():
            depth = contender.removeprefix("ddn-")
            label = _NAMES.get(contender, f"fixed depth {depth}")
            error = {"mean": 1 - m["accuracy"]["mean"], "sd": m["accuracy"]["sd"]}
            yield row(
                label,
                plus_minus(error, 2, 100),
                plus_minus(m["nll"]),
                plus_minus(m["ece"], 2, 100),
                plus_minus(m["poster_ece"], 2, 100),
            )
        for kind, picked in found["depth_chosen"].items():
            depths = ", ".join(map(str, picked))
            deepest = max(map(int, found["speed"]["times_faster"]))
            running = max(found["tv_running"][kind])
            faster = [found["speed"]["times_faster"][str(d)] for d in sorted(set(picked))]
            marginal = ", ".join(f"{f['marginal_over_all_depths']:.2f}" for f in faster)
            single = ", ".join(f"{f['single_over_deepest']:.2f}" for f in faster)
            at = ", ".join(map(str, sorted(set(picked))))
            yield ""
            yield (
                f"{_NAMES[kind]}: depths {depths} of {deepest} chosen. At depth {at}: pruned "
                f"{marginal} times faster than all depths, single exit {single} times faster than "
                f"the deepest fixed network. Running estimate within {running:.2f} of the exact "
                "posterior."
            )
        yield ""


def uci(folder: Path) -> Iterable[str]:
    """Learnt depth beside the published."""
    sets = read_all(folder, ["table"]).get("table")
    if sets is None:
        return
    yield from header(
        "set (splits)", "NLL", "NLL, pruned", "NLL, fixed depth 10", "NLL, DUN published", "RMSE",
        "RMSE, DUN published", "chosen depths",
    )  # fmt: skip
    for name, found in sets.items():
        ours, dun = found["ours"], found["published_dun"]
        yield row(
            f"{name} ({found['splits']})",
            plus_minus(ours["ldn"]["nll"], 3),
            plus_minus(ours["pruned"]["nll"], 3),
            plus_minus(ours["ddn-deepest"]["nll"], 3),
            f"{dun['nll']:.3f} ± {dun['nll_sd']:.3f}",
            plus_minus(ours["ldn"]["rmse"], 3 if ours["ldn"]["rmse"]["mean"] > 0.01 else 5),
            f"{dun['rmse']:.3f}",
            ", ".join(map(str, found["depth_chosen"])),
        )


def noise(folder: Path) -> Iterable[str]:
    """Both noises of each method."""
    found = read_all(folder, SETS)
    if not found:
        return
    yield from header(
        "set (splits)", "method", *(f"{what}, noise of {way}" for way in WAYS
                                    for what in ("NLL", "within 95 %"))
    )  # fmt: skip
    for name, one in found.items():
        for method in FITTED:
            each = [one["spread"][f"{method}, {way}"] for way in WAYS]
            cells = [(plus_minus(m["nll"], 2), plus_minus(m["coverage"], 0, 100)) for m in each]
            yield row(f"{name} ({len(one['runs'])})", f"`{method}`", *itertools.chain(*cells))
