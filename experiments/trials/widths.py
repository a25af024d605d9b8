"""How many units one hidden layer needs: the exact posterior, and what priors of groups leave.

    python -m experiments.trials.widths

Targets are those of a network of a few hidden units, and noise. The width is a latent variable
whose value k says that the first k units are there, each with weights of its own: a stack whose
blocks are units, so that the posterior over widths is exact for given factors of the weights.
Beside it stand networks of each width, each fitted alone, of which the greatest bound is taken; and
one of all units whose groups have scales, which is cut. Networks alone and the stack begin with
trained numbers; the stack and the groups have the full length, a network alone half of it for the
numbers and half for the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
import typer
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.posterior.depth import EQUAL
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.models.networks.stack import DepthStack
from torch import Tensor, nn

from ..published import options
from ..published.runner import ResultFile, Row

__all__ = ["main", "unit_stack"]

FEATURES, ROWS, NOISE = 3, 2000, 0.1
SETTINGS: dict[str, Any] = {
    "batch_size": 256, "lr": 1e-2, "optimizer": "adam", "weight_decay": 0.0, "schedule": "linear",
    "progress": False,
}  # fmt: skip
EPOCHS = 300
GROUPS = {
    "gnj": models.priors.GroupNormalJeffreys,
    "ghs": models.priors.GroupHorseshoe,
}


class _Unit(nn.Module):
    """Adds what one hidden unit says to the outputs, which stand behind the inputs."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.features = features
        self.into = nn.Linear(features, 1)
        self.out = nn.Linear(1, outputs, bias=False)

    def forward(self, a: Tensor) -> Tensor:
        x, sums = a[:, : self.features], a[:, self.features :]
        return torch.cat([x, sums + self.out(torch.relu(self.into(x)))], 1)


class _Start(nn.Module):
    """The inputs, and outputs that are numbers, the same for all rows."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.bias.expand(len(x), -1)], 1)


class _Outputs(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, a: Tensor) -> Tensor:
        return a[:, self.features :]


def unit_stack(input_shape: tuple[int, ...], outputs: int, *, max_depth: int = 10) -> DepthStack:
    """One hidden layer of rectified units as a stack, whose depth is the width.

    Arguments:
        input_shape: ``(features,)``.
        outputs: regression targets, or classes.
        max_depth: units.
    """
    features = math.prod(input_shape)
    units = [_Unit(features, outputs) for _ in range(max_depth)]
    return DepthStack(_Start(outputs), units, _Outputs(features))


def main(
    out: options.Out = options.RESULTS / "widths",
    seeds: options.Count = 3,
    true: Annotated[str, typer.Option(help="Widths of the network behind the targets.")] = "1,2,4",
    width: options.Count = 10,
    epochs: options.Count = EPOCHS,
    threads: options.Count = 1,
) -> None:
    """Run the seeds that the files lack, one file for each network behind the targets."""
    torch.set_num_threads(threads)
    for count in map(int, true.split(",")):
        config = {"width": width, "epochs": epochs, "true": count, **SETTINGS}
        file = ResultFile(out / f"units-{count}.json", config=config)
        for seed in file.missing(range(seeds)):
            row = {"seed": seed, **_row(count, width, seed, epochs)}
            file.add(row, lambda rows: mean_spread([*map(_numbers, rows)]))
            print(f"{count} units, seed {seed}: {_numbers(row)}", flush=True)


def _numbers(row: Row) -> dict[str, float]:
    return {name: row[name] for name in ("alone", "latent", *GROUPS)}


def targets(count: int, seed: int) -> Dataset:
    """Rows of a network of so many rectified units, with noise."""
    random = torch.Generator().manual_seed(1000 * count + seed)
    x = torch.randn(2 * ROWS, FEATURES, generator=random)
    into = 1.5 * torch.randn(FEATURES, count, generator=random)
    sign = torch.randint(0, 2, (count,), generator=random) * 2.0 - 1.0
    out = sign * (1.0 + torch.rand(count, generator=random))
    y = torch.relu(x @ into + torch.randn(count, generator=random)) @ out
    y = y[:, None] + NOISE * torch.randn(len(x), 1, generator=random)
    return Dataset.from_tensors(x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:], val_fraction=0.1, seed=seed)


def _row(count: int, width: int, seed: int, epochs: int) -> Row:
    data = targets(count, seed)
    torch.manual_seed(seed)
    prior = models.priors.Normal(1.0)

    def fit(model: Any, guide: Any, share: float = 1.0, **own: Any) -> Any:
        settings = {**SETTINGS, "epochs": round(share * epochs), "seed": seed, **own}
        return inference.fit(model, guide, data, **settings)

    def bounds() -> Iterator[float]:
        spread = float(data.y_train.var(correction=0))
        yield -0.5 * data.N * (math.log(2 * math.pi * spread) + 1)  # of noise alone
        for k in range(1, width + 1):
            net = unit_stack(data.input_shape, data.outputs, max_depth=k).at(k)
            points = models.BayesianNetwork(net, data, prior=prior)
            begun = fit(points, guides.Delta(points), 0.5)
            means = begun.posterior.mean_network()
            one = models.BayesianNetwork(means, data, prior=prior)
            yield inference.evidence(fit(one, guides.MeanField(one, scale=0.05), 0.5)).value

    alone = [*bounds()]
    stack = unit_stack(data.input_shape, data.outputs, max_depth=width)
    of_depth = models.LearntDepth(stack, data=data, prior=models.priors.Uniform())
    fit(of_depth, guides.CategoricalDepth(of_depth, hold=0.98), 0.5)
    widths = models.BayesianStack(of_depth.stack, data, prior=prior)
    latent = fit(widths, guides.MeanField(widths, scale=0.05), kl_warmup=0.3)
    found = latent.structure
    row: Row = {
        "bounds": alone,
        "alone": next(k for k, b in enumerate(alone) if b >= max(alone) - EQUAL * data.N),
        "latent": found.depth_chosen,
        "width_probs": found.depth_probs.tolist(),
    }
    for name, of_groups in GROUPS.items():
        torch.manual_seed(seed)
        net = models.networks.perceptron(data.input_shape, data.outputs, hidden=(width,))
        model = models.BayesianNetwork(net, data, prior=of_groups())
        small = inference.shrink(fit(model, guides.MeanField(model), kl_warmup=0.3))
        row[name] = int(small.report.to_json()["architecture"].rpartition("-")[2])
    return row


if __name__ == "__main__":
    typer.run(main)
