"""Structure that was learnt, against structure at random: the method ``structure`` over seeds.

    python -m experiments against_random --again --data-root FOLDER

By default cells on 10,000 images of Fashion-MNIST. Accuracy of the mixture that was trained, of the
most probable structure cut out of it, of the same trained afresh, and of random structures of about
its size, trained in the same way. A finished seed is kept: the same command goes on where an
earlier one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyroccam.cli.runs.execution import Outcome

from ..markdown import header, plus_minus, read_all, row
from ..runner import File, Given, Row, Spec, of_method

__all__ = ["SPEC"]


def files(given: Given) -> Iterable[File]:
    """One, of all seeds."""
    sets: dict[str, Any] = {"epochs": given.epochs}
    if given.data == "fashion-mnist":
        sets["data.n_train"] = 10_000
    name = f"{given.data}-{given.network}"
    yield of_method(name, "structure", kept, given, sets | given.set)


def kept(outcome: Outcome) -> Row:
    """The row that is kept of a run."""
    metrics = outcome.metrics
    small = metrics["discretised"]
    parts = {
        "mixture": metrics["test"]["ensemble"],
        "cut out": metrics.get("refused", small)["test"],
        "afresh": metrics["retrained"]["test"],
        "random": {name: m["mean"] for name, m in metrics["random"]["spread"].items()},
    }
    return {
        "test": parts,
        "random": [
            {"parameters": one["parameters"], **one["test"]} for one in metrics["random"]["runs"]
        ],
        "parameters": small["parameters"],
        "parameters_before": small["parameters_before"],
        "chosen": metrics["structure"]["chosen"],
        "log_prob": metrics["structure"]["log_prob"],
        "entropy": metrics["structure"]["entropy"],
        "seconds": metrics["seconds"],
        "engine": metrics["engine"],
    }


_PARTS = {
    "mixture": "all alternatives together",
    "cut out": "the most probable structure, cut out",
    "afresh": "the same, trained afresh",
    "random": "random structures",
}


def table(folder: Path) -> Iterable[str]:
    """The learnt structure against those drawn at random, of about the same size."""
    for stem, found in read_all(folder).items():
        runs = found["runs"]
        measure = "accuracy" if "accuracy" in runs[0]["test"]["mixture"] else "rmse"
        yield from header(f"{stem} ({len(runs)} seeds)", measure, "NLL", "parameters")
        small = [run["parameters"] for run in runs]
        sizes = {
            "mixture": [run["parameters_before"] for run in runs],
            "cut out": small,
            "afresh": small,
            "random": [one["parameters"] for run in runs for one in run["random"]],
        }
        for part, counts in sizes.items():
            low, high = min(counts), max(counts)
            yield row(
                _PARTS[part], plus_minus(runs, f"test/{part}/{measure}"),
                plus_minus(runs, f"test/{part}/nll", 3),
                f"{low:,}" if low == high else f"{low:,} to {high:,}",
            )  # fmt: skip
        yield ""


SPEC = Spec(
    "experiments.published.structure.against_random", "Structures", "structures",
    {
        "data": "fashion-mnist", "data_root": str, "network": "cell-graph", "epochs": 15, "set": {},
        "device": "auto", "runs": str,
    },
    files, table,
    small="--data digits --network perceptron-graph --set width=8 --set random=1 --epochs 2 "
    "--seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
