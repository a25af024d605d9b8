"""How much the gradient of the bound varies: scales of groups drawn for each example, as published,
once for the batch, or the weights themselves drawn.

    python -m experiments gradient_variance --again --data-root FOLDER

A network is trained for a while, by scales for each example, and stays as it is then. There the
gradient is drawn again and again, in nats for each observation: at one fixed batch, where nothing
but the noise of the estimator varies, and over random batches. The total variance is the sum over
parameters of their variances, unbiased, with the jackknife's standard error. The three estimators
have the same expectation, which is tested. A finished seed is kept: the same command goes on where
an earlier one stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyroccam.data import Dataset
from pyroccam.inference.elbo.estimator import bound
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.inference.training.fitting import fit
from pyroccam.models import LocalReparameterization
from torch import Tensor, nn

from .compression import SETTINGS
from .markdown import header, read_all, row
from .runner import File, Given, Row, Spec, resolve, seeds, untrained

__all__ = ["SPEC", "Drawn", "agreement", "gradients", "jackknife"]

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


def files(given: Given) -> Iterable[File]:
    """One of each network and method."""
    for network in given.networks:
        for method in given.methods:
            sets = {**SETTINGS.get(method, {}), **given.set, "epochs": given.epochs}
            how = {"network": network, "data_root": given.data_root, "sets": sets}
            first, _ = resolve(method, given.data, **how)
            config = {k: v for k, v in first.flat().items() if k not in _OF_A_SEED}
            says = {"config": config, "batches": list(given.batches), "repeats": given.repeats}
            run_one = partial(_run, method, given, how)
            yield File(f"{given.data}-{network}-{method}", says, run_one, seeds(given))


def _run(method: str, given: Given, how: dict[str, Any], seed: int) -> Row:
    """Train, then measure."""
    config, data = resolve(method, given.data, seed, **how)
    trained = fit(*untrained(config, data), data, device="cpu", progress=False, **config.settings)
    model, guide = trained.model, trained.guide
    where = kinds(model, guide)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cells = [
            {"batch": size, "over": over,
             **_cell(model, guide, where, data, size, over, given.repeats, seed)}
            for size in given.batches
            for over in OVER
        ]  # fmt: skip
    return {
        "rows": data.N,
        "mean_accuracy": evaluate_net(mean_network(model, guide), model, data)["accuracy"],
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


_VARIED = {"all": "all", "weight loc": "weight means", "weight log-scale": "weight log-sds",
           "scale loc": "scale means", "scale log-scale": "scale log-sds"}  # fmt: skip
_DRAWN = {"batch": "scales for the batch", "weights": "weights"}


def table(folder: Path) -> Iterable[str]:
    """Ratios of variances, and the least p of the tests."""
    files = read_all(folder).values()
    if not files:
        return
    yield from header(
        "network, method (states)", "batch", "drawn",
        *(f"{label}, one batch" for label in _VARIED.values()), "all, any batch",
    )  # fmt: skip
    p: list[float] = []
    for found in files:
        runs, config = found["runs"], found["config"]
        cells = [{(c["batch"], c["over"]): c for c in run["cells"]} for run in runs]
        for batch in found["batches"]:
            for draws, label in _DRAWN.items():
                one, any_batch = (
                    [own[batch, over]["ratio"][draws] for own in cells] for over in OVER
                )
                yield row(
                    f"{config['network']}, {config['method']} ({len(runs)})", batch, label,
                    *(_mean_se(one, kind) for kind in _VARIED), _mean_se(any_batch, ALL),
                )  # fmt: skip
        p += [test["p"] for own in cells for cell in own.values()
              for tests in cell["agreement"].values() for test in tests.values()]  # fmt: skip
    yield ""
    yield f"Equal expectations: least p {min(p):.4f} of {len(p)} tests."


def _mean_se(ratios: list[dict[str, Any]], kind: str) -> str:
    """Mean over states, and its standard error from the draws."""
    count = len(ratios)
    error = sum(r[kind]["se"] ** 2 for r in ratios) ** 0.5 / count
    return f"{sum(r[kind]['value'] for r in ratios) / count:.2f} ± {error:.2f}"


SPEC = Spec(
    "experiments.published.gradient_variance", "Gradient variance", "gradient_variance",
    {
        "data": "mnist", "data_root": str, "networks": ("lenet-300-100",),
        "methods": ("gnj", "ghs"), "epochs": 5, "batches": (32, 128, 512), "repeats": 100,
        "set": {},
    },
    files, table,
    small="--data digits --networks perceptron --methods gnj --set hidden=[6] --epochs 1 "
    "--batches 8 --repeats 4 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
