"""How much the gradient of the bound varies: scales of groups drawn for each example, as published,
once for the batch, or the weights themselves drawn.

    python -m experiments.published.gradient_variance --data-root FOLDER

A network is trained for a while, by scales for each example, and stays as it is then. There the
gradient is drawn again and again, in nats for each observation: at one fixed batch, where nothing
but the noise of the estimator varies, and over random batches. The total variance is the sum over
parameters of their variances, unbiased, with the jackknife's standard error. The three estimators
have the same expectation, which is tested. A finished seed is kept: the same command goes on where
an earlier one stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.data import Dataset
from pyroccam.inference.elbo.estimator import bound
from pyroccam.inference.fits.fitting import fit
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.models import LocalReparameterization
from torch import Tensor, nn

from . import options
from .compression import SETTINGS
from .runner import ResultFile, Row, untrained

__all__ = ["Drawn", "agreement", "gradients", "jackknife"]

BASE = "example"  # of the ratios
DRAWS = (BASE, "batch", "weights")
OVER = ("noise", "batches")  # what varies: the noise at one batch, or the batch too
ALL = "all"  # parameters of every kind
FLIPS = 1999

_OF_A_SEED = ("data.seed", "data.data_root", "settings.seed")
_KINDS = {"loc": "loc", "log_scale": "log-scale"}

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Drawn:
    """Gradients of one kind of parameters that were drawn ``R`` times, reduced to what is needed.

    Attributes:
        variance: summed over parameters, unbiased.
        left_out: the same without the first, the second, ... draw, ``(R,)``.
    """

    variance: float
    left_out: Tensor

    @classmethod
    def of(cls, gradients: Tensor) -> Drawn:
        """Spread of gradients ``(R, P)``, R of 3 or more.

        Without draw r the sum of squares falls by ``R / (R - 1) |g_r - mean|²``.
        """
        count = len(gradients)
        if count < 3:
            raise ValueError(f"A jackknife needs 3 gradients or more, got {count}.")
        squares = (gradients.double() - gradients.double().mean(0)).square().sum(1)
        left = (squares.sum() - count / (count - 1) * squares) / (count - 2)
        return cls(float(squares.sum() / (count - 1)), left)


def jackknife(value: float, left_out: Tensor) -> dict[str, float]:
    """A value and its standard error, from the values without each of the draws ``(R,)``."""
    count = len(left_out)
    spread = (left_out - left_out.mean()).square().sum() * (count - 1) / count
    return {"value": value, "se": math.sqrt(float(spread))}


def agreement(one: Tensor, other: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Test that two estimators have one expectation.

    The scalar products of all pairs of differences ``d_r = one_r - other_r`` add up to an unbiased
    estimate of the squared distance of the expectations, which is compared with those under random
    signs of the ``d_r``. No coordinate is taken to be independent of another.

    Arguments:
        one, other: gradients ``(R, P)``.
        generator: of the signs.

    Returns:
        ``z``: the estimate over its standard deviation under random signs; ``p``: how often these
        give as much; ``distance``: the estimate over the squared length of the mean gradient, from
        pairs too. It can be negative.
    """
    count = len(one)
    differences = (one - other).double()
    pairs = differences @ differences.T
    pairs.fill_diagonal_(0.0)
    found = pairs.sum()
    signs = torch.randint(0, 2, (FLIPS, count), generator=generator).double() * 2.0 - 1.0
    by_chance = ((signs @ pairs) * signs).sum(1)
    lengths = one.double() @ one.double().T
    length = lengths.sum() - lengths.diagonal().sum()
    return {
        "z": float(found / (2.0 * pairs.square().sum()).sqrt()),
        "p": float((1 + (by_chance >= found).sum()) / (1 + FLIPS)),
        "distance": float(found / length),
    }


