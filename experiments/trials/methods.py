"""Every method on the same rows with no options: what a run takes, and which network it hands back
beside an ordinary training of the same one.

    python -m experiments.trials.methods --again [--data DATA]

Methods of depth have a stack of their own and `structure` a graph; the others one network.
`transfer` is left out, as it begins with a network that somebody has trained.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

from pyroccam.cli.requests import METHOD_NAMES
from pyroccam.cli.runs.execution import RunOptions, run
from pyroccam.cli.runs.tables import Network, networks

from ..published.markdown import column, header, mean_sd, read_all, row
from ..published.runner import Choice, File, Given, Made, Row, Spec, resolve

__all__ = ["SPEC"]

METHODS = [name for name in METHOD_NAMES if name != "transfer"]

ORDINARY = "plain network", "chosen structure, afresh"
"""How tables of runs call what is trained as everybody trains."""


def files(given: Given) -> Iterable[File]:
    """One of each method and seed."""
    warnings.simplefilter("ignore")  # they are in the files
    for seed in range(given.seeds):
        for method in given.methods:
            yield File(f"{method}-{seed}", {}, partial(_run, method, seed, given))


def _run(method: str, seed: int, given: Given) -> Row:
    """A run as `pyroccam fit` makes it, without figures, and its processor time."""
    begun = time.process_time()
    config, rows = resolve(
        method, given.data, seed, data_root=given.data_root, sets=dict(given.set)
    )
    metrics = run(config, rows, options=RunOptions(progress=False)).metrics
    seconds = time.process_time() - begun
    timed = ("engine", "learnt", "seconds_by_batch")
    kept = {name: value for name, value in metrics.items() if name not in timed}
    return {**kept, "method": method, "seed": seed, "seconds": seconds}


def table(folder: Path) -> Iterable[str]:
    """A row for each method, with means over its seeds."""
    runs: dict[str, list[Row]] = {}
    for one in read_all(folder).values():
        runs.setdefault(one["method"], []).append(one)
    if not runs:
        return
    yield from header(
        "method", "seeds", "processor time, s", "error, %: plain", "handed back", "NLL: plain",
        "handed back", "numbers in tensors, %", "not zero, %", "file, bytes",
    )  # fmt: skip
    for method in (name for name in METHODS if name in runs):
        seeds = runs[method]
        found = networks(seeds)
        plain = next((one for one in found if one.name.startswith(ORDINARY)), None)
        back = next((one for one in found if one.kind == "small"), plain or found[0])
        whole = fmean(found[0].parameters)
        shares = [100 * size / whole for size in back.parameters]
        filled = [100 * n / whole for n in column(seeds, "compressed/nonzero")]
        size = column(seeds, "structure/file_bytes")
        yield row(
            f"`{method}`", len(seeds), f"{fmean(one['seconds'] for one in seeds):.0f}",
            *(_mean(one, "accuracy") for one in (plain, back)),
            *(_mean(one, "nll") for one in (plain, back)),
            mean_sd(shares, 0), mean_sd(filled, 0), mean_sd(size, 0),
        )  # fmt: skip


def drawn(given: Given) -> Mapping[str, Made]:
    """The table, for the documentation."""
    return {"table.md": lambda: "\n".join([*table(given.out), ""])}


def _mean(network: Network | None, name: str) -> str:
    """Of a metric on the test rows, over seeds; the accuracy as an error in percent."""
    if network is None:
        return ""
    values = [test[name] for test in network.test]
    return mean_sd([100 * (1 - v) for v in values], 2) if name == "accuracy" else mean_sd(values, 3)


SPEC = Spec(
    "experiments.trials.methods", "Methods", "methods",
    {"data_root": str, "data": "digits", "methods": Choice(METHODS), "set": {}},
    files, table, drawn,
    small="--methods bayes,ddn --seeds 1 --set epochs=1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
