"""Two roundings of the same networks on the sets of strangers: digits, and multiples of a step.

    python -m experiments.trials.rounding --data-root FOLDER

Each cell, a set with a network and a seed, is fitted with no options, and the network that the
method hands back is written twice: with as many digits as the posterior knows
(``significand="relative"``), and as whole multiples of one step a layer (``"rate"``). A cell that
is there is kept.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.methods import find
from pyroccam.cli.methods.weights import OverWeights, compress_run, cut_of
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.cli.runs.run import RunOptions, run
from pyroccam.data import DataError
from pyroccam.inference import Digits, Search, Steps
from pyroccam.inference.training.settings import Settings

from ..published import options
from ..published.runner import ResultFile, Row
from .strangers.cell import NETWORKS, Cell, cells
from .strangers.differences import error_of
from .strangers.sets import SETS

__all__ = ["RULES", "main"]

RULES = ("relative", "rate")


def main(
    out: options.Out = options.RESULTS / "rounding",
    data_root: options.DataRoot = None,
    seeds: options.Count = 1,
    method: Annotated[str, typer.Option(help="A method over the weights of any network.")] = "gnj",
    sets: Annotated[str, typer.Option(help="Separated by commas; all if left out.")] = "",
    networks: Annotated[str, typer.Option(help="Separated by commas; all if left out.")] = "",
    settings: options.Sets = None,
    files: Annotated[Path, typer.Option(help="Folder of the sets, as files.")] = Path("strangers"),
) -> None:
    """Fit each network on each set, and write what is left of it by both rules."""
    if not isinstance(find(method), OverWeights):
        raise typer.BadParameter(
            f"--method {method} has no random weights to round: expected a method over the weights "
            "of any network, such as gnj."
        )
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of networks and sets that are meant to be odd
    asked = parse_settings(settings or [])
    file = ResultFile(out / f"{method}.json", config={"method": method, "settings": asked})
    chosen = options.listed("set", sets, SETS) if sets else list(SETS)
    done = {(r["set"], r["network"], r["seed"]) for r in file.runs}
    for cell in cells(chosen, networks, "both", seeds, files, data_root):
        if (cell.name, cell.network, cell.seed) in done:
            continue
        try:
            row = _row(cell, method, asked)
        except DataError as error:
            print(f"{cell.stem} is passed over: {error}", flush=True)
            continue
        file.runs.append(row)
        file.write()
        print(f"{cell.stem}: {_said(row)}", flush=True)


def _row(cell: Cell, method: str, asked: dict[str, Any]) -> Row:
    """Bytes, error and negative log-likelihood of the test rows by each rule; or why there are
    none."""
    own = {f"data.{key}": value for key, value in cell.stranger.options.items()}
    config, data = RunConfig.resolve(
        method,
        str(cell.source()),
        network=f"{NETWORKS}:{cell.network}",
        seed=cell.seed,
        sets={**own, **asked},
    )
    chosen: Any = config.chosen
    epochs = chosen.retrain_epochs(Settings.of(config.settings), data.N)
    row: Row = cell.said
    try:
        silent = RunOptions(progress=False, figures=False, compare=False)
        fit = run(config, data, options=silent).fit
        for rule in RULES:
            with TemporaryDirectory() as scratch:
                cut = cut_of(fit, chosen.threshold, chosen.tolerance, epochs)
                own = {"rest": True, "epochs": 0 if isinstance(cut, Search) else epochs}
                code = Steps(**own) if rule == "rate" else Digits(**own)
                small, found = compress_run(fit, cut, Path(scratch) / "small.pocc", code)
            test = found["test"]
            row[rule] = {
                "bytes": found["file_bytes"],
                "weight_bytes": found["weight_bytes"],
                "error": error_of(test),
                "nll": test["nll"],
                "nonzero": small.report.nonzero,
            }
    except (ValueError, RuntimeError, TypeError) as error:  # a cell that fails is a result, too
        row["failed"] = f"{type(error).__name__}: {error}"
    return row


def _said(row: Row) -> str:
    if "failed" in row:
        return str(row["failed"])
    return "; ".join(
        f"{rule} {row[rule]['bytes']:,} bytes, error {row[rule]['error']:.4f}, nll "
        f"{row[rule]['nll']:.3f}"
        for rule in RULES
    )


if __name__ == "__main__":
    typer.run(main)
