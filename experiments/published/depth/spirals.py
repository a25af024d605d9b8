"""Learnt depth on the spirals at the poster's setting, over seeds.

    python -m experiments spirals --again

D = 20, width 20, noise 0.2, 720 degrees, 200 training rows (20 of them kept for validation) and
1800 test rows. Every method that learns depth, and the fixed depths for comparison. All seeds of a
method are trained together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pyroccam.cli.run_figures import draw
from pyroccam.cli.runs.execution import RunOptions, run_repeats

from ..markdown import header, plus_minus, read_all, row
from ..runner import Choice, File, Given, Row, Spec, resolve

__all__ = ["METHODS", "SPEC"]

METHODS = ("ldn", "ldn-gradient", "ldn-marginal")


def files(given: Given) -> Iterable[File]:
    """One of each method."""
    for method in given.methods:
        yield File(method, {}, partial(_all, method, given))


def _all(method: str, given: Given) -> Row:
    """The runs of a method; of ``ldn`` the figures of the first seed, too."""
    pairs = [resolve(method, "spirals", seed, sets=given.set) for seed in range(given.seeds)]
    configs, datas = (list(part) for part in zip(*pairs, strict=True))
    outcomes = run_repeats(configs, datas, options=RunOptions(compare=method == "ldn"))
    if method == "ldn":
        draw(outcomes[0].fit, None, given.out / "figures")
    runs = [{k: v for k, v in one.metrics.items() if k != "versions"} for one in outcomes]
    return {"runs": runs}


def table(folder: Path) -> Iterable[str]:
    """Accuracy and depth of every method, before and after pruning."""
    found = read_all(folder, "ldn*")
    if not found:
        return
    yield from header(
        "method", "accuracy", "pruned", "NLL", "chosen depth", "by exact posterior",
        "total variation to exact, largest", "pruned, times faster",
    )  # fmt: skip
    for method in (name for name in METHODS if name in found):
        runs = found[method]["runs"]
        s = [r["structure"] for r in runs]
        distance = [x["tv_to_exact"] if x["tv_running"] is None else x["tv_running"] for x in s]
        faster = [
            r["pruned"]["seconds_per_batch_before"] / r["pruned"]["seconds_per_batch"] for r in runs
        ]
        yield row(
            method,
            plus_minus(runs, "test/accuracy"),
            plus_minus(runs, "pruned/test/accuracy"),
            plus_minus(runs, "test/nll", 3),
            # of the estimate that trained the weights: q itself is the exact one in the end
            ", ".join(str(x["depth_chosen_running"] or x["depth_chosen"]) for x in s),
            ", ".join(str(x["depth_chosen_exact"]) for x in s),
            f"{max(distance):.4f}" if method != "ldn-marginal" else "q is the exact one",
            f"{min(faster):.1f} to {max(faster):.1f}",
        )
        if accuracy := plus_minus(runs, "ddn/test/accuracy"):
            nll = plus_minus(runs, "ddn/test/nll", 3)
            yield row("ddn at that depth", accuracy, "", nll, "", "", "", "")


SPEC = Spec(
    "experiments.published.depth.spirals", "Spirals", "spirals",
    {"methods": Choice(METHODS), "set": {}}, files, table,
    small="--seeds 2 --set max_depth=3 --set width=8 --set steps=40",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
