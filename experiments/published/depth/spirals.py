"""Learnt depth on the spirals at the poster's setting, over seeds.

    python -m experiments.published.depth.spirals --out experiments/results/spirals

D = 20, width 20, noise 0.2, 720 degrees, 200 training rows (20 of them kept for validation) and
1800 test rows. Every method that learns depth, and the fixed depths for comparison.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.run_figures import draw
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.cli.runs.run import RunOptions, run_repeats
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.storage.checkpoint import versions, write_json

from .. import options

METHODS = ("ldn", "ldn-gradient", "ldn-marginal")


def main(
    out: options.Out = options.RESULTS / "spirals",
    seeds: options.Count = 5,
    methods: Annotated[str, options.BY_COMMAS] = ",".join(METHODS),
    sets: options.Sets = None,
) -> None:
    """Run and write one JSON file for each method, and a figure of the first seed."""
    torch.set_num_threads(1)
    for method in methods.split(","):
        runs = [
            RunConfig.resolve(method, "spirals", seed=seed, sets=parse_settings(sets or []))
            for seed in range(seeds)
        ]
        configs, datas = [r[0] for r in runs], [r[1] for r in runs]
        outcomes = run_repeats(configs, datas, options=RunOptions(compare=method == "ldn"))
        rows: list[dict[str, Any]] = [outcome.metrics for outcome in outcomes]
        for seed, found in enumerate(rows):
            s = found["structure"]
            print(
                f"{method} seed {seed}: accuracy {found['test']['accuracy']:.4f}, pruned "
                f"{found['pruned']['test']['accuracy']:.4f}, depth {s['depth_chosen']} (exact "
                f"{s['depth_chosen_exact']}), TV {s['tv_to_exact']:.4f}, running TV "
                f"{s['tv_running']}",
                flush=True,
            )
        if method == "ldn":
            draw(outcomes[0].fit, None, out / "figures")
        spread = {
            part: mean_spread([r[part] if part == "test" else r[part]["test"] for r in rows])
            for part in ("test", "pruned", "single_exit", "ddn")
            if part in rows[0]
        }
        for r in rows:
            r.pop("versions")
        write_json(out / f"{method}.json", {"versions": versions(), "spread": spread, "runs": rows})


if __name__ == "__main__":
    typer.run(main)
