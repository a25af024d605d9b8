"""A learnt depth beside a fixed one, both with no options: on two small tables and on images, or
on other sets of strangers.

    python -m experiments.trials.strangers.depth --again --data-root FOLDER --seeds 3

Each run has a file in ``depth/``, so that a command that was stopped goes on; ``depth.md`` is
written anew of all files that are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyroccam.cli.runs.execution import RunOptions, run
from pyroccam.inference.training.doubts import not_arrived
from pyroccam.inference.training.result import Fit

from ...published.markdown import header, read_all, row
from ...published.runner import Choice, File, Given, Made, Row, Spec, resolve
from .sets import SETS, TESTED

__all__ = ["SPEC", "coverage", "text_of"]

FIXED, LEARNT = "ddn", "ldn"

Run = dict[str, Any]

_NOTE = (
    f"`{FIXED}` is the network at its deepest, `{LEARNT}` the same one with a depth that is learnt."
    " Errors are RMSE, or accuracy where they have a %; NLL is in nats and original units;"
    " coverage is of the central 95 % intervals. Of q(d) the total variation is shown from the"
    " running estimate, by which weights are trained, to the exact posterior."
)

IMAGES = "fashion-mnist"

_KEPT = ("test", "structure", "pruned", "parameters", "epochs", "seconds", "warnings")


def files(given: Given) -> Iterable[File]:
    """One of each set, method and seed. All sets with the first seed come first; the images have no
    other, as they take long."""
    warnings.simplefilter("ignore")  # they are in the files
    for seed in range(given.seeds):
        for name in (name for name in given.data if seed == 0 or name != IMAGES):
            few = {"data.n_train": given.images, "data.n_test": TESTED} if name == IMAGES else {}
            stem = f"{name}-{given.images}" if few else Path(name).name
            for method in (FIXED, LEARNT):
                run_one = partial(_run, name, method, seed, given, few)
                yield File(f"depth/{stem}-{method}-{seed}", {}, run_one)


def _run(name: str, method: str, seed: int, given: Given, few: Row) -> Row:
    """The same network at its deepest, or with a depth that is learnt."""
    sets = {**few, **given.set}
    stranger = SETS.get(name)
    source = name
    if stranger is not None:
        source = str(stranger.write(Path(given.files) / f"{name}.npz", given.data_root))
        sets |= {f"data.{key}": value for key, value in stranger.options.items()}
    config, rows = resolve(method, source, seed, data_root=given.data_root, sets=sets)
    found = run(config, rows, options=RunOptions(progress=False, compare=False))
    known = {"set": name, "method": method, "seed": seed}
    return known | _said(found.fit, found.metrics)


def drawn(given: Given) -> Mapping[str, Made]:
    """The table."""
    return {"depth.md": lambda: text_of(read_all(given.out / "depth").values())}


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


def text_of(found: Iterable[Run]) -> str:
    """The table of the files, pair by pair; others are left out."""
    runs: dict[tuple[str, int, int], dict[str, Run]] = {}
    for one in found:
        runs.setdefault((one["set"], one["rows"], one["seed"]), {})[one["method"]] = one
    lines = header(
        "set", "rows", "seed", f"error: {FIXED}", LEARNT, f"NLL: {FIXED}", LEARNT,
        f"coverage, %: {FIXED}", LEARNT, "depth", "q(d)", "left, %", f"seconds: {FIXED}", LEARNT,
    )  # fmt: skip
    for key, pair in sorted(runs.items()):
        if pair.keys() == {FIXED, LEARNT}:
            lines.append(row(*key, *_cells(pair[FIXED], pair[LEARNT])))
    return "\n".join([*lines, "", _NOTE]) + "\n"


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


SPEC = Spec(
    "experiments.trials.strangers.depth", "Depth of strangers", "strangers",
    {
        "data_root": str, "data": Choice(("uci/concrete", "uci/boston", IMAGES, *SETS),
        ("uci/concrete", "uci/boston", IMAGES)), "images": 8000, "files": "strangers", "set": {},
    },
    files, lambda folder: [], drawn,
    small="--data spirals --seeds 1 --set epochs=2",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
