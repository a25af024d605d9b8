"""``pyroccam sweep``: every combination of settings, each a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...data import Between
from .. import STOPPED, need_folder
from .application import Device, Root, app, console

Number = Annotated[int, Between(1, 1024)]


@app.command()
def sweep(
    method: str,
    *,
    sweep_: Annotated[list[str], "KEY=VALUE,VALUE,..."],
    data: str = "spirals",
    network: str | None = None,
    data_root: Root = None,
    budget: Annotated[str | None, "LENGTH"] = None,
    set_: Annotated[list[str] | None, "KEY=VALUE"] = None,
    compare: bool = True,
    figures: bool = True,
    workers: Number | None = None,
    threads: Number = 1,
    device: Device = "auto",
    out: Path | None = None,
) -> None:
    """Train many runs, over all combinations of settings. The same command goes on, whoever was
    killed; nothing is trained twice.

    Arguments:
        method: As of `pyroccam fit`.
        sweep_: Values of a setting, or of seed, method, data, network or budget, e.g. --sweep
            lr=0.1,0.01 --sweep seed=0,1,2; every combination is run.
        data: As of `pyroccam fit`.
        network: As of `pyroccam fit`.
        budget: Length of each run, as of `pyroccam fit`.
        set_: A setting that all runs share.
        compare: As of `pyroccam fit`.
        figures: As of `pyroccam fit`.
        workers: Processes on this machine; by its CUDA devices, or by its cores without any, if
            left out.
        threads: CPU threads of each.
        out: Folder of the sweep; runs/sweep-METHOD-DATA if left out.
    """
    from ..runs import parse_settings
    from ..sweeps import Asked, parse_lists, run_sweep, trials_of

    need_folder(out)
    out = out or Path("runs") / f"sweep-{method}-{Path(data).stem[:40]}"
    asked = Asked(method, data, network, data_root, budget, parse_settings(set_ or []))
    options = [] if compare else ["--no-compare"]
    options += [] if figures else ["--no-figures"]
    ended = run_sweep(
        console, out, trials_of(asked, parse_lists(sweep_)), options=options,
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
