"""Run every set and network that is not there yet, and write the table and the figure anew.

    python -m experiments.trials.strangers --data-root FOLDER

Each cell, a set with a network and a seed, has two files, one of its rivals and one of the method:
a run that was stopped goes on, and another method takes the rivals that are there.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from pyroccam.cli.runs.config import parse_settings
from pyroccam.data import DataError

from ...published import options
from .cell import Cell, cells
from .differences import error_of
from .ours import add_ours
from .rivals import RIVALS, add_rivals
from .sets import SETS
from .structured import MISSING, installed
from .table import write_table


def main(
    out: options.Out = options.RESULTS / "strangers",
    data_root: options.DataRoot = None,
    seeds: options.Count = 3,
    method: Annotated[str, typer.Option(help="A method over the weights of any network.")] = "gnj",
    sets: Annotated[str, typer.Option(help="Separated by commas; all if left out.")] = "",
    networks: Annotated[str, typer.Option(help="Separated by commas; all if left out.")] = "",
    half: Annotated[str, typer.Option(help="tuned, kept, or both.")] = "both",
    rivals: Annotated[
        str, typer.Option(help="That prune the ordinary network, by commas; none for none.")
    ] = ",".join(RIVALS),
    only: Annotated[
        Literal["rivals", "ours", "both"], typer.Option(help="The part of a cell that is run.")
    ] = "both",
    settings: options.Sets = None,
    files: Annotated[Path, typer.Option(help="Folder of the sets, as files.")] = Path("strangers"),
) -> None:
    """Train each network on each set as everybody does, and by the method with no options."""
    against = [] if rivals == "none" else options.listed("rival", rivals, RIVALS)
    if only != "ours" and "channels" in against and not installed():
        typer.echo(MISSING, err=True)
        raise typer.Exit(1)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of networks and sets that are meant to be odd
    chosen = options.listed("set", sets, SETS) if sets else list(SETS)
    chosen = [name for name in chosen if _there(name, files, data_root)]
    asked = parse_settings(settings or [])
    for cell in cells(chosen, networks, half, seeds, files, data_root):
        name = f"{cell.stem}.json"
        if only != "ours":
            _say(cell, add_rivals(cell, out / "rivals" / name, against))
        if only != "rivals":
            _say(cell, add_ours(cell, out / method / name, method, asked))
    write_table(out, method)


def _there(name: str, files: Path, data_root: str | None) -> bool:
    """Whether there is a set, which is written as a file; one that is not is passed over."""
    try:
        SETS[name].write(files / f"{name}.npz", data_root)
    except DataError as error:
        print(f"{name} is passed over: {error}", flush=True)
        return False
    return True


def _say(cell: Cell, part: dict[str, Any] | None) -> None:
    """A line of a part that was run."""
    if part is None:
        return
    if "ordinary" in part:
        said = f"ordinary {_tested(part['ordinary']['test'])}"
        reasons = [str(part[f"not_{key}"]) for key, _ in RIVALS.values() if f"not_{key}" in part]
        said = "; ".join([said, *reasons])
    elif (small := part.get("ours", {}).get("compressed")) is None:
        said = str(part.get("failed") or part["ours"].get("not_compressed"))
    else:
        left = small["nonzero"] / small["parameters_before"]
        said = f"ours {_tested(small['test'])}, {left:.0%} left"
    print(f"{cell.stem}: {said}", flush=True)


def _tested(test: dict[str, float]) -> str:
    return f"error {error_of(test):.4f}, nll {test['nll']:.3f}"


if __name__ == "__main__":
    typer.run(main)
