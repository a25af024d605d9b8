"""Run every set and network that is not there yet, and write the table and the figure anew.

    python -m pyroccam.experiments.strangers --data-root FOLDER

Each cell, a set with a network and a seed, is a file of its own: a run that was stopped goes on.
"""

from __future__ import annotations

import importlib
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from ... import data as datasets
from ...inference.storage.checkpoint import versions, write_json
from ...models.contexts import seeded
from ..reproduce import options
from ..runs.config import RunConfig, parse_settings
from ..runs.run import RunOptions, run
from .ordinary import Trained, prune_by_magnitude, search
from .sets import SETS, Stranger
from .table import write_table

NETWORKS = f"{__package__}.networks"


def main(
    out: options.Out = options.RESULTS / "strangers",
    data_root: options.DataRoot = None,
    seeds: options.Count = 3,
    method: Annotated[str, typer.Option(help="A method over the weights of any network.")] = "gnj",
    sets: Annotated[str, typer.Option(help="Separated by commas; all if left out.")] = "",
    networks: Annotated[str, typer.Option(help="Separated by commas; all if left out.")] = "",
    half: Annotated[str, typer.Option(help="tuned, kept, or both.")] = "both",
    rivals: Annotated[bool, typer.Option(help="Prune by magnitude, too.")] = True,
    settings: options.Sets = None,
    files: Annotated[Path, typer.Option(help="Folder of the sets, as files.")] = Path("strangers"),
) -> None:
    """Train each network on each set as everybody does, and by the method with no options."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of networks and sets that are meant to be odd
    chosen = options.listed("set", sets, SETS) if sets else list(SETS)
    for seed in range(seeds):
        for name in chosen:
            one = SETS[name]
            if half not in (one.half, "both"):
                continue
            for network in one.networks:
                if networks and network not in networks.split(","):
                    continue
                path = out / method / f"{name}-{network}-{seed}.json"
                if not path.exists():
                    source = one.write(files / f"{name}.npz", data_root)
                    asked = parse_settings(settings or [])
                    cell = _cell(one, source, network, seed, method, asked, rivals)
                    write_json(path, {"set": name, "half": one.half, **cell})
                    print(_line(path.stem, cell), flush=True)
    write_table(out, method)


def _cell(
    one: Stranger,
    source: Path,
    network: str,
    seed: int,
    method: str,
    asked: dict[str, Any],
    rivals: bool,
) -> dict[str, Any]:
    """One set with one network and seed."""
    rows = datasets.load(str(source), seed=seed, **one.options)
    builder = getattr(importlib.import_module(NETWORKS), network)

    def make() -> nn.Module:
        with seeded(seed, torch.device("cpu")):
            made: nn.Module = builder(rows.input_shape, rows.outputs)
        return made

    ordinary = search(make, rows, seed)
    found: dict[str, Any] = {
        "network": network,
        "seed": seed,
        "rows": len(rows.x_train),
        "task": rows.task,
        "parameters": sum(p.numel() for p in make().parameters()),
        "ordinary": _said(ordinary),
    }
    if rivals:
        pruned = prune_by_magnitude(ordinary, rows, seed)
        found["pruned"] = [_said(net) for net in pruned]
    begun = time.perf_counter()
    data_options = {f"data.{key}": value for key, value in one.options.items()}
    try:
        config, data = RunConfig.resolve(
            method,
            str(source),
            network=f"{NETWORKS}:{network}",
            seed=seed,
            sets={**data_options, **asked},
        )
        silent = RunOptions(progress=False, figures=False, compare=False)
        metrics = run(config, data, options=silent).metrics
    except (ValueError, RuntimeError, TypeError) as error:  # a cell that fails is a result, too
        return {**found, "failed": f"{type(error).__name__}: {error}", "versions": versions()}
    kept = ("test", "numbers", "compressed", "structure", "not_compressed", "warnings", "epochs")
    ours = {name: metrics[name] for name in kept if name in metrics}
    ours["seconds"] = time.perf_counter() - begun
    return {**found, "ours": ours, "versions": versions()}


def _said(one: Trained) -> dict[str, Any]:
    return {"val_nll": one.val_nll, "test": one.test, "seconds": one.seconds, "left": one.left}


def _line(name: str, cell: dict[str, Any]) -> str:
    first = cell["ordinary"]["test"]
    key = "accuracy" if "accuracy" in first else "rmse"
    said = f"{name}: ordinary {key} {first[key]:.4f}, nll {first['nll']:.3f}"
    small = cell.get("ours", {}).get("compressed")
    if small is None:
        return f"{said}; {cell.get('failed') or cell['ours'].get('not_compressed')}"
    ours, left = small["test"], small["nonzero"] / small["parameters_before"]
    return f"{said}; ours {ours[key]:.4f}, {ours['nll']:.3f}, {left:.0%} left"


if __name__ == "__main__":
    typer.run(main)
