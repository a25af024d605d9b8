"""How long one optimiser step takes: ours beside plain torch, Pyro and other libraries.

    python -m benchmarks.steps mlp-d20-b200 lenet
    python -m benchmarks.steps --report

Contenders take turns in rounds, so that what disturbs the machine disturbs them alike; reported
are medians and quartiles over rounds, and ratios to the base within a round. All of a workload
must start with the same loss.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from pyroccam.inference.figures import save
from pyroccam.inference.training.fitting import pick_device
from rich.console import Console

from .cache import empty_cache
from .figures import bars
from .harness import Workload, measure
from .machine import describe, folder_name
from .report import read_folder, table, write
from .workloads.table import WORKLOADS, find

RESULTS = Path("benchmarks/results")

# Options of all these scripts.
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
DeviceName = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")]
ReportOnly = Annotated[
    bool, typer.Option("--report", help="Measure nothing: show what is in the files.")
]
Out = Annotated[Path, typer.Option(help="Results go to a folder in it, named after the device.")]

_ABOUT = "\n\n".join(f"{name}: {entry.title}." for name, entry in WORKLOADS.items())

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)


@app.command(
    help="Measure how long one optimiser step takes, for every contender of a workload; write one "
    "JSON file for each workload and a figure of all of them, and print tables in Markdown.\n\n"
    f"Workloads:\n\n{_ABOUT}"
)
def main(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="Which to measure; all if left out.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Turns of each contender; by workload if left out.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Timed steps in a turn; by workload if left out.")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Steps before the first round; by workload.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Only contenders with one of these in their name, separated by semicolons; the "
            "base always.",
            metavar="TEXT;...",
        ),
    ] = None,
    threads: Threads = 1,
    device: DeviceName = "cpu",
    out: Out = RESULTS,
    keep_cache: Annotated[
        bool,
        typer.Option(
            "--keep-cache", help="Use the compiler's cache of earlier runs, not an empty one."
        ),
    ] = False,
    report: ReportOnly = False,
) -> None:
    torch.set_num_threads(threads)
    where = pick_device(device)
    names = workloads or list(WORKLOADS)
    try:  # a wrong name fails before anything runs
        entries = {name: find(name) for name in names}
        made = {n: select(e.make(n, e.title, where), only) for n, e in entries.items()}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    folder = out / folder_name(where)
    asked = {"rounds": rounds, "steps": steps, "warmup": warmup}
    chosen = {k: v for k, v in asked.items() if v is not None}
    if not report:
        with nullcontext() if keep_cache else empty_cache():
            for name, entry in entries.items():
                console.rule(name)
                plan = replace(entry.plan, **chosen)
                machine = describe(where)
                write(measure(made[name], plan, where, machine, console.print), folder)
    found = read_folder(folder, list(WORKLOADS))
    if found:
        save(bars(found), folder / "steps")
    for one in found:
        if one.name in entries:
            print(table(one), end="\n\n")


def select(workload: Workload, only: str | None) -> Workload:
    """Some of the contenders, and the base.

    Raises:
        ValueError: if none has such a name.
    """
    if only is None:
        return workload
    parts = [part.strip() for part in only.split(";")]
    kept = [
        c
        for c in workload.contenders
        if c.name == workload.base or any(part in c.name for part in parts)
    ]
    if not any(part in c.name for part in parts for c in kept):
        raise ValueError(
            f"No contender of {workload.name} has {only!r} in its name; it has "
            + "; ".join(c.name for c in workload.contenders)
        )
    return replace(workload, contenders=kept)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.steps")
