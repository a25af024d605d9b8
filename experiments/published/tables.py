"""The results, printed as Markdown from the committed result files.

python -m experiments.published.tables
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Annotated, Any

import typer
from pyroccam.cli.methods.table import METHODS

from .compression import short
from .depth import tables as depth
from .evidence import tables as evidence
from .markdown import header, plus_minus, read_all, row
from .options import RESULTS
from .path_of_lambda import ROWS as PATHS
from .structure import tables as structure
from .variance import tables as variance


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
        Section("Spirals", "spirals", depth.spirals),
        Section("Scans", "scans", depth.scans),
        Section("Head", "head", depth.head),
        Section("Images", "images", depth.images),
        Section("UCI", "uci", depth.uci),
        Section("Noise", "noise", depth.noise),
        Section("Depth and widths at once", "joint", _joint),
        Section("One posterior, or one after the other", "in_turn", _in_turn),
        Section("Widths", "widths", _widths),
        Section("Compression", "compression", _compression),
        Section("Quantisation", "quantisation", _quantisation),
        Section("Bits by group", "bits", _bits),
        Section("Two roundings", "rounding", _rounding),
        Section("Path of lambda", "path", _path),
        Section("Every size", "every_size", _every_size),
        Section("Coded draws", "coded_draws", _draws),
        Section("Gradient variance", "gradient_variance", _gradient_variance),
        Section("Variance networks", "variance", variance.networks),
        Section("Mean propagation", "mean_propagation", variance.mean_propagation),
        Section("Robustness", "robustness", variance.robustness),
        Section("Toys", "variance_toys", variance.toys),
        Section("Policies", "policy_gradient", variance.policy_gradient),
        Section("Regimes", "regimes", structure.regimes),
        Section("Hyperparameters", "hyperparameters", structure.hyperparameters),
        Section("Kinds of noise", "kinds_of_noise", structure.kinds_of_noise),
        Section("Structures", "structures", structure.structures),
        Section("Structures by price", "structure_path", structure.by_price),
        Section("Evidence", "evidence", evidence.evidence),
        Section("Labels", "labels", evidence.labels),
        Section("Evidence by optimisers", "evidence-paths", evidence.paths),
    )
    return {one.folder: one for one in found}


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the result files.")] = RESULTS,
) -> None:
    """Print the tables of all experiments that have results."""
    for one in sections().values():
        lines = list(one.lines(results / one.folder))
        if lines:
            print(f"### {one.title}\n", *lines, "", sep="\n")


def _compression(folder: Path) -> Iterable[str]:
    files = read_all(folder).values()
    for data, network in sorted({_trained_on(f) for f in files}):
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
                file = published.get("file_bytes")
                yield row(
                    "published", published["error"], published["nonzero"] or "",
                    published.get("architecture") or "", published.get("bits") or "",
                    *("" if cell is None else f"{cell:g}" for cell in cells),
                    "" if file is None else f"{file / 1000:g}",
                )  # fmt: skip
        yield ""


def _quantisation(folder: Path) -> Iterable[str]:
    found = read_all(folder)
    for network in sorted({one["config"]["network"] for one in found.values()}):
        yield from header(
            f"{short(network)}, prior (seeds)", "epochs", "original error, %", "means, %",
            "pruned and quantised, %", "weights left, %", "file, kB",
        )  # fmt: skip
        own = [one for one in found.values() if one["config"]["network"] == network]
        for one in own:
            spread, config = one["spread"], one["config"]
            errors = ("original_error", "mean_error", "error")
            yield row(
                f"`{config['options']['prior']}` ({len(one['runs'])})",
                config["settings"]["epochs"],
                *(plus_minus(spread[name], 2) if name in spread else "" for name in errors),
                plus_minus(spread["nonzero_percent"], 1),
                plus_minus(spread["file_bytes"], 1, 1e-3),
            )
        if (published := own[0]["published"]) is not None:
            cells = ("epochs", "original_error", "mean_error", "error", "nonzero_percent")
            yield row("published", *(f"{published[name]:g}" for name in cells), "")
        yield ""


def _bits(folder: Path) -> Iterable[str]:
    found = read_all(folder).values()
    if not found:
        return
    yield from header(
        "bits (seeds)", "KL times", "epochs", "error, %", "file, kB", "weights left, %",
        "left of each layer", "flat code, kB", "entropy, nats",
    )  # fmt: skip
    learnt = [one for one in found if "method" in one["config"]]
    gates = [one for one in found if "group" in one["config"]]
    for one in [*learnt, *sorted(gates, key=lambda one: one["config"]["kl_weight"])]:
        spread, config = one["spread"], one["config"]
        settings = config.get("settings", config)
        group = config.get("group")
        name = config["method"] if group is None else "gates"
        of = {None: "", "layer": ", layer"}.get(group, f", {group} rows")
        yield row(
            f"`{name}`{of} ({len(one['runs'])})",
            f"{settings['kl_weight']:g}",
            settings["epochs"],
            plus_minus(spread["error"], 2),
            plus_minus(spread["file_bytes"], 1, 1e-3),
            plus_minus(spread["nonzero_percent"], 1),
            ", ".join(run["architecture"] for run in one["runs"]),
            *(["", ""] if group is None else [
                plus_minus(spread["code_bytes"], 1, 1e-3), plus_minus(spread["entropy"], 2)
            ]),
        )  # fmt: skip
    yield ""


def _rounding(folder: Path) -> Iterable[str]:
    for method, found in read_all(folder).items():
        whole = [run for run in found["runs"] if "failed" not in run]
        yield from header(
            f"`{method}`, rate beside digits: sets", "cells", "bytes of the file, times",
            "least", "most", "smaller in", "NLL, mean difference", "least", "most",
        )  # fmt: skip
        for half in ("tuned", "kept"):
            pairs = [(run["rate"], run["relative"]) for run in whole if run["half"] == half]
            if not pairs:
                continue
            times = [one["bytes"] / other["bytes"] for one, other in pairs]
            more = [one["nll"] - other["nll"] for one, other in pairs]
            yield row(
                half, len(pairs), f"{geometric_mean(times):.2f}", f"{min(times):.2f}",
                f"{max(times):.2f}", sum(one < 1 for one in times), f"{fmean(more):+.4f}",
                f"{min(more):+.4f}", f"{max(more):+.4f}",
            )  # fmt: skip
        yield ""


def _joint(folder: Path) -> Iterable[str]:
    found = read_all(folder).values()
    learnt = [one for one in found if one["config"]["method"] == "occam"]
    for data, network in sorted({_trained_on(one) for one in learnt}):
        own = [one for one in learnt if _trained_on(one) == (data, network)]
        measure = own[0]["runs"][0].get("measure", "error, %")
        yield from header(
            f"{data}, {short(network)} (seeds)", "deepest", "depths", measure, "left",
            "file, bytes", "times smaller", "times faster",
        )  # fmt: skip
        for one in sorted(own, key=_deepest):
            runs, spread = one["runs"], one["spread"]
            smaller = fmean(4 * run["parameters_before"] / run["file_bytes"] for run in runs)
            weight = one["config"]["settings"].get("kl_weight", 1.0)
            kind = "" if weight == 1.0 else f", KL times {weight:g}"
            options = one["config"]["options"]
            kind += f", reach {reach:g}" if (reach := options.get("reach")) else ""
            kind += f", numbers {bits:g} bits" if (bits := options.get("number_bits")) else ""
            yield row(
                f"`occam`{kind} ({len(runs)})",
                one["config"]["network_options"]["max_depth"],
                ", ".join(str(run["depth"]) for run in runs),
                plus_minus(spread["error"], 2),
                ", ".join(run["architecture"] for run in runs),
                plus_minus(spread["file_bytes"], 0),
                f"{smaller:.0f}",
                plus_minus(spread["times_faster"], 1),
            )
        beside = [one for one in found if one["config"]["method"] == "ddn"
                  and _trained_on(one) == (data, network)]  # fmt: skip
        for one in sorted(beside, key=lambda one: one["runs"][0]["depth"]):
            runs = one["runs"]
            depth = runs[0]["depth"]
            error = plus_minus(one["spread"]["error"], 2)
            yield row(f"`ddn` ({len(runs)})", depth, depth, error, "", "", "", "")
        yield ""
        for one in sorted(own, key=_deepest):
            yield from _sizes(one)


def _deepest(one: dict[str, Any]) -> tuple[bool, int]:
    """Files of one start of q(d) stand together."""
    config = one["config"]
    limited = config["options"].get("reach") is not None
    return limited, int(config["network_options"]["max_depth"])


def _sizes(one: dict[str, Any]) -> Iterable[str]:
    """Of the first run of a file, what the bound says of sizes and what files take."""
    first = one["runs"][0]
    if "sizes" not in first:
        return
    deepest = one["config"]["network_options"]["max_depth"]
    yield from header(
        f"{_trained_on(one)[0]}, seed {first['seed']} of {deepest}: depth",
        "KL, bytes", "price of numbers", "both", "weights in the file", "rest of the file",
    )  # fmt: skip
    for size in first["sizes"]:
        bound = size["kl_bytes"] + size["number_bytes"]
        rest = size["file_bytes"] - size["weight_bytes"]
        shown = (size["kl_bytes"], size["number_bytes"], bound, size["weight_bytes"], rest)
        yield row(
            f"{size['depth']}{', chosen' if size['chosen'] else ''}",
            *(f"{value:.0f}" for value in shown),
        )
    yield ""


def _in_turn(folder: Path) -> Iterable[str]:
    for one in read_all(folder).values():
        runs = one["runs"]
        yield from header(
            f"{one['config']['data']} (seeds)", "depths", "error, %", "file, bytes", "parameters",
            "multiply-adds of a row, million", "times faster", "fused", "training, s",
        )  # fmt: skip
        for name, spread in one["spread"].items():
            own = [row for run in runs for row in run["contenders"] if row["name"] == name]
            depths = [str(row["depth"]) for row in own if "depth" in row]
            yield row(
                f"{name} ({spread['error']['n']})",
                ", ".join(depths),
                plus_minus(spread["error"], 2),
                plus_minus(spread["file_bytes"], 0),
                plus_minus(spread["parameters"], 0),
                plus_minus(spread["multiply_adds"], 2, 1e-6),
                plus_minus(spread["times_faster"], 2),
                plus_minus(spread["times_faster_fused"], 2),
                plus_minus(spread["seconds"], 0) if "seconds" in spread else "",
            )
        yield ""


def _widths(folder: Path) -> Iterable[str]:
    found = read_all(folder)
    if not found:
        return
    yield from header(
        "units behind the targets (seeds)", "greatest bound of networks alone", "latent width",
        "`gnj`", "`ghs`",
    )  # fmt: skip
    for one in sorted(found.values(), key=lambda one: int(one["config"]["true"])):
        runs = one["runs"]
        chosen = (
            ", ".join(str(run[name]) for run in runs) for name in ("alone", "latent", "gnj", "ghs")
        )
        yield row(f"{one['config']['true']} ({len(runs)})", *chosen)


def _path(folder: Path) -> Iterable[str]:
    found = read_all(folder)
    stems = {n: n.rsplit(f"-{one['config']['form']}", 1)[0] for n, one in found.items()}
    for data in sorted(set(stems.values())):
        of_data = {n.removeprefix(f"{data}-"): found[n] for n in found if stems[n] == data}
        order = sorted(of_data, key=lambda n: (PATHS.index(of_data[n]["config"]["form"]), n))
        own = {name: of_data[name] for name in order}
        shares = next(iter(own.values()))["shares"]
        pruned = "/".join(map(str, shares))
        yield from header(
            f"{data}, λ: accuracy at {pruned} % pruned",
            *(f"{name} ({len(one['runs'])})" for name, one in own.items()),
        )
        for weight in next(iter(own.values()))["spread"]:
            ours = (
                [plus_minus(one["spread"][weight][str(share)]["accuracy"], 1) for share in shares]
                for one in own.values()
            )
            yield row(weight, *map(" / ".join, ours))
            if any(one["published"] for one in own.values()):
                theirs = ((one["published"] or {}).get(weight, ["-"]) for one in own.values())
                yield row("published", *(" / ".join(map(str, one)) for one in theirs))
        seconds = {name: one["seconds"]["mean"] for name, one in own.items()}
        yield row("seconds", *(f"{one:.0f}" for one in seconds.values()))
        if PATHS[0] in seconds:
            each = seconds[PATHS[0]] / len(own[PATHS[0]]["spread"])
            yield row("fits of one λ in that time", *(f"{s / each:.1f}" for s in seconds.values()))
        yield ""


def _every_size(folder: Path) -> Iterable[str]:
    for one in read_all(folder).values():
        yield from header(
            f"{one['config']['data']}, λ (seeds)", "depths", "error, %", "file, bytes",
            "parameters",
        )  # fmt: skip
        for k, (weight, spread) in enumerate(one["spread"].items()):
            depths = (str(run["points"][k]["depth"]) for run in one["runs"])
            yield row(
                f"{weight} ({len(one['runs'])})",
                ", ".join(depths),
                plus_minus(spread["error"], 2),
                plus_minus(spread["file_bytes"], 0),
                plus_minus(spread["parameters"], 0),
            )
        yield ""


def _draws(folder: Path) -> Iterable[str]:
    found = {name: one for name, one in read_all(folder).items() if "runs" in one}
    if not found:
        return
    yield from header(
        "network, images moved by (seeds)", "left", "file, bytes", "file over KL",
        "training error, %", "test error, %",
    )  # fmt: skip
    for name, one in sorted(found.items(), key=lambda pair: pair[1]["config"]["size"]):
        runs, spread, config = one["runs"], one["spread"], one["config"]
        network, shift = name, config["shift"]
        for part in (config["size"], config["code"], f"shift-{shift}"):
            network = network.removesuffix(f"-{part}")
        yield row(
            f"{network}, {shift} px ({len(runs)})",
            ", ".join(dict.fromkeys(run["architecture"] for run in runs)),
            f"{spread['file_bytes']['mean']:,.0f}",
            f"{spread['over_kl']['mean']:.2f}",
            f"{fmean(run['train_error'] for run in runs):.2f}",
            plus_minus(spread["error"], 2),
        )
    yield ""


def _trained_on(found: dict[str, Any]) -> tuple[str, str]:
    return found["config"]["data"]["name"], found["config"]["network"]


_VARIED = {"all": "all", "weight loc": "weight means", "weight log-scale": "weight log-sds",
           "scale loc": "scale means", "scale log-scale": "scale log-sds"}  # fmt: skip
_DRAWN = {"batch": "scales for the batch", "weights": "weights"}


def _gradient_variance(folder: Path) -> Iterable[str]:
    files = read_all(folder).values()
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
