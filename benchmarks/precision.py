"""What products in bfloat16 cost and save: the same runs with and without, seed by seed.

    python -m pyroccam.benchmarks.precision --data-root DIR

Seeds are the same, and so are the rows; the noise parts ways with the first rounding that matters.
The differences have to be read beside the spread over seeds.
"""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from ..experiments.runs.config import RunConfig
from ..experiments.runs.run import RunOptions, run
from ..inference.storage.checkpoint import write_json
from .machine import describe
from .report import markdown, number
from .steps import RESULTS, Out

__all__ = ["app", "table"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)

PRECISIONS = "full", "bf16"

COLUMNS = {
    "bound": "negative bound, nats a row",
    "error": "test error, %",
    "nll": "test NLL",
    "left": "weights left, %",
    "small_nll": "NLL of the small network",
    "seconds": "seconds of the fit",
}


@app.command()
def main(
    data_root: Annotated[str, typer.Option(help="Where the data sets are, or are put.")],
    sets: Annotated[list[str] | None, typer.Option(help="Data sets.")] = None,
    method: Annotated[str, typer.Option(help="Of the table of methods.")] = "gnj",
    network: Annotated[str, typer.Option(help="A ready network.")] = "lenet-300-100",
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    out: Out = RESULTS,
) -> None:
    """Run a method in both precisions, in turns.

    Writes precision.json and prints a table in Markdown: the mean over seeds, and in brackets the
    standard deviation.
    """
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in sets or ["mnist", "fashion-mnist"]:
        for seed in range(seeds):
            for precision in PRECISIONS:
                settings: dict[str, Any] = {"epochs": epochs, "compile": True}
                if precision != "full":
                    settings["precision"] = precision
                row = {"data": name, "precision": precision, "seed": seed}
                row |= _run(method, name, network, data_root, seed, settings)
                console.print(row)
                rows.append(row)
    content = {"method": method, "network": network, "epochs": epochs, "runs": rows}
    content["machine"] = describe(torch.device("cpu"))
    write_json(out / "cpu" / "precision.json", content)
    print(table(rows))


def _run(
    method: str, data: str, network: str, root: str, seed: int, settings: dict[str, Any]
) -> dict[str, float]:
    config, rows = RunConfig.resolve(
        method, data, network=network, data_root=root, seed=seed, sets=settings
    )
    found = run(config, rows, options=RunOptions(progress=False, figures=False, compare=False))
    test, small = found.metrics["test"]["ensemble"], found.metrics["compressed"]
    return {
        "bound": found.fit.history[-1]["loss"],
        "error": 100 * (1 - test["accuracy"]),
        "nll": test["nll"],
        "left": 100 * small["nonzero"] / small["parameters_before"],
        "small_nll": small["test"]["nll"],
        "seconds": found.fit.seconds,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds, and standard deviations, by data set and precision."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for precision in PRECISIONS:
            ones = [r for r in rows if (r["data"], r["precision"]) == (data, precision)]
            values = [[one[column] for one in ones] for column in COLUMNS]
            lines.append([f"{data}, {precision}", *map(_spread, values)])
    return markdown(["runs", *COLUMNS.values()], lines)


def _spread(values: list[float]) -> str:
    return number(fmean(values)) + (f" ({number(stdev(values))})" if len(values) > 1 else "")


if __name__ == "__main__":
    app(prog_name="python -m pyroccam.benchmarks.precision")
