"""``pyroccam sweep``: every combination of settings, each a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...data import Between
from .. import STOPPED, ExecutionOptions, RunRequest, need_folder
from .application import app, console

Number = Annotated[int, Between(1, 1024)]


@app.command()
def sweep(
    request: RunRequest,
    *,
    sweep_: Annotated[list[str], "KEY=VALUE,VALUE,..."],
    workers: Number | None = None,
    threads: Number = 1,
    scheduler: str | None = None,
    execution: ExecutionOptions,
    out: Path | None = None,
) -> None:
    """Train many runs, over all combinations of settings. The same command goes on, whoever was
    killed; nothing is trained twice.

    Arguments:
        sweep_: Values of a setting, or of seed, method, data, network or budget, e.g. --sweep
            lr=0.1,0.01 --sweep seed=0,1,2; every combination is run.
        workers: Processes at once; by the CUDA devices of this machine, or by its cores without
            any, if left out.
        threads: CPU threads of each.
        scheduler: Of Dask, tcp://... or tls://..., whose workers see the folder of the sweep: the
            processes are theirs, one for each of their threads.
        out: Folder of the sweep; runs/sweep-METHOD-DATA if left out.
    """
    from ..sweeps import parse_lists, run_sweep, trials_of

    need_folder(out)
    out = out or Path("runs") / f"sweep-{request.method}-{Path(request.data).stem[:40]}"
    options = [f"--no-{name}" for name, wanted in vars(execution).items() if wanted is False]
    ended = run_sweep(
        console, out, trials_of(request, parse_lists(sweep_)), options=options,
        workers=workers, threads=threads, device=execution.device, scheduler=scheduler,
    )  # fmt: skip
    console.say("Written to ", (str(out), "bold"), f"; {out}/results.csv")
    if ended.left:
        console.say(("Stopped.", "yellow"), f" {ended.left:,} runs are left; the same command goes "
                    "on with them.")  # fmt: skip
        raise typer.Exit(STOPPED)
    console.say(f"Next: pyroccam report {out}")
    if ended.failed:
        raise typer.Exit(1)
