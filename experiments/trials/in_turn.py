"""A small ResNet: depth, widths and bits in one posterior, or one after the other, and what prunes
an ordinary network.

    python -m experiments.trials.in_turn --data-root FOLDER

Every contender ends as a packed file, which is read, scored and timed; all networks of a seed are
timed in turn, twice: as the file is read, and with batch normalisation in the weights before it,
both beside the ordinary network as it is. Three learning rates of the ordinary network are tried,
each for 30 passes, and what is left of it without a share of its channels is trained for 15 more;
its files have weights of 8 bits, one step for each tensor, by the same entropy coder, and no
description of the network, which the others have. Each method has its own defaults where nothing
is said here: learnt depth begins uniform, under the prior of its authors. Seconds are of the
processor, for all that a contender is trained, cut and scored; those of the joint run count its
neighbours on the path, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import typer
from pyroccam import guides, inference, models
from pyroccam.cli.methods.weights import FILE
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.run import RunOptions, run
from pyroccam.data import Dataset
from pyroccam.inference.cutting.cost import compare_speed, count_parameters, multiply_adds
from pyroccam.inference.packing import Multiples, fused
from pyroccam.inference.packing.packed import read, write
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.models.networks.stack import DepthStack
from torch import nn

from ..published import options
from ..published.compression import short
from ..published.runner import ResultFile, Row
from ..published.small_resnet import small_resnet_stack
from .strangers.ordinary import Trained, scores, search
from .strangers.structured import prune_channels

__all__ = ["in_turn", "main"]

NETWORK = f"{small_resnet_stack.__module__}:{small_resnet_stack.__name__}"
SHAPE: dict[str, Any] = {"blocks": 2, "width": 32}
LENGTH = {"batch_size": 128, "epochs": 40}
JOINT = {"kl_weight": 0.02, "lr": 2e-3, **LENGTH}
RATIOS = (0.3, 0.5, 0.7, 0.85)
DEEP_COMPRESSION = {"batch_size": 128, "epochs": 30, "retrain": 12, "share": 3}

NUMBERS = ("error", "nll", "file_bytes", "parameters", "multiply_adds", "times_faster",
           "times_faster_fused", "seconds")  # fmt: skip


def main(
    data: options.Data = "experiments.sets:cifar10_part",
    seeds: options.Count = 3,
    out: options.Out = options.RESULTS / "in_turn",
    data_root: options.DataRoot = None,
    sets: options.Sets = None,
    threads: options.Count = 1,
) -> None:
    """Run the seeds that the file lacks."""
    torch.set_num_threads(threads)
    sets_of = options.settings_of(sets, JOINT)
    file = ResultFile(
        out / f"{short(data)}.json",
        config={"data": data, "network": SHAPE, "joint": sets_of, "pruned": DEEP_COMPRESSION},
    )
    for seed in file.missing(range(seeds)):
        rows = _contenders(data, data_root, seed, sets_of)
        file.add({"seed": seed, "contenders": rows}, _spread)
        for row in rows:
            print(
                f"seed {seed} {row['name']}: {row['error']:.2f} %, {row['file_bytes']:,} bytes, "
                f"{row['times_faster']:.2f} x faster, {row['seconds']:.0f} s",
                flush=True,
            )


def _contenders(data: str, root: str | None, seed: int, sets: dict[str, Any]) -> list[Row]:
    """A row for each file, of one seed."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = list(_files(data, root, seed, sets, folder))
        _, dataset = RunConfig.resolve("ddn", data, data_root=root, seed=seed)
        x = dataset.x_test
        nets = {one.name: one.net for one in made}
        faster = {_fused(one.name): fused(one.net, x[:2]) for one in made}
        speed = compare_speed(nets | faster, x, "ordinary")
        rows = []
        for one in made:
            test = scores(one.net, dataset)
            rows.append(
                {
                    "name": one.name,
                    "error": 100 * (1 - test["accuracy"]),
                    "nll": test["nll"],
                    "file_bytes": one.path.stat().st_size,
                    "parameters": count_parameters(one.net),
                    "multiply_adds": multiply_adds(one.net, x[:1]),
                    **_of_batches(speed[one.name]),
                    "times_faster_fused": _of_batches(speed[_fused(one.name)])["times_faster"],
                    "seconds": one.seconds,
                    **one.found,
                }
            )
        return rows


@dataclass(frozen=True)
class _File:
    """A network in its file, the seconds of all training up to it, and what is told of it."""

    name: str
    path: Path
    net: nn.Module
    seconds: float
    found: dict[str, Any] = field(default_factory=dict)


