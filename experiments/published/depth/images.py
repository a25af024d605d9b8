"""Learnt depth on MNIST and Fashion-MNIST against fixed depths, at one protocol.

    python -m experiments images --again --data mnist --data-root FOLDER

The network is sized for two cores: D = 10 bottlenecks of 16/8 channels on 6 x 6 maps (the authors'
have D = 50, 64/32 channels and 12 x 12 maps). Same optimiser, schedule, batches, epochs,
validation rows and checkpoint rule for every contender. Learnt depth is run under two priors: the
authors' decay, and one under which a block must earn 0.003 nats per image (``Cost``). A finished
seed is kept, so the script can be stopped and started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from pyroccam.cli.methods.depth import metrics_on_test
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.execution import RunOptions, fixed_depth, run
from pyroccam.inference import figures
from pyroccam.inference.cutting.cost import count_parameters, seconds_per_batch
from pyroccam.inference.figures import CYCLE, INK, styled
from pyroccam.inference.training.fitting import pick_device
from pyroccam.models import Classification
from pyroccam.models.networks import ready as networks
from pyroccam.models.plain.pruned import PrunedNetwork

from ..markdown import header, mean_sd, plus_minus, read_all, row
from ..runner import File, Given, Made, Row, Spec, resolve

__all__ = ["SPEC"]

# Learnt depth under two priors: None for the authors' decay, else nats per image and block.
PRIORS: dict[str, float | None] = {"ldn": None, "ldn-cost": 0.003}


def files(given: Given) -> Iterable[File]:
    """One of each seed."""
    for seed in range(given.seeds):
        yield File(f"{given.data}-seed-{seed}", {}, partial(_one, given, seed))


def _one(given: Given, seed: int) -> Row:
    names = ("structure", "test_by_depth_nll", "test", "seconds_training")
    out: dict[str, Any] = {name: {} for name in names}
    test, training = out["test"], out["seconds_training"]
    sets = {"epochs": given.epochs, **given.set}
    config, data = resolve(
        "ldn", given.data, seed, network="conv", data_root=given.data_root, sets=sets
    )
    out["config"] = config.to_json() | {"data": {**config.data, "data_root": "..."}}
    for kind, price in PRIORS.items():
        more = {} if price is None else {"prior": f"cost:{price * data.N}"}
        one = replace(config, options={**config.options, **more})
        outcome = run(one, data, options=RunOptions(device=given.device, compare=False))
        metrics = outcome.metrics
        test[kind] = metrics["test"]
        test[f"{kind}-pruned"] = metrics["pruned"]["test"]
        test[f"{kind}-single"] = metrics["single_exit"]["test"]
        training[kind] = metrics["seconds"]
        for name in ("structure", "test_by_depth_nll"):
            out[name][kind] = metrics[name]
        out["network"] = outcome.fit.model.stack.description
    for depth in given.depths:
        fit = fixed_depth(config, outcome.fit.data, depth)
        test[f"ddn-{depth}"] = metrics_on_test(fit)
        training[f"ddn-{depth}"] = fit.seconds
    return out


def drawn(given: Given) -> Mapping[str, Made]:
    """Times of the networks, and a figure of each prior."""
    found = [*read_all(given.out, f"{given.data}-seed-*").values()]
    made: dict[str, Made] = {f"{given.data}.json": lambda: {"speed": _speed(found, given.device)}}
    for kind in PRIORS:
        made[f"{given.data}-{kind}"] = partial(_figure, found, given.data, kind)
    made[f"{given.data}-depths"] = partial(_depths, found, given.data)
    return made


@styled
def _depths(found: list[Row], data: str) -> Figure:
    """q(d), mean over seeds, beside the chosen depths; below the test log-likelihood of each exit
    and of networks of fixed depths."""
    drawn_ = figures.new_figure(3.6)
    axes = drawn_.subplots(2, len(PRIORS), sharex=True, sharey="row")
    fixed = [name for name in found[0]["test"] if name.startswith("ddn-")]
    for k, (kind, price) in enumerate(PRIORS.items()):
        top, bottom = axes[0, k], axes[1, k]
        q = np.array([one["structure"][kind]["depth_probs"] for one in found])
        top.bar(np.arange(q.shape[1]), q.mean(0), color=CYCLE[0], alpha=0.75)
        nll = np.array([one["test_by_depth_nll"][kind] for one in found])
        # An exit without a block is far below the others.
        bottom.plot(np.arange(1, nll.shape[1]), -nll.mean(0)[1:], "o-", color=CYCLE[0],
                    label="learnt depth, by exit")  # fmt: skip
        means = [-np.mean([one["test"][name]["nll"] for one in found]) for name in fixed]
        bottom.plot([int(name.removeprefix("ddn-")) for name in fixed], means, "s--",
                    color=CYCLE[1], label="fixed depth")  # fmt: skip
        for depth in sorted({one["structure"][kind]["depth_chosen"] for one in found}):
            for ax in (top, bottom):
                ax.axvline(depth, color=INK, linewidth=1.3)
        said = "the authors' decay" if price is None else f"{price:g} nats an image and block"
        top.set_title(f"prior: {said}")
        bottom.set_xlabel("depth (vertical: chosen)")
    axes[0, 0].set_ylabel("q(d)")
    axes[1, 0].set_ylabel("test log-likelihood\n(nats per image)")
    axes[1, 0].legend(fontsize="small", loc="lower right")
    drawn_.suptitle(f"{data}: learnt depth, {len(found)} seeds", fontsize=10.5)
    return drawn_


def _figure(found: list[Row], data: str, kind: str) -> Figure:
    fixed = [name for name in found[0]["test"] if name.startswith("ddn-")]
    drawn_ = figures.depth_comparison(
        {int(n.removeprefix("ddn-")): [one["test"][n]["nll"] for one in found] for n in fixed},
        [one["test"][kind]["nll"] for one in found],
        [
            (one["structure"][kind]["depth_chosen"], one["test"][f"{kind}-pruned"]["nll"])
            for one in found
        ],
        "test NLL / nats",
    )
    drawn_.suptitle(f"{data}, {kind}", fontsize=10.5)
    return drawn_


def _speed(found: list[Row], device: str, batch: int = 256) -> Row:
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


_NAMES = {
    "ldn": "LDN, all depths",
    "ldn-pruned": "LDN, pruned",
    "ldn-single": "LDN, single exit",
    "ldn-cost": "LDN, cost prior",
    "ldn-cost-pruned": "LDN, cost prior, pruned",
    "ldn-cost-single": "LDN, cost prior, single exit",
}


def table(folder: Path) -> Iterable[str]:
    """Learnt depth under two priors, and fixed depths."""
    names = {name.partition("-seed-")[0] for name in read_all(folder, "*-seed-*")}
    for name in sorted(names, reverse=True):
        runs = [*read_all(folder, f"{name}-seed-*").values()]
        yield from header(
            f"{name}, {len(runs)} seeds", "error, %", "NLL", "ECE, %", "poster's ECE, %"
        )
        for contender in runs[0]["test"]:
            of = f"test/{contender}"
            yield row(
                _NAMES.get(contender, f"fixed depth {contender.removeprefix('ddn-')}"),
                mean_sd([1 - run["test"][contender]["accuracy"] for run in runs], 2, 100),
                plus_minus(runs, f"{of}/nll"),
                plus_minus(runs, f"{of}/ece", 2, 100),
                plus_minus(runs, f"{of}/poster_ece", 2, 100),
            )
        times = read_all(folder, name)[name]["speed"]["times_faster"]
        for kind in PRIORS:
            picked = [run["structure"][kind]["depth_chosen"] for run in runs]
            running = max(run["structure"][kind]["tv_running"] for run in runs)
            faster = [times[str(d)] for d in sorted(set(picked))]
            marginal = ", ".join(f"{f['marginal_over_all_depths']:.2f}" for f in faster)
            single = ", ".join(f"{f['single_over_deepest']:.2f}" for f in faster)
            yield ""
            yield (
                f"{_NAMES[kind]}: depths {', '.join(map(str, picked))} of {max(map(int, times))} "
                f"chosen. At depth {', '.join(map(str, sorted(set(picked))))}: pruned {marginal} "
                f"times faster than all depths, single exit {single} times faster than the deepest "
                f"fixed network. Running estimate within {running:.2f} of the exact posterior."
            )
        yield ""


SPEC = Spec(
    "experiments.published.depth.images", "Images", "images",
    {
        "data": "mnist", "data_root": str, "depths": (1, 4, 10), "epochs": 4, "set": {},
        "device": "auto",
    },
    files, table, drawn,
    small="--data digits --seeds 2 --epochs 2 --depths 1,2 --set width=8 --set inner=4 "
    "--set max_depth=2",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
