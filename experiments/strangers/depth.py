"""A learnt depth beside a fixed one, both with no options: on two small tables and on images.

    python -m pyroccam.experiments.strangers.depth --data-root FOLDER --seeds 3

Each run has a file in ``depth/``, so that a command that was stopped goes on; ``depth.md`` is
written anew of all files that are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ...inference.fits.doubts import not_arrived
from ...inference.fits.result import Fit
from ...inference.storage.checkpoint import versions, write_json
from ..reproduce import options
from ..runs.config import RunConfig, parse_settings
from ..runs.run import RunOptions, run
from .depth_table import FIXED, LEARNT, write_depths
from .sets import TESTED

__all__ = ["DATA", "coverage"]

IMAGES = "fashion-mnist"

DATA = ("uci/concrete", "uci/boston", IMAGES)
"""Sets that this package knows, and so in their own units."""

_KEPT = ("test", "structure", "pruned", "parameters", "epochs", "seconds", "warnings")


def main(
    out: options.Out = options.RESULTS / "strangers",
    data_root: options.DataRoot = None,
    seeds: options.Count = 3,
    data: Annotated[str, options.BY_COMMAS] = ",".join(DATA),
    images: Annotated[int, typer.Option(min=10, help="Rows of images to train on.")] = 8000,
    settings: options.Sets = None,
) -> None:
    """Train the same network at its deepest, and with a depth that is learnt."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # they are in the files
    asked = parse_settings(settings or [])
    for name, seed in _runs(options.listed("set", data, DATA), seeds):
        for method in (FIXED, LEARNT):
            few = {"data.n_train": images, "data.n_test": TESTED} if name == IMAGES else {}
            stem = f"{name}-{images}" if few else Path(name).name
            path = out / "depth" / f"{stem}-{method}-{seed}.json"
            if not path.exists():
                config, rows = RunConfig.resolve(
                    method, name, data_root=data_root, seed=seed, sets={**few, **asked}
                )
                silent = RunOptions(progress=False, figures=False, compare=False)
                found = run(config, rows, options=silent)
                known = {"set": name, "method": method, "seed": seed, "versions": versions()}
                write_json(path, {**known, **_said(found.fit, found.metrics)})
                print(f"{path.stem}: {found.metrics['test']}", flush=True)
    write_depths(out)


def _runs(names: list[str], seeds: int) -> Iterator[tuple[str, int]]:
    """All sets with the first seed come first; the images have no other, as they take long."""
    for seed in range(seeds):
        yield from ((name, seed) for name in names if seed == 0 or name != IMAGES)


def _said(fit: Fit, metrics: dict[str, Any]) -> dict[str, Any]:
    """What the file of a run keeps of it."""
    found = {name: metrics[name] for name in _KEPT if name in metrics}
    found["rows"] = len(fit.data.x_train) + len(fit.data.x_val)
    if fit.data.task == "regression":
        found["coverage"] = coverage(fit)
    if fit.structure is not None:
        found["arrived"] = not not_arrived(fit)
    return found


@torch.no_grad()
def coverage(fit: Fit, share: float = 0.95) -> float:
    """The part of the test targets that is in the central intervals of this share."""
    x, y = fit.data.x_test, fit.data.y_test
    each = fit.model.likelihood.below(fit.outputs(x), y).double()  # by every depth
    below = torch.einsum("s,snt->nt", fit.weights.double(), each)
    return float(((below - 0.5).abs() < share / 2).double().mean())


if __name__ == "__main__":
    typer.run(main)
