"""A learnt depth beside a fixed one, both with no options: on two small tables and on images.

    python -m experiments.trials.strangers.depth --data-root FOLDER --seeds 3

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
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.cli.runs.run import RunOptions, run
from pyroccam.inference.fits.doubts import not_arrived
from pyroccam.inference.fits.result import Fit
from pyroccam.inference.storage.checkpoint import versions, write_json
from pyroccam.inference.storage.whole import write_whole

from ...published import options
from ...published.markdown import header, read_all, row
from .sets import TESTED

__all__ = ["DATA", "FIXED", "LEARNT", "coverage", "write_depths"]

FIXED, LEARNT = "ddn", "ldn"

Run = dict[str, Any]

_NOTE = (
    f"`{FIXED}` is the network at its deepest, `{LEARNT}` the same one with a depth that is learnt."
    " Errors are RMSE, or accuracy where they have a %; NLL is in nats and original units;"
    " coverage is of the central 95 % intervals. Of q(d) the total variation is shown from the"
    " running estimate, by which weights are trained, to the exact posterior."
)

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


def write_depths(out: Path) -> None:
    """Write ``depth.md`` of the files in ``depth/``, pair by pair; others are left out."""
    runs: dict[tuple[str, int, int], dict[str, Run]] = {}
    for one in read_all(out / "depth").values():
        runs.setdefault((one["set"], one["rows"], one["seed"]), {})[one["method"]] = one
    lines = header(
        "set", "rows", "seed", f"error: {FIXED}", LEARNT, f"NLL: {FIXED}", LEARNT,
        f"coverage, %: {FIXED}", LEARNT, "depth", "q(d)", "left, %", f"seconds: {FIXED}", LEARNT,
    )  # fmt: skip
    for key, pair in sorted(runs.items()):
        if pair.keys() == {FIXED, LEARNT}:
            lines.append(row(*key, *_cells(pair[FIXED], pair[LEARNT])))
    text = "\n".join([*lines, "", _NOTE]) + "\n"
    write_whole(out / "depth.md", lambda file: file.write(text), "w")


def _cells(fixed: Run, learnt: Run) -> list[object]:
    """A row of the table, but for what was trained on."""
    both = (fixed, learnt)
    structure, small = learnt["structure"], learnt["pruned"]
    deepest = len(structure["depth_probs"]) - 1
    return [
        *map(_error, both),
        *(f"{one['test']['nll']:.3f}" for one in both),
        *(f"{100 * one['coverage']:.0f}" if "coverage" in one else "" for one in both),
        f"{structure['depth_chosen']} of {deepest}",
        _arrival(learnt),
        f"{100 * small['parameters'] / small['parameters_before']:.0f}",
        *(f"{one['seconds']:.0f}" for one in both),
    ]


def _error(one: Run) -> str:
    test = one["test"]
    return f"{100 * test['accuracy']:.1f} %" if "accuracy" in test else f"{test['rmse']:.3f}"


def _arrival(learnt: Run) -> str:
    """How far q(d) is from the exact posterior, and whether that is near."""
    structure = learnt["structure"]
    running = structure["tv_running"]
    apart = structure["tv_to_exact"] if running is None else running
    return f"{apart:.2f}" if learnt["arrived"] else f"{apart:.2f}, not arrived"


if __name__ == "__main__":
    typer.run(main)
