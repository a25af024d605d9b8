r"""One network before and after: as everybody trains it, and what ``pyroccam fit gnj`` hands back.

    python -m experiments before_after --again --data mnist --data-root FOLDER --network \
        lenet-300-100

The first table of the README. Before is the best of three ordinary trainings on the validation
rows, which the run has beside it, with four bytes a parameter; after is the file that it leaves.
Times are of both, in turns, in the same process; of several seeds the median.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from pyroccam.cli.runs.execution import RunOptions, run

from .markdown import column, header, plus_minus, read_all, row
from .runner import File, Given, Row, Spec, resolve, seeds

__all__ = ["SPEC"]


def files(given: Given) -> Iterable[File]:
    """One of each data set and network."""
    config, _ = resolve("gnj", given.data, **_how(given))

    def run_one(seed: int) -> Row:
        found, data = resolve("gnj", given.data, seed, **_how(given))
        return kept(run(found, data, options=RunOptions(device="cpu")).metrics)

    name = given.data if given.network is None else f"{given.data}-{given.network}"
    yield File(name, {"config": config.without_seed()}, run_one, seeds(given))


def _how(given: Given) -> dict[str, Any]:
    return {"network": given.network, "data_root": given.data_root, "sets": given.set}


def kept(metrics: Row) -> Row:
    """Both networks, by numbers that do not depend on the run that they are of."""
    before, after = metrics["numbers"], metrics["compressed"]
    times = after["seconds_by_batch"]
    return {
        "before": {
            "parameters": before["parameters"],
            "bytes": 4 * before["parameters"],
            "error": 100 * (1 - before["test"]["accuracy"]),
            **{f"ms {one['batch']}": 1e3 * one["seconds_before"] for one in times},
        },
        "after": {
            "parameters": after["nonzero"],
            "bytes": round(metrics["sent"]["file"] / 8),
            "error": 100 * (1 - after["test"]["accuracy"]),
            **{f"ms {one['batch']}": 1e3 * one["seconds"] for one in times},
        },
        "refused": "refused" in metrics,
        "seconds": metrics["seconds"],
    }


def table(folder: Path) -> Iterable[str]:
    """Before and after."""
    for name, found in read_all(folder).items():
        runs = found["runs"]
        batches = [key for key in runs[0]["before"] if key.startswith("ms ")]
        rows = [f"ms, {key.removeprefix('ms ')} rows" for key in batches]
        shown = f"{name} ({len(runs)} seeds)"
        yield from header(shown, "parameters", "bytes", "error, %", *rows)
        for when in ("before", "after"):
            digits = {"parameters": 0, "bytes": 0, "error": 2}
            cells = [plus_minus(runs, f"{when}/{key}", n) for key, n in digits.items()]
            times = (median(column(runs, f"{when}/{key}")) for key in batches)
            yield row(when, *cells, *(f"{one:.3f}" for one in times))
        yield ""


SPEC = Spec(
    "experiments.published.before_after", "Before and after", "before_after",
    {"data": "digits", "data_root": str, "network": str, "set": {}}, files, table,
    small="--seeds 1 --set steps=40",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
