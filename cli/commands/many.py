"""``pyroccam sweep``: every combination of settings, each a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import STOPPED, need_folder
from .application import Device, Root, app, console


@app.command()
def sweep(
    method: Annotated[str, typer.Argument(help="As of `pyroccam fit`.")],
    lists: Annotated[
        list[str],
        typer.Option("--sweep", help="Values of a setting, or of seed, method, data, network or "
                     "budget, e.g. --sweep lr=0.1,0.01 --sweep seed=0,1,2; every combination is "
                     "run.", metavar="KEY=VALUE,VALUE,..."),
    ],
    data: Annotated[str, typer.Option(help="As of `pyroccam fit`.")] = "spirals",
    network: Annotated[str | None, typer.Option(help="As of `pyroccam fit`.")] = None,
    data_root: Root = None,
    budget: Annotated[
        str | None, typer.Option(help="Length of each run, as of `pyroccam fit`.", metavar="LENGTH")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting that all runs share.", metavar="KEY=VALUE"),
    ] = None,
    compare: Annotated[bool, typer.Option(help="As of `pyroccam fit`.")] = True,
    figures: Annotated[bool, typer.Option(help="As of `pyroccam fit`.")] = True,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes on this machine; by its CUDA devices, or by "
                     "its cores without any, if left out."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads of each.")] = 1,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the sweep; runs/sweep-METHOD-DATA if left out.")
    ] = None,
) -> None:  # fmt: skip
    """Train many runs, over all combinations of settings. The same command goes on, whoever was
    killed; nothing is trained twice."""
    from ..runs import parse_settings
    from ..sweeps import Asked, parse_lists, run_sweep, trials_of

    need_folder(out)
    out = out or Path("runs") / f"sweep-{method}-{Path(data).stem[:40]}"
    asked = Asked(method, data, network, data_root, budget, parse_settings(sets or []))
    options = [] if compare else ["--no-compare"]
    options += [] if figures else ["--no-figures"]
    ended = run_sweep(
        console, out, trials_of(asked, parse_lists(lists)), options=options,
        workers=workers, threads=threads, device=device,
    )  # fmt: skip
    console.say("Written to ", (str(out), "bold"), f"; {out}/results.csv")
    if ended.left:
        console.say(("Stopped.", "yellow"), f" {ended.left:,} runs are left; the same command goes "
                    "on with them.")  # fmt: skip
        raise typer.Exit(STOPPED)
    console.say(f"Next: pyroccam report {out}")
    if ended.failed:
        raise typer.Exit(1)
