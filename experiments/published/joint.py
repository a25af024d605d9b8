r"""Depth, widths and bits at once: how the chosen depth depends on the deepest, and what is left.

    python -m experiments joint --again --data spirals --depths 10,20,40,80 \
        --set data.n=20000 --set batch_size=512 --set steps=8000
    python -m experiments joint --again --data fashion-mnist --depths 10 \
        --set width=100 --set kl_weight=0.2 --fixed 1,10

Every run is ``pyroccam fit occam``, without a prior on depth that says what a block costs. With
``--fixed`` ordinary networks of these depths stand beside it, trained as numbers for as many steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from pyroccam.cli.methods.table import METHODS
from pyroccam.cli.runs.execution import Outcome
from pyroccam.inference.cutting.cost import count_parameters

from .compression import error_of, short
from .markdown import header, plus_minus, read_all, row, trained_on
from .runner import File, Given, Row, Spec, of_method

__all__ = ["SPEC"]

SIZES = ("depth", "chosen", "parameters", "kl_bytes", "number_bytes", "weight_bytes",
         "file_bytes")  # fmt: skip


def files(given: Given) -> Iterable[File]:
    """One of each depth of the stack, and of each that is fixed."""
    own, stem = given.set, f"{short(given.data)}-{short(given.network)}"
    more = f"-{own['kl_weight']:g}" if "kl_weight" in own else ""
    more += f"-reach-{own['reach']:g}" if own.get("reach") else ""
    for deepest in given.depths:
        sets = {**own, "max_depth": deepest}
        yield of_method(f"{stem}-{deepest}{more}", "occam", kept, given, sets)
    plain = {k: METHODS["occam"].settings[k] for k in ("steps", "epochs", "batch_size")}
    plain |= {"lr": 1e-3, "schedule": "cosine", "weight_decay": 0.03}
    plain |= {k: v for k, v in own.items() if k != "kl_weight"}
    if plain["epochs"] is not None:
        del plain["steps"]
    for depth in given.fixed:
        sets = {**plain, "max_depth": depth, "depth": depth}
        yield of_method(f"{stem}-fixed-{depth}", "ddn", kept_of_fixed, given, sets)


def kept(outcome: Outcome) -> Row:
    """The row that is kept of a run."""
    metrics = outcome.metrics
    depth, structure, small = (metrics[k] for k in ("depth", "structure", "compressed"))
    test = small["test"]
    return {
        "depth": depth["depth_chosen"],
        "depth_expected": depth["depth_expected"],
        "depth_probs": depth["depth_probs"],
        "measure": "error, %" if "accuracy" in test else "RMSE",
        "error": error_of(test),
        "nll": test["nll"],
        "whole_error": error_of(metrics["test"]["ensemble"]),
        "architecture": structure["architecture"],
        "parameters": small["parameters"],
        "parameters_before": small["parameters_before"],
        "file_bytes": structure["file_bytes"],
        "message": metrics.get("message"),
        "sizes": [{name: row[name] for name in SIZES} for row in metrics["neighbours"]],
        "times_faster": small["seconds_per_batch_before"] / small["seconds_per_batch"],
        **{k: metrics[k] for k in ("seconds", "engine", "device")},
    }


def kept_of_fixed(outcome: Outcome) -> Row:
    """The same of an ordinary network."""
    metrics, model = outcome.metrics, outcome.fit.model
    return {
        "depth": len(model.part("net")) - 2,  # without its two ends
        "error": error_of(metrics["test"]),
        "nll": metrics["test"]["nll"],
        "parameters": count_parameters(model),
        "seconds": metrics["seconds"],
    }


def table(folder: Path) -> Iterable[str]:
    """What is left, and what the bound says of sizes."""
    found = read_all(folder).values()
    learnt = [one for one in found if one["config"]["method"] == "occam"]
    for on in sorted({trained_on(one) for one in learnt}):
        own = sorted((one for one in learnt if trained_on(one) == on), key=_deepest)
        yield from header(
            f"{on[0]}, {short(on[1])} (seeds)", "deepest", "depths",
            own[0]["runs"][0].get("measure", "error, %"), "left", "file, bytes", "times smaller",
            "times faster",
        )  # fmt: skip
        for one in own:
            runs = one["runs"]
            smaller = fmean(4 * run["parameters_before"] / run["file_bytes"] for run in runs)
            yield row(
                f"`occam`{_kind(one['config'])} ({len(runs)})",
                one["config"]["network_options"]["max_depth"],
                ", ".join(str(run["depth"]) for run in runs),
                plus_minus(runs, "error", 2),
                ", ".join(run["architecture"] for run in runs),
                plus_minus(runs, "file_bytes", 0),
                f"{smaller:.0f}",
                plus_minus(runs, "times_faster", 1),
            )
        fixed = [one["runs"] for one in found
                 if one["config"]["method"] == "ddn" and trained_on(one) == on]  # fmt: skip
        for runs in sorted(fixed, key=lambda runs: runs[0]["depth"]):
            depth = runs[0]["depth"]
            error = plus_minus(runs, "error", 2)
            yield row(f"`ddn` ({len(runs)})", depth, depth, error, "", "", "", "")
        yield ""
        for one in own:
            yield from _sizes(on[0], one)


def _kind(config: Row) -> str:
    """What was set otherwise."""
    weight, options = config["settings"].get("kl_weight", 1.0), config["options"]
    said = "" if weight == 1.0 else f", KL times {weight:g}"
    said += f", reach {reach:g}" if (reach := options.get("reach")) else ""
    return said + (f", numbers {bits:g} bits" if (bits := options.get("number_bits")) else "")


def _deepest(one: Row) -> tuple[bool, int]:
    """Files of one start of q(d) stand together."""
    config = one["config"]
    limited = config["options"].get("reach") is not None
    return limited, int(config["network_options"]["max_depth"])


def _sizes(data: str, one: dict[str, Any]) -> Iterable[str]:
    """Of the first run of a file, what the bound says of sizes and what files take."""
    first = one["runs"][0]
    if "sizes" not in first:
        return
    deepest = one["config"]["network_options"]["max_depth"]
    yield from header(
        f"{data}, seed {first['seed']} of {deepest}: depth", "KL, bytes", "price of numbers",
        "both", "weights in the file", "rest of the file",
    )  # fmt: skip
    for size in first["sizes"]:
        bound = size["kl_bytes"] + size["number_bytes"]
        rest = size["file_bytes"] - size["weight_bytes"]
        shown = (size["kl_bytes"], size["number_bytes"], bound, size["weight_bytes"], rest)
        name = f"{size['depth']}{', chosen' if size['chosen'] else ''}"
        yield row(name, *(f"{value:.0f}" for value in shown))
    yield ""


SPEC = Spec(
    "experiments.published.joint", "Depth and widths at once", "joint",
    {
        "data": "spirals", "network": "mlp", "depths": (10, 20, 40, 80), "fixed": (),
        "data_root": str, "set": {}, "device": "auto", "runs": str,
    },
    files, table,
    small="--data digits --depths 2 --fixed 1 --seeds 1 --set width=6 --set epochs=6",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
