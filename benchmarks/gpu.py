"""What a step takes on a GPU: ours beside steps written by hand, in a few minutes.

    python -m benchmarks.gpu

Run it from the root of a checkout. Contenders are those of ``benchmarks.steps``; those that are
compiled come last, as many as there is time for. The CUDA graphs of ``torch.compile`` are left out:
beside recorded steps of ours, in one process, memory was accessed illegally.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.inference.training.fitting import pick_device
from rich.console import Console

from .cache import empty_cache
from .harness import Plan, Report, measure, wake_compiler
from .machine import describe
from .report import table
from .workloads.table import find

NAMES = ("mlp-d20-b200", "lenet", "lenet-gnj", "conv-d10")
# By what they are worth where time is short.
CONTENDERS = (
    "torch deterministic", "hand-written eager", "hand-written",
    "hand-written eager loop over depths", "pyroccam eager", "pyroccam traced",
    "pyroccam compiled", "hand-written compiled", "hand-written, compiled",
)  # fmt: skip

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)


@app.command(help="Measure steps on a GPU, write gpu.json and print tables in Markdown.")
def main(
    workloads: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(NAMES)}; all if left out.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cuda:<n> or cpu.")] = "cuda",
    out: Annotated[Path, typer.Option(help="Folder of gpu.json.")] = Path("."),
    seconds: Annotated[float, typer.Option(help="About how long all of it may take.")] = 200.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender, at most.")] = 15,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps in a turn.")] = 20,
) -> None:
    where = pick_device(device)
    machine = describe(where)
    torch.ones(64, 64, device=where).square().mm(torch.ones(64, 64, device=where))  # a workspace
    plan = Plan(rounds, steps)
    end = time.perf_counter() + seconds
    reports: list[Report] = []
    with empty_cache():
        wake_compiler(where)
        names = workloads or NAMES
        for i, name in enumerate(names):
            console.rule(name)
            now = time.perf_counter()
            until = now + (end - now) / (len(names) - i)
            try:
                made = find(name).make(name, find(name).title, where)
                known = {c.name: c for c in made.contenders}
                made = replace(made, contenders=[known[n] for n in CONTENDERS if n in known])
                reports.append(measure(made, plan, where, machine, console.print, until))
            except Exception:
                console.print_exception()
            write_json(out / "gpu.json", [report.to_json() for report in reports])
    for report in reports:
        print(table(report), end="\n\n")


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.gpu")
