"""Learnt-depth regression on the UCI sets, at the standard splits.

    python -m experiments.published.depth.uci --data-root FOLDER

Beside the published numbers of Antoran et al. 2020 (arXiv:2006.08437, "DUN", printed in the
notebook of their code). One network for all sets; on the two smallest the weight decay is chosen
among two on validation rows (theirs: a search over learning rate, depth, decay, ... for each
split). A finished split is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pyroccam.cli.methods.depth import metrics_on_test
from pyroccam.cli.runs.execution import RunOptions, fixed_depth, run

from ..markdown import column, header, plus_minus, read_all, row
from ..runner import Choice, File, Given, Row, Spec, resolve

__all__ = ["PUBLISHED", "SPEC"]

# set: (test log-likelihood, sd, RMSE), DUN; mean and sd over 20 splits (protein 5)
PUBLISHED = {
    "boston": (-2.604, 0.351, 3.200),
    "energy": (-1.037, 0.159, 0.612),
    "kin8nm": (1.151, 0.083, 0.076),
    "naval": (4.245, 1.108, 0.003),
    "protein": (-2.657, 0.044, 3.402),
    "wine": (-1.031, 0.119, 0.659),
}

# Steps for each set: long training over-fits the small ones and is needed by the large ones.
STEPS = {
    "boston": 1000, "wine": 1000, "kin8nm": 4000, "naval": 4000, "energy": 4000, "protein": 4000,
}  # fmt: skip
# Tried in turn; the one with the best validation NLL on its split is reported.
WEIGHT_DECAY = {"boston": (0.03, 0.3), "wine": (0.03, 0.3)}


def files(given: Given) -> Iterable[File]:
    """One of each set and split."""
    for name in given.sets:
        for split in range(given.seeds):
            yield File(f"{name}-{split}", {}, partial(_one, name, split, given))


def _one(name: str, split: int, given: Given) -> Row:
    """The best by validation of learnt depth, and of the deepest fixed one."""
    settings = {"steps": STEPS[name], "batch_size": 128, "data.split": split, **given.set}
    learnt, fixed = [], []
    for decay in WEIGHT_DECAY.get(name, (0.03,)):
        config, data = resolve(
            "ldn", f"uci/{name}", split, data_root=given.data_root,
            sets={"weight_decay": decay, **settings},
        )  # fmt: skip
        outcome = run(config, data, options=RunOptions(compare=False))
        learnt.append((config, outcome))
        fixed.append(fixed_depth(config, outcome.fit.data, outcome.fit.model.max_depth))
    config, outcome = min(learnt, key=lambda pair: pair[1].fit.val_nll)
    deepest = min(fixed, key=lambda fit: fit.val_nll)
    metrics = outcome.metrics
    return {
        "config": config.to_json() | {"data": {**config.data, "data_root": "..."}},
        "structure": metrics["structure"],
        "test": {
            "ldn": metrics["test"],
            "pruned": metrics["pruned"]["test"],
            "single_exit": metrics["single_exit"]["test"],
            "ddn-deepest": metrics_on_test(deepest),
        },
        "seconds": metrics["seconds"],
    }


def table(folder: Path) -> Iterable[str]:
    """Learnt depth beside the published."""
    found = {name: [*read_all(folder, f"{name}-*").values()] for name in STEPS}
    if not any(found.values()):
        return
    yield from header(
        "set (splits)", "NLL", "NLL, pruned", "NLL, fixed depth 10", "NLL, DUN published", "RMSE",
        "RMSE, DUN published", "chosen depths",
    )  # fmt: skip
    for name, runs in found.items():
        if runs:
            ll, sd, rmse = PUBLISHED[name]
            small = max(column(runs, "test/ldn/rmse")) < 0.01
            yield row(
                f"{name} ({len(runs)})",
                *(plus_minus(runs, f"test/{k}/nll", 3) for k in ("ldn", "pruned", "ddn-deepest")),
                f"{-ll:.3f} ± {sd:.3f}",
                plus_minus(runs, "test/ldn/rmse", 5 if small else 3),
                f"{rmse:.3f}",
                ", ".join(str(run["structure"]["depth_chosen"]) for run in runs),
            )


SPEC = Spec(
    "experiments.published.depth.uci", "UCI", "uci",
    {"sets": Choice(PUBLISHED), "data_root": str, "set": {}, "seeds": 5}, files, table,
    small="--sets energy --seeds 1 --set steps=20 --set max_depth=2",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
