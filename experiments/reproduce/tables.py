"""The results, printed as Markdown from the committed result files.

python -m pyroccam.experiments.reproduce.tables
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..methods.table import METHODS
from .compression import short
from .depth import noise
from .markdown import header, plus_minus, read, row
from .structure import tables as structure_tables
from .variance import tables as variance_tables


@dataclass(frozen=True)
class Section:
    """The tables of one experiment.

    Attributes:
        title: over them.
        folder: of its result files.
        lines: from the folder to Markdown; none without results.
    """

    title: str
    folder: str
    lines: Callable[[Path], Iterable[str]]


def sections() -> dict[str, Section]:
    """All experiments with tables, by the name of the folder of their results."""
    found = (
        Section("Spirals", "spirals", _spirals),
        Section("Scans", "scans", _scans),
        Section("Head", "head", _head),
        Section("Images", "images", _images),
        Section("UCI", "uci", _uci),
        Section("Noise", "noise", _noise),
        Section("Compression", "compression", _compression),
        Section("Gradient variance", "gradient_variance", _gradient_variance),
        Section("Variance networks", "variance", variance_tables.variance),
        Section("Mean propagation", "mean_propagation", variance_tables.mean_propagation),
        Section("Robustness", "robustness", variance_tables.robustness),
        Section("Toys", "variance_toys", variance_tables.toys),
        Section("Policies", "policy_gradient", variance_tables.policy_gradient),
        Section("Regimes", "regimes", structure_tables.regimes),
        Section("Hyperparameters", "hyperparameters", structure_tables.hyperparameters),
        Section("Structures", "structures", structure_tables.structures),
    )
    return {one.folder: one for one in found}


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the result files.")] = Path(
        "experiments/results"
    ),
) -> None:
    """Print the tables of all experiments that have results."""
    for one in sections().values():
        lines = list(one.lines(results / one.folder))
        if lines:
            print(f"### {one.title}\n", *lines, "", sep="\n")


def _spirals(folder: Path) -> Iterable[str]:
    files = [folder / f"{m}.json" for m in ("ldn", "ldn-gradient", "ldn-marginal")]
    if not all(f.exists() for f in files):
        return
    yield from header(
        "method", "accuracy", "pruned", "NLL", "chosen depth", "by exact posterior",
        "total variation to exact, largest", "pruned, times faster",
    )  # fmt: skip
    for file in files:
        found = read(file)
        runs, spread = found["runs"], found["spread"]
        s = [r["structure"] for r in runs]
        distance = [x["tv_to_exact"] if x["tv_running"] is None else x["tv_running"] for x in s]
        faster = [
            r["pruned"]["seconds_per_batch_before"] / r["pruned"]["seconds_per_batch"] for r in runs
        ]
        yield row(
            file.stem,
            plus_minus(spread["test"]["accuracy"]),
            plus_minus(spread["pruned"]["accuracy"]),
            plus_minus(spread["test"]["nll"], 3),
            # of the estimate that trained the weights: q itself is the exact one in the end
            ", ".join(str(x["depth_chosen_running"] or x["depth_chosen"]) for x in s),
            ", ".join(str(x["depth_chosen_exact"]) for x in s),
            f"{max(distance):.4f}" if file.stem != "ldn-marginal" else "q is the exact one",
            f"{min(faster):.1f} to {max(faster):.1f}",
        )
        if "ddn" in spread:
            yield row(
                "ddn at that depth", plus_minus(spread["ddn"]["accuracy"]), "",
                plus_minus(spread["ddn"]["nll"], 3), "", "", "", "",
            )  # fmt: skip


def _scans(folder: Path) -> Iterable[str]:
    if not (folder / "scans.json").exists():
        return
    for scan in read(folder / "scans.json").values():
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


def _head(folder: Path) -> Iterable[str]:
    if not (folder / "head.json").exists():
        return
    yield from header("statistics in the head", "largest gap over depths, nats")
    for kind, m in read(folder / "head.json")["summary"].items():
        yield row(kind, plus_minus(m["largest_gap"], 3))


_NAMES = {
    "ldn": "LDN, all depths",
    "ldn-pruned": "LDN, pruned",
    "ldn-single": "LDN, single exit",
    "ldn-cost": "LDN, cost prior",
    "ldn-cost-pruned": "LDN, cost prior, pruned",
    "ldn-cost-single": "LDN, cost prior, single exit",
}


def _images(folder: Path) -> Iterable[str]:
    for name in ("mnist", "fashion-mnist"):
        if not (folder / f"{name}.json").exists():
            continue
        found = read(folder / f"{name}.json")
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


def _uci(folder: Path) -> Iterable[str]:
    if not (folder / "table.json").exists():
        return
    yield from header(
        "set (splits)", "NLL", "NLL, pruned", "NLL, fixed depth 10", "NLL, DUN published", "RMSE",
        "RMSE, DUN published", "chosen depths",
    )  # fmt: skip
    for name, found in read(folder / "table.json").items():
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


def _noise(folder: Path) -> Iterable[str]:
    files = [folder / f"{name}.json" for name in noise.SETS]
    found = {path.stem: read(path) for path in files if path.exists()}
    if not found:
        return
    yield from header(
        "set (splits)", "method", *(f"{what}, noise of {way}" for way in noise.WAYS
                                    for what in ("NLL", "within 95 %"))
    )  # fmt: skip
    for name, one in found.items():
        for method in noise.METHODS:
            each = [one["spread"][f"{method}, {way}"] for way in noise.WAYS]
            cells = [(plus_minus(m["nll"], 2), plus_minus(m["coverage"], 0, 100)) for m in each]
            yield row(f"{name} ({len(one['runs'])})", f"`{method}`", *itertools.chain(*cells))


def _compression(folder: Path) -> Iterable[str]:
    files = [read(path) for path in sorted(folder.glob("*.json"))]
    sets = sorted({(f["config"]["data"]["name"], f["config"]["network"]) for f in files})
    for data, network in sets:
        own = [f for f in files if _trained_on(f) == (data, network)]
        order = list(METHODS)
        yield from header(
            f"{data}, {short(network)} (seeds)", "error, %", "weights left, %",
            "left of each layer", "bits", "pruning", "fast", "maximum", "file, kB",
        )  # fmt: skip
        for found in sorted(own, key=lambda f: order.index(f["config"]["method"])):
            runs, spread = found["runs"], found["spread"]
            rates = ("pruning", "fast_prediction", "maximum")
            yield row(
                f"`{found['config']['method']}` ({len(runs)})",
                plus_minus(spread["error"], 2),
                plus_minus(spread["nonzero_percent"], 2),
                ", ".join(r["architecture"] for r in runs),
                ", ".join("-".join(map(str, r["bits"])) for r in runs),
                *(plus_minus(spread[name], 1) if name in spread else "" for name in rates),
                plus_minus(spread["file_bytes"], 1, 1e-3),
            )
            if (published := found["published"]) is not None:
                cells = (published[k] for k in ("pruning", "fast", "maximum"))
                yield row(
                    "published", published["error"], published["nonzero"],
                    published.get("architecture") or "", published.get("bits") or "",
                    *("" if cell is None else f"{cell:g}" for cell in cells), "",
                )  # fmt: skip
        yield ""


def _trained_on(found: dict[str, Any]) -> tuple[str, str]:
    return found["config"]["data"]["name"], found["config"]["network"]


_VARIED = {"all": "all", "weight loc": "weight means", "weight log-scale": "weight log-sds",
           "scale loc": "scale means", "scale log-scale": "scale log-sds"}  # fmt: skip
_DRAWN = {"batch": "scales for the batch", "weights": "weights"}


def _gradient_variance(folder: Path) -> Iterable[str]:
    files = [read(path) for path in sorted(folder.glob("*.json"))]
    if not files:
        return
    yield from header(
        "network, method (states)", "batch", "drawn",
        *(f"{label}, one batch" for label in _VARIED.values()), "all, any batch",
    )  # fmt: skip
    least: list[float] = []
    tests = 0
    for found in files:
        runs, config = found["runs"], found["config"]
        cells = {(c["batch"], c["over"]): i for i, c in enumerate(runs[0]["cells"])}
        for batch in found["batches"]:
            for draws, label in _DRAWN.items():
                one, any_batch = (
                    [run["cells"][cells[batch, over]]["ratio"][draws] for run in runs]
                    for over in ("noise", "batches")
                )
                name = f"{config['network']}, {config['method']} ({len(runs)})"
                yield row(
                    name, batch, label, *(_mean_se(one, kind) for kind in _VARIED),
                    _mean_se(any_batch, "all"),
                )  # fmt: skip
        least += [s["least_p"] for s in found["spread"]]
        tests += sum(s["tests"] for s in found["spread"])
    yield ""
    yield f"Equal expectations: least p {min(least):.4f} of {tests} tests."


def _mean_se(ratios: list[dict[str, Any]], kind: str) -> str:
    """Mean over states, and its standard error from the draws."""
    count = len(ratios)
    error = sum(r[kind]["se"] ** 2 for r in ratios) ** 0.5 / count
    return f"{sum(r[kind]['value'] for r in ratios) / count:.2f} ± {error:.2f}"


if __name__ == "__main__":
    typer.run(main)
