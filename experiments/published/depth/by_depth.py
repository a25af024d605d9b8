"""Functions that exits at each depth compute: of learnt depth, and of an ordinary network.

    python -m experiments by_depth --again

The poster's figure 3. Both have twenty blocks of width 20 on the spirals. The ordinary network is
trained at its full depth, and its head is put behind each of its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam.cli.runs.execution import RunOptions, run
from pyroccam.data import Dataset
from pyroccam.inference import figures
from pyroccam.inference.figures.canvas import floats
from pyroccam.inference.posterior import outputs_by_depth
from torch import Tensor, nn

from ..markdown import header, read_all, row
from ..runner import File, Given, Row, Spec, resolve, seeds

__all__ = ["SPEC", "exits"]

SHOWN = (0, 1, 2, 3, 4, 6, 10, 20)
SIDE = 120  # of the grid of a figure
DECAY = {"weight_decay": 0.03}  # that of the figures
TITLES = {"ldn": "learnt depth", "ddn": "an ordinary network"}


def exits(net: nn.Sequential, x: Tensor) -> Tensor:
    """The head of an ordinary network behind its stem and behind each block, ``(D + 1, B, *)``."""
    stem, *blocks, head = net
    activations = [stem(x)]
    for block in blocks:
        activations.append(block(activations[-1]))
    return torch.stack([head(one) for one in activations])


def files(given: Given) -> Iterable[File]:
    """One, with a row for each seed."""
    config, _ = resolve("ldn", "spirals", sets=DECAY | given.set)
    says = {"config": config.without_seed()}
    yield File("spirals", says, partial(_one, given), seeds(given))


@torch.no_grad()
def _one(given: Given, seed: int) -> Row:
    """Accuracies by depth; of the first seed figures, too."""
    found: Row = {}
    for method in TITLES:
        config, data = resolve(method, "spirals", seed, sets=DECAY | given.set)
        with torch.enable_grad():
            outcome = run(config, data, options=RunOptions(compare=False))
        model: Any = outcome.fit.model.eval()
        data = outcome.fit.data
        outputs = partial(exits, model.net) if method == "ddn" else partial(outputs_by_depth, model)
        right = outputs(data.x_test).argmax(-1) == data.y_test
        found[method] = right.double().mean(1).tolist()
        chosen = None
        if method == "ldn":
            chosen = found["chosen"] = outcome.metrics["structure"]["depth_chosen"]
        if seed == 0:
            title = f"spirals: functions by depth, {TITLES[method]}"
            figures.save(_figure(outputs, data, chosen), given.out / method, title=title)
    return found


def _figure(outputs: Any, data: Dataset, chosen: int | None) -> Figure:
    low, high = data.x_test.amin(0) - 0.3, data.x_test.amax(0) + 0.3
    first, second = (torch.linspace(float(low[k]), float(high[k]), SIDE) for k in (0, 1))
    points = torch.cartesian_prod(second, first).flip(1)
    surfaces = outputs(points).softmax(-1)[..., 1].reshape(-1, SIDE, SIDE)
    depths = sorted({d for d in SHOWN if d < len(surfaces)} | ({chosen} if chosen else set()))[:8]
    rows = data.first(data.N)
    return figures.spiral_functions(
        rows.x_train, rows.y_train, first, second, floats(surfaces[depths]), depths,
        None, chosen,
    )  # fmt: skip


def table(folder: Path) -> Iterable[str]:
    """Accuracies by depth."""
    for found in read_all(folder).values():
        for run_ in found["runs"]:
            depths = [d for d in SHOWN if d < len(run_["ldn"])]
            yield from header(f"seed {run_['seed']}: accuracy at depth", *map(str, depths))
            for method, title in TITLES.items():
                yield row(title, *(f"{run_[method][d]:.3f}" for d in depths))
            yield ""


SPEC = Spec(
    "experiments.published.depth.by_depth", "Functions by depth", "by_depth",
    {"seeds": 1, "set": {}}, files, table,
    small="--set max_depth=3 --set width=8 --set steps=40",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
