"""Learnt depth on MNIST and Fashion-MNIST against fixed depths, at one protocol.

    python -m pyroccam.experiments.images --data mnist --data-root FOLDER

The network is sized for two cores: D = 10 bottlenecks of 16/8 channels on 6 x 6 maps (the authors'
have D = 50, 64/32 channels and 12 x 12 maps). Same optimiser, schedule, batches, epochs,
validation rows and checkpoint rule for every contender. Learnt depth is run under two priors: the
authors' decay, and one under which a block must earn 0.003 nats per image (``Cost``). A finished
seed is kept, so the script can be stopped and started again.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..inference import figures
from ..inference.metrics import mean_spread
from ..inference.prune import count_parameters, full_network, prune, seconds_per_batch
from ..inference.run_directory import versions, write_json
from ..models.pruned import PrunedNetwork
from .config import RunConfig, parse_settings
from .run import fixed_depth, metrics_on_test, run

# Learnt depth under two priors: None for the authors' decay, else nats per image and block.
PRIORS: dict[str, float | None] = {"ldn": None, "ldn-cost": 0.003}


def main(
    data: Annotated[str, typer.Option(help="mnist, fashion-mnist, ...")] = "mnist",
    data_root: Annotated[str | None, typer.Option("--data-root")] = None,
    out: Annotated[Path, typer.Option()] = Path("experiments/results/images"),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    depths: Annotated[str, typer.Option(help="Fixed depths, by commas.")] = "1,4,10",
    epochs: Annotated[int, typer.Option(min=1)] = 4,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    device: Annotated[str, typer.Option()] = "auto",
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Run and write one JSON file for each seed, a summary and a figure."""
    torch.set_num_threads(threads)
    chosen = {"epochs": epochs, **parse_settings(sets or [])}
    found = []
    for seed in range(seeds):
        path = out / f"{data}-seed-{seed}.json"
        if not path.exists():
            write_json(path, _one(data, data_root, seed, depths, chosen, device))
        found.append(json.loads(path.read_text()))
        print(path, json.dumps(found[-1]["summary"]), flush=True)
    summary = {
        "data": data,
        "seeds": seeds,
        "test": {c: mean_spread([one["test"][c] for one in found]) for c in found[0]["test"]},
        "speed_up": {
            kind: mean_spread([one["speed_up"][kind] for one in found]) for kind in PRIORS
        },
        "depth_chosen": {
            kind: [one["structure"][kind]["depth_chosen"] for one in found] for kind in PRIORS
        },
        "tv_running": {
            kind: [one["structure"][kind]["tv_running"] for one in found] for kind in PRIORS
        },
    }
    write_json(out / f"{data}.json", summary)
    ddn = {int(d): [one["test"][f"ddn-{d}"]["nll"] for one in found] for d in depths.split(",")}
    for kind in PRIORS:
        picture = figures.depth_comparison(
            ddn,
            [one["test"][kind]["nll"] for one in found],
            [
                (one["structure"][kind]["depth_chosen"], one["test"][f"{kind}-pruned"]["nll"])
                for one in found
            ],
            "test NLL / nats",
            f"{data}, {kind}",
        )
        figures.save(picture, out / f"{data}-{kind}")


def _one(
    data: str,
    data_root: str | None,
    seed: int,
    depths: str,
    chosen: dict[str, Any],
    device: str,
) -> dict[str, Any]:
    out: dict[str, Any] = {
        name: {}
        for name in ("structure", "test_by_depth_nll", "test", "parameters", "seconds_per_batch",
                     "speed_up", "seconds_training")
    }  # fmt: skip
    test, training = out["test"], out["seconds_training"]
    config, dataset = RunConfig.resolve(
        "ldn", data, network="conv", data_root=data_root, seed=seed, sets=chosen
    )
    out["config"] = config.to_json() | {"data": {**config.data, "data_root": "..."}}
    for kind, price in PRIORS.items():
        options = dict(config.options)
        if price is not None:
            options["prior"] = f"cost:{price * dataset.N}"
        one = replace(config, options=options)
        outcome = run(one, dataset, device=device, compare=False)
        result, metrics = outcome.fit, outcome.metrics
        test[kind] = metrics["test"]
        test[f"{kind}-pruned"] = metrics["pruned"]["test"]
        test[f"{kind}-single"] = metrics["single_exit"]["test"]
        training[kind] = metrics["seconds"]
        for name in ("structure", "test_by_depth_nll"):
            out[name][kind] = metrics[name]
        print(data, seed, kind, result.structure, test[kind], flush=True)
        # Speed: the exits of every depth, the cut network, and plain networks with one exit.
        stack, likelihood = result.model.stack, result.model.likelihood
        nets = {
            "full": full_network(result),
            "pruned": prune(result),
            "single": prune(result, form="single"),
            "deepest": PrunedNetwork(stack, result.model.max_depth, None, likelihood),
        }
        seconds = seconds_per_batch(nets, result.data.x_test[:256])
        out["seconds_per_batch"][kind] = seconds
        out["parameters"][kind] = {name: count_parameters(n) for name, n in nets.items()}
        out["speed_up"][kind] = {
            "pruned_over_full": seconds["full"] / seconds["pruned"],
            "pruned_over_deepest": seconds["deepest"] / seconds["pruned"],
            "single_over_deepest": seconds["deepest"] / seconds["single"],
        }
    for depth in [int(d) for d in depths.split(",")]:
        ddn = fixed_depth(config, result.data, depth)
        test[f"ddn-{depth}"] = metrics_on_test(ddn)
        training[f"ddn-{depth}"] = ddn.seconds
        print(data, seed, "ddn", depth, test[f"ddn-{depth}"], flush=True)
    out["versions"] = versions()
    out["summary"] = {k: {m: round(v, 4) for m, v in t.items()} for k, t in test.items()}
    return out


if __name__ == "__main__":
    typer.run(main)