def gradients(model: Any, guide: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """Gradients of the negative bound in nats for each observation, one draw at each batch, ``(R,
    P)``, all parameters of the guide in a row."""
    run, parameters = bound(model, guide), list(guide.parameters())
    rows = []
    for x, y in batches:
        found = torch.autograd.grad(run(x, y) / model.size, parameters)
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def kinds(model: Any, guide: Any) -> dict[str, Tensor]:
    """Positions in such a row by kind of parameter: location and log-scale of weights, scales
    (those of a layer too) and biases, and all."""
    found: dict[str, list[Tensor]] = {}
    start = 0
    for site, factor in zip(guide.sites, guide.factors.values(), strict=True):
        latent = model.sites[site][1]
        family = latent if latent in ("weight", "bias") else "scale"
        for name, p in factor.named_parameters():
            kind = f"{family} {_KINDS[name]}"
            found.setdefault(kind, []).append(torch.arange(start, start + p.numel()))
            start += p.numel()
    return {ALL: torch.arange(start), **{kind: torch.cat(parts) for kind, parts in found.items()}}


def handlers(model: Any) -> dict[str, LocalReparameterization | None]:
    """The estimators."""
    found = (LocalReparameterization(model, scales) for scales in ("example", "batch"))
    return dict(zip(DRAWS, (*found, None), strict=True))


def main(
    out: options.Out = options.RESULTS / "gradient_variance",
    data: options.Data = "mnist",
    data_root: options.DataRoot = None,
    networks: Annotated[str, options.BY_COMMAS] = "lenet-300-100",
    methods: Annotated[str, options.BY_COMMAS] = "gnj,ghs",
    seeds: options.Count = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Of the training before.")] = 5,
    batches: Annotated[str, typer.Option(help="Sizes, separated by commas.")] = "32,128,512",
    repeats: Annotated[int, typer.Option(min=3, help="Gradients that are drawn of each.")] = 100,
    sets: options.Sets = None,
    threads: options.Count = 1,
) -> None:
    """Run what is missing, and write one JSON file for each network and method."""
    torch.set_num_threads(threads)
    place: dict[str, Any] = {"data_root": data_root}
    asked = {**parse_settings(sets or []), "epochs": epochs}
    sizes = [int(size) for size in batches.split(",")]
    for network in networks.split(","):
        for method in methods.split(","):
            place["sets"] = {**SETTINGS.get(method, {}), **asked}
            first, _ = RunConfig.resolve(method, data, network=network, **place)
            described = {k: v for k, v in first.flat().items() if k not in _OF_A_SEED}
            path = out / f"{data}-{network}-{method}.json"
            file = ResultFile(path, config=described, batches=sizes, repeats=repeats)
            for seed in file.missing(range(seeds)):
                config, rows = RunConfig.resolve(method, data, network=network, seed=seed, **place)
                file.add(_run(config, rows, sizes, repeats), _spread)
                for line in _lines(network, method, file.runs[-1]):
                    print(line, flush=True)


def _run(config: RunConfig, data: Dataset, sizes: Sequence[int], repeats: int) -> Row:
    """Train, then measure."""
    seed = config.settings["seed"]
    trained = fit(*untrained(config, data), data, device="cpu", progress=False, **config.settings)
    model, guide = trained.model, trained.guide
    mean = evaluate_net(mean_network(model, guide), model, data)
    where = kinds(model, guide)
    cells = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for size in sizes:
            for over in OVER:
                cells.append(
                    {
                        "batch": size,
                        "over": over,
                        **_cell(model, guide, where, data, size, over, repeats, seed),
                    }
                )
    return {
        "seed": seed,
        "rows": data.N,
        "mean_accuracy": mean["accuracy"],
        "parameters": {kind: len(at) for kind, at in where.items()},
        "cells": cells,
    }


def _cell(
    model: Any,
    guide: Any,
    where: dict[str, Tensor],
    data: Dataset,
    size: int,
    over: str,
    repeats: int,
    seed: int,
) -> dict[str, Any]:
    """All estimators at one size of batch; they get the same batches."""
    generator = torch.Generator().manual_seed(seed)
    rows = [
        torch.randperm(data.N, generator=generator)[:size]
        for _ in range(1 if over == "noise" else repeats)
    ]
    rows = rows * repeats if over == "noise" else rows
    found: dict[str, Any] = {"variance": {}, "ratio": {}, "agreement": {}}
    base: dict[str, Drawn] = {}
    base_gradients = torch.empty(0)
    for draws, handler in handlers(model).items():
        guide.handler = handler
        g = gradients(model, guide, ((data.x_train[i], data.y_train[i]) for i in rows))
        drawn = {kind: Drawn.of(g[:, at]) for kind, at in where.items()}
        found["variance"][draws] = {k: jackknife(d.variance, d.left_out) for k, d in drawn.items()}
        if draws == BASE:
            base, base_gradients = drawn, g
            continue
        found["ratio"][draws] = {
            k: jackknife(d.variance / base[k].variance, d.left_out / base[k].left_out)
            for k, d in drawn.items()
        }
        found["agreement"][draws] = {
            k: agreement(base_gradients[:, at], g[:, at], generator) for k, at in where.items()
        }
    return found


def _spread(runs: Sequence[Row]) -> list[Row]:
    """Mean and standard deviation over seeds of the ratios, and the least p of the agreement."""
    found = []
    for cells in zip(*(run["cells"] for run in runs), strict=True):
        for draws in DRAWS[1:]:
            ratios = [{k: r["value"] for k, r in cell["ratio"][draws].items()} for cell in cells]
            agreed = [a["p"] for cell in cells for a in cell["agreement"][draws].values()]
            found.append({
                "batch": cells[0]["batch"], "over": cells[0]["over"], "draws": draws,
                "ratio": mean_spread(ratios), "least_p": min(agreed), "tests": len(agreed),
            })  # fmt: skip
    return found


def _lines(network: str, method: str, run: Row) -> Iterable[str]:
    for cell in run["cells"]:
        ratios = ", ".join(
            f"{draws} {found[ALL]['value']:.3f} ± {found[ALL]['se']:.3f} "
            f"(p {cell['agreement'][draws][ALL]['p']:.3f})"
            for draws, found in cell["ratio"].items()
        )
        yield (
            f"{network} {method} seed {run['seed']}: batch {cell['batch']}, over {cell['over']}: "
            f"variance {cell['variance'][BASE][ALL]['value']:.3g} for each example; times: {ratios}"
        )


if __name__ == "__main__":
    typer.run(main)
