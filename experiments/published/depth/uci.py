"""Learnt-depth regression on the UCI sets, at the standard splits.

    python -m experiments.published.depth.uci --data-root FOLDER

Beside the published numbers of Antoran et al. 2020 (arXiv:2006.08437, "DUN", printed in the
notebook of their code). One network for all sets; on the two smallest the weight decay is chosen
among two on validation rows (theirs: a search over learning rate, depth, decay, ... for each
split). A finished split is kept.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.methods.depth import metrics_on_test
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.cli.runs.run import Outcome, RunOptions, fixed_depth, run
from pyroccam.inference.fits.fitting import Fit
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.storage.checkpoint import write_json

from .. import options
from ..runner import ResultFile, renew

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
    "boston": 1000, "wine": 1000, "energy": 4000, "kin8nm": 4000, "naval": 4000, "protein": 4000,
}  # fmt: skip
# Tried in turn; the one with the best validation NLL on its split is reported.
WEIGHT_DECAY = {"boston": (0.03, 0.3), "wine": (0.03, 0.3)}


def main(
    data_root: options.DataRoot = None,
    out: options.Out = options.RESULTS / "uci",
    sets: Annotated[str, options.BY_COMMAS] = ",".join(PUBLISHED),
    splits: Annotated[int, typer.Option(min=1, max=20)] = 5,
    settings: options.Sets = None,
) -> None:
    """Run, write one JSON file for each set and split, and a table beside the published one."""
    torch.set_num_threads(1)
    table: dict[str, Any] = {}
    for name in sets.split(","):
        found = []
        for split in range(splits):
            file = ResultFile(out / f"{name}-{split}.json", {})
            if not file.content:
                file.write(**_one(name, split, data_root, parse_settings(settings or [])))
            found.append(file.content)
            print(name, split, json.dumps(found[-1]["test"]), flush=True)
        ll, sd, rmse = PUBLISHED[name]
        table[name] = {
            "splits": splits,
            "ours": {c: mean_spread([f["test"][c] for f in found]) for c in found[0]["test"]},
            "depth_chosen": [f["structure"]["depth_chosen"] for f in found],
            "tv_running": [f["structure"]["tv_running"] for f in found],
            "published_dun": {"nll": -ll, "nll_sd": sd, "rmse": rmse},
        }
    renew(out / "table.json", write_json, out / "table.json", table)


def _one(name: str, split: int, data_root: str | None, chosen: dict[str, Any]) -> dict[str, Any]:
    chosen = {"steps": STEPS[name], "batch_size": 128, "data.split": split, **chosen}
    best: tuple[RunConfig, Outcome] | None = None
    best_fixed: Fit | None = None
    for weight_decay in WEIGHT_DECAY.get(name, (0.03,)):
        config, data = RunConfig.resolve(
            "ldn",
            f"uci/{name}",
            data_root=data_root,
            seed=split,
            sets={"weight_decay": weight_decay, **chosen},
        )
        outcome = run(config, data, options=RunOptions(compare=False))
        if best is None or outcome.fit.val_nll < best[1].fit.val_nll:
            best = config, outcome
        fixed = fixed_depth(config, outcome.fit.data, outcome.fit.model.max_depth)
        if best_fixed is None or fixed.val_nll < best_fixed.val_nll:
            best_fixed = fixed
    assert best is not None
    assert best_fixed is not None
    config, outcome = best
    metrics = outcome.metrics
    return {
        "config": config.to_json() | {"data": {**config.data, "data_root": "..."}},
        "structure": metrics["structure"],
        "test": {
            "ldn": metrics["test"],
            "pruned": metrics["pruned"]["test"],
            "single_exit": metrics["single_exit"]["test"],
            "ddn-deepest": metrics_on_test(best_fixed),
        },
        "seconds": metrics["seconds"],
    }


if __name__ == "__main__":
    typer.run(main)