def _files(
    data: str, root: str | None, seed: int, sets: dict[str, Any], folder: Path
) -> Iterator[_File]:
    given: dict[str, Any] = {"network": NETWORK, "data_root": root, "seed": seed}
    plain = RunOptions(progress=False, compare=False, figures=False, device="cpu")
    for name, method, own in (
        ("joint", "occam", sets),
        ("deep-compression", "deep-compression", DEEP_COMPRESSION),
    ):
        config, dataset = RunConfig.resolve(method, data, sets={**SHAPE, **own}, **given)
        begun = time.process_time()
        outcome = run(config, dataset, out=folder / name, options=plain)
        seconds = time.process_time() - begun
        found = {"architecture": outcome.metrics["structure"]["architecture"]}
        if depth := outcome.metrics.get("depth"):
            found |= {"depth": depth["depth_chosen"], "depth_probs": depth["depth_probs"]}
        net = config.chosen.smaller(outcome.fit, folder / name)
        yield _File(name, folder / name / FILE, net, seconds, found)

    def stack() -> DepthStack:
        torch.manual_seed(seed)
        return small_resnet_stack(dataset.input_shape, dataset.outputs, **SHAPE)

    path, begun = folder / "in-turn", time.process_time()
    found = in_turn(stack(), dataset, sets, path, seed)
    yield _File("in-turn", path, read(path), time.process_time() - begun, found)

    def whole() -> nn.Module:
        made = stack()
        return made.at(made.max_depth)

    begun = time.process_time()
    ordinary = search(whole, dataset, seed)
    trained = time.process_time() - begun
    yield _packed(ordinary, "ordinary", trained, folder, rounded=False)
    yield _packed(ordinary, "int8", trained, folder)
    for ratio in RATIOS:
        begun = time.process_time()
        (one,) = prune_channels(ordinary, dataset, seed, [ratio])
        seconds = trained + time.process_time() - begun
        yield _packed(one, f"without {100 * ratio:.0f} % of channels", seconds, folder)


def in_turn(
    stack: DepthStack, data: Dataset, sets: dict[str, Any], path: Path, seed: int
) -> dict[str, Any]:
    """Learn the depth of a stack with numbers as weights, then its widths, then round it.

    Arguments:
        stack: trained in place.
        sets: of the joint fit, whose epochs are shared out likewise.
        path: of the packed file.

    Returns:
        The depth and the architecture.
    """
    epochs, common = sets["epochs"], {"batch_size": sets["batch_size"], "seed": seed}

    def fit(model: Any, guide: Any, share: float, **own: Any) -> Any:
        count = max(1, round(share * epochs))
        own = {**own, **common, "device": "cpu"}
        return inference.fit(model, guide, data, epochs=count, progress=False, **own)

    of_depth = models.LearntDepth(stack, data=data, prior=models.priors.Geometric(0.85))
    depth = fit(of_depth, guides.CategoricalDepth(of_depth, hold=0.5), 0.25, lr=sets["lr"])
    chosen = depth.structure.depth_chosen
    prior = models.priors.GroupNormalJeffreys()
    model = models.BayesianNetwork(of_depth.stack.at(chosen), data, prior=prior)
    of_weights = {
        "lr": sets["lr"], "optimizer": "adam", "weight_decay": 0.0, "schedule": "linear",
        "kl_weight": sets["kl_weight"],
    }  # fmt: skip
    widths = fit(model, guides.MeanField(model), 0.35, kl_warmup=0.3, **of_weights)
    rest = fit(*inference.narrow(widths), 0.25, kl_warmup=0.0, **of_weights)
    small = inference.shrink(rest, cut=inference.Search(round(0.15 * epochs)))
    write(small.net, path, rest=torch.float16)
    return {"depth": chosen, "architecture": small.report.to_json()["architecture"]}


def _packed(
    one: Trained, name: str, seconds: float, folder: Path, *, rounded: bool = True
) -> _File:
    """A network in a file without description, which its own code builds; rounded to 8 bits, one
    step for each tensor, and half precision of the rest."""
    how: dict[str, Any] = {}
    if rounded:
        weights = {n: p.detach() for n, p in one.net.named_parameters() if p.dim() > 1}
        steps = {n: Multiples(float(p.abs().max()) / 127) for n, p in weights.items()}
        how = {"bits": steps, "rest": torch.float16}
    write(one.net, folder / name, describe_net=False, **how)
    return _File(name, folder / name, read(folder / name, skeleton=one.net), seconds)


def _fused(name: str) -> str:
    return f"{name}, fused"


def _of_batches(timed: list[dict[str, Any]]) -> dict[str, float]:
    """Times of the larger batch, beside those of the ordinary network."""
    last = timed[-1]
    seconds = last["seconds"]
    return {"seconds_per_batch": seconds, "times_faster": last["seconds_before"] / seconds}


def _spread(runs: list[Row]) -> dict[str, Any]:
    """Mean and spread over the seeds by contender."""
    found: dict[str, list[dict[str, float]]] = {}
    for one in runs:
        for row in one["contenders"]:
            found.setdefault(row["name"], []).append({k: row[k] for k in NUMBERS if k in row})
    return {name: mean_spread(rows) for name, rows in found.items()}


if __name__ == "__main__":
    typer.run(main)
