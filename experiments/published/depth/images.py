"""Learnt depth on MNIST and Fashion-MNIST against fixed depths, at one protocol.

    python -m experiments.published.depth.images --data mnist --data-root FOLDER

The network is sized for two cores: D = 10 bottlenecks of 16/8 channels on 6 x 6 maps (the authors'
have D = 50, 64/32 channels and 12 x 12 maps). Same optimiser, schedule, batches, epochs,
validation rows and checkpoint rule for every contender. Learnt depth is run under two priors: the
authors' decay, and one under which a block must earn 0.003 nats per image (``Cost``). A finished
seed is kept, so the script can be stopped and started again.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.methods.depth import metrics_on_test
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.cli.runs.run import RunOptions, fixed_depth, run
from pyroccam.inference import figures
from pyroccam.inference.cutting.cost import count_parameters, seconds_per_batch
from pyroccam.inference.fits.fitting import pick_device
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.models import Classification
from pyroccam.models.networks import ready as networks
from pyroccam.models.plain.pruned import PrunedNetwork

from .. import options
from ..runner import ResultFile, renew

# Learnt depth under two priors: None for the authors' decay, else nats per image and block.
PRIORS: dict[str, float | None] = {"ldn": None, "ldn-cost": 0.003}


def main(
    data: options.Data = "mnist",
    data_root: options.DataRoot = None,
    out: options.Out = options.RESULTS / "images",
    seeds: options.Count = 3,
    depths: Annotated[str, typer.Option(help="Fixed depths, by commas.")] = "1,4,10",
    epochs: options.Count = 4,
    sets: options.Sets = None,
    device: options.Device = "auto",
    threads: options.Count = 1,
) -> None:
    """Run and write one JSON file for each seed, a summary and a figure."""
    torch.set_num_threads(threads)
    chosen = {"epochs": epochs, **parse_settings(sets or [])}
    found = []
    for seed in range(seeds):
        file = ResultFile(out / f"{data}-seed-{seed}.json", {})
        if not file.content:
            file.write(**_one(data, data_root, seed, depths, chosen, device))
        found.append(file.content)
        print(file.path, json.dumps(found[-1]["summary"]), flush=True)
    summary = {
        "data": data,
        "seeds": seeds,
        "test": {c: mean_spread([one["test"][c] for one in found]) for c in found[0]["test"]},
        "speed": _speed(found, device),
        "depth_chosen": {
            kind: [one["structure"][kind]["depth_chosen"] for one in found] for kind in PRIORS
        },
        "tv_running": {
            kind: [one["structure"][kind]["tv_running"] for one in found] for kind in PRIORS
        },
    }
    renew(out / f"{data}.json", write_json, out / f"{data}.json", summary)
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
        target = f"{data}-{kind}"
        renew(out / f"{target}.png", figures.save, picture, out / target)


def _one(
    data: str,
    data_root: str | None,
    seed: int,
    depths: str,
    chosen: dict[str, Any],
    device: str,
) -> dict[str, Any]:
    names = ("structure", "test_by_depth_nll", "test", "seconds_training")
    out: dict[str, Any] = {name: {} for name in names}
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
        outcome = run(one, dataset, options=RunOptions(device=device, compare=False))
        result, metrics = outcome.fit, outcome.metrics
        test[kind] = metrics["test"]
        test[f"{kind}-pruned"] = metrics["pruned"]["test"]
        test[f"{kind}-single"] = metrics["single_exit"]["test"]
        training[kind] = metrics["seconds"]
        for name in ("structure", "test_by_depth_nll"):
            out[name][kind] = metrics[name]
        out["network"] = result.model.stack.description
        print(data, seed, kind, result.structure, test[kind], flush=True)
    for depth in [int(d) for d in depths.split(",")]:
        ddn = fixed_depth(config, result.data, depth)
        test[f"ddn-{depth}"] = metrics_on_test(ddn)
        training[f"ddn-{depth}"] = ddn.seconds
        print(data, seed, "ddn", depth, test[f"ddn-{depth}"], flush=True)
    out["summary"] = {k: {m: round(v, 4) for m, v in t.items()} for k, t in test.items()}
    return out


def _speed(found: list[dict[str, Any]], device: str, batch: int = 256) -> dict[str, Any]:
    """Wall time of whole and cut networks, all in one alternating run.

    Time depends on the shapes alone, so the networks are built anew and need no training.
    """
    config = RunConfig(**found[0]["config"])
    network = dict(found[0]["network"])
    where = pick_device(device)
    stack = networks.build(network).to(where)
    likelihood = Classification(network["outputs"])
    x = torch.randn(batch, *network["input_shape"], device=where)
    if config.network == "conv":
        stack = stack.to(memory_format=torch.channels_last)
    deepest = stack.max_depth
    chosen = sorted(
        {one["structure"][kind]["depth_chosen"] for one in found for kind in PRIORS} | {deepest}
    )
    nets: dict[str, PrunedNetwork] = {}
    for depth in chosen:
        weights = torch.full((depth + 1,), 1 / (depth + 1))
        nets[f"marginal {depth}"] = PrunedNetwork(stack, depth, weights, likelihood)
        nets[f"single {depth}"] = PrunedNetwork(stack, depth, None, likelihood)
    seconds = seconds_per_batch(nets, x, rounds=31)
    return {
        "batch": batch,
        "seconds_per_batch": seconds,
        "parameters": {name: count_parameters(net) for name, net in nets.items()},
        "times_faster": {
            str(depth): {
                "marginal_over_all_depths": seconds[f"marginal {deepest}"]
                / seconds[f"marginal {depth}"],
                "single_over_deepest": seconds[f"single {deepest}"] / seconds[f"single {depth}"],
            }
            for depth in chosen
        },
    }


if __name__ == "__main__":
    typer.run(main)
