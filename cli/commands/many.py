"""``pyroccam sweep``, and what is said of the runs of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..boundary import STOPPED
from ..places import need_folder
from .application import Device, Root, app, console

if TYPE_CHECKING:
    from ..sweeps.command import Request

__all__ = ["sweep", "train_all"]


@app.command()
def sweep(
    what: Annotated[
        str,
        typer.Argument(help="A method; a .yaml file with what all runs share and the lists of what "
                       "differs; or the folder of a sweep, to go on with it or to join it from "
                       "another machine.", metavar="METHOD|FILE|FOLDER"),
    ],
    lists: Annotated[
        list[str] | None,
        typer.Option("--sweep", help="Values of a setting, or of seed, method, data, network or "
                     "budget, e.g. --sweep lr=0.1,0.01 --sweep seed=0,1,2; every combination is "
                     "run.", metavar="KEY=VALUE,VALUE,..."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="As of `pyroccam fit`.")] = None,
    network: Annotated[str | None, typer.Option(help="As of `pyroccam fit`.")] = None,
    data_root: Root = None,
    budget: Annotated[
        str | None, typer.Option(help="Length of each run, as of `pyroccam fit`.", metavar="LENGTH")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting that all runs share.", metavar="KEY=VALUE"),
    ] = None,
    compare: Annotated[
        bool | None,
        typer.Option("--compare/--no-compare", help="As of `pyroccam fit`; yes if left out."),
    ] = None,
    figures: Annotated[
        bool | None,
        typer.Option("--figures/--no-figures", help="Draw those of each run; yes if left out."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes on this machine; by its CUDA devices, or by "
                     "its cores without any, if left out."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads of each.")] = 1,
    device: Device = "auto",
    storage: Annotated[
        str | None,
        typer.Option(help="Address of a database for many machines: "
                     "postgresql://user@host/database, or journal:FILE on a shared disk. A file in "
                     "--out if left out.", metavar="ADDRESS"),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also try the runs that failed.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the sweep; runs/<name> if left out.")
    ] = None,
) -> None:  # fmt: skip
    """Train many runs, over all combinations of settings. The same command goes on, whoever was
    killed; nothing is trained twice."""
    from ..sweeps.command import read_request
    from ..sweeps.store import refuse_missing

    refuse_missing()
    need_folder(out)
    given = {"data": data, "network": network, "data_root": data_root, "budget": budget,
             "compare": compare, "figures": figures}  # fmt: skip
    request = read_request(what, given, sets or [], lists or [], out)
    train_all(
        request, workers=workers, threads=threads, device=device, storage=storage,
        again=retry_failed,
    )  # fmt: skip


def train_all(request: Request, **how: Any) -> None:
    """Have all runs of a sweep trained, and say what became of them."""
    from ..sweeps.command import run_sweep

    ended = run_sweep(console, request, **how)
    for name, why in ended.failed.items():
        console.say(("Failed: ", "red"), f"{name}: {why}")
    console.say("Written to ", (str(request.folder), "bold"), f"; {request.folder}/results.csv")
    if ended.left:
        console.say(("Stopped.", "yellow"), f" {ended.left:,} runs are left; the same command goes "
                    "on with them.")  # fmt: skip
        raise typer.Exit(STOPPED)
    console.say(f"Next: pyroccam report {request.folder}")
    if ended.failed:
        raise typer.Exit(1)
