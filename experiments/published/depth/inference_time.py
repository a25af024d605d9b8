"""Inference time over the depth of ordinary networks, beside that of a network that was cut.

    python -m experiments inference_time --again

The poster's figure 4, below: MNIST. Times are of shapes alone, so nothing is trained: the depth is
the one that the runs of :mod:`experiments.published.depth.images` chose under the prior by cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import torch
from matplotlib.figure import Figure
from pyroccam.inference.cutting.cost import seconds_per_batch
from pyroccam.inference.figures import CYCLE, new_figure, styled
from pyroccam.models import Classification
from pyroccam.models.networks import ready as networks
from pyroccam.models.plain.pruned import PrunedNetwork

from ..markdown import header, read_all, row
from ..runner import RESULTS, File, Given, Made, Row, Spec

__all__ = ["SPEC"]


def files(given: Given) -> Iterable[File]:
    """One."""
    says = {"config": {"batch": given.batch, "depths": list(given.depths)}}
    yield File("mnist", says, partial(_times, given))


def _times(given: Given) -> Row:
    runs = [*read_all(RESULTS / "images", "mnist-seed-*").values()]
    chosen = int(median(one["structure"]["ldn-cost"]["depth_chosen"] for one in runs))
    described = {**runs[0]["network"], "max_depth": max(*given.depths, chosen)}
    stack = networks.build(described).to(memory_format=torch.channels_last)
    likelihood = Classification(described["outputs"])
    nets = {str(d): PrunedNetwork(stack, d, None, likelihood) for d in given.depths}
    weights = torch.full((chosen + 1,), 1 / (chosen + 1))
    nets["cut"] = PrunedNetwork(stack, chosen, weights, likelihood)
    seconds = seconds_per_batch(
        nets, torch.randn(given.batch, *described["input_shape"]), rounds=15
    )
    fixed = {str(d): seconds[str(d)] for d in given.depths}
    return {"depth": chosen, "cut": seconds["cut"], "fixed": fixed}


def drawn(given: Given) -> Mapping[str, Made]:
    """One figure."""
    found = read_all(given.out).get("mnist")
    return {} if found is None else {"mnist": partial(figure, found)}


@styled
def figure(found: Row) -> Figure:
    """Milliseconds over depth, and the share that the cut network saves."""
    drawn_ = new_figure(2.9)
    left, right = drawn_.subplots(1, 2)
    depths = [int(d) for d in found["fixed"]]
    times = [1e3 * seconds for seconds in found["fixed"].values()]
    cut = 1e3 * found["cut"]
    left.plot(depths, times, "o-", color=CYCLE[1], label="ordinary network")
    left.axhline(cut, color=CYCLE[0], label=f"learnt, cut at {found['depth']}")
    left.set_ylabel(f"ms for {found['config']['batch']} images")
    left.set_ylim(bottom=0.0)
    left.legend(fontsize="small")
    right.plot(depths, [100 * (1 - cut / time) for time in times], "o-", color=CYCLE[0])
    right.axhline(0.0, color="0.6", linewidth=0.8)
    right.set_ylabel("time saved, %")
    for axes in (left, right):
        axes.set_xlabel("depth of the ordinary network")
    drawn_.suptitle("MNIST: inference time over depth", fontsize=10.5)
    return drawn_


def table(folder: Path) -> Iterable[str]:
    """Times by depth."""
    for name, found in read_all(folder).items():
        yield from header(f"{name}, depth", *found["fixed"], f"cut at {found['depth']}")
        times = [*found["fixed"].values(), found["cut"]]
        yield row(f"ms for {found['config']['batch']} images", *(f"{1e3 * t:.1f}" for t in times))
        yield ""


SPEC = Spec(
    "experiments.published.depth.inference_time", "Inference time", "inference_time",
    {"batch": 128, "depths": (1, 2, 5, 10, 20, 30, 40, 50)}, files, table, drawn,
    small="--batch 2 --depths 1,2,8",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
