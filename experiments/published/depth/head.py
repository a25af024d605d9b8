"""Batch normalisation in the head: statistics for each depth against statistics shared by all.

    python -m experiments head --again

The convolutional net on scikit-learn's digits (8 x 8), D = 10. After training, the NLL of every
depth on the training rows with batch statistics (train mode) and with running ones (eval mode).
Shared statistics, as the authors released them, are dominated by the last depths they saw, and
evaluation mode breaks at the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from pyroccam import data as datasets
from pyroccam import guides, inference
from pyroccam.models import LearntDepth
from pyroccam.models.networks import ready as networks
from pyroccam.models.networks.normalisation import DepthBatchNorm
from torch import Tensor, nn

from ..markdown import header, plus_minus, read_all, row
from ..runner import File, Given, Row, Spec

__all__ = ["SPEC"]


class SharedStatistics(DepthBatchNorm):
    """Each depth is normalised in turn, all updating one set of running statistics."""

    def __init__(self, norm: DepthBatchNorm) -> None:
        super().__init__(nn.BatchNorm1d(norm.num_features), norm.depths)
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, getattr(self, name)[0].clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([
            F.batch_norm(
                part, self.running_mean, self.running_var, self.weight, self.bias, self.training,
                0.1, self.eps,
            )
            for part in x.chunk(self.depths)
        ])  # fmt: skip


KINDS = ("per depth", "shared")


def files(given: Given) -> Iterable[File]:
    """One, of both kinds of statistics."""
    keys = [{"seed": s, "statistics": kind} for s in range(given.seeds) for kind in KINDS]
    yield File("head", {}, partial(_one, given.epochs), keys)


def _one(epochs: int, seed: int, statistics: str) -> Row:
    digits = datasets.load("digits", seed=seed)
    torch.manual_seed(seed)
    stack = networks.residual_conv(
        digits.input_shape, digits.outputs, width=16, inner=8, max_depth=10, pool=2
    )
    if statistics == "shared":
        for parent in list(stack.head.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, DepthBatchNorm):
                    setattr(parent, name, SharedStatistics(child))
    model = LearntDepth(stack, data=digits)
    inference.fit(
        model, guides.CategoricalDepth(model), digits,
        epochs=epochs, batch_size=128, lr=5e-3, weight_decay=0.01, seed=seed,
    )  # fmt: skip
    nll = {}
    with torch.no_grad():
        for mode in ("eval", "train"):  # train last: it moves the running statistics
            model.train(mode == "train")
            ll = model.log_likelihood(digits.x_train, digits.y_train)
            nll[mode] = [-float(v) for v in ll.double().mean(1)]
    gaps = [abs(a - b) for a, b in zip(nll["eval"], nll["train"], strict=True)]
    return {"nll_by_depth": nll, "largest_gap": max(gaps)}


def table(folder: Path) -> Iterable[str]:
    """How far running statistics are from those of batches."""
    for found in read_all(folder, "head").values():
        yield from header("statistics in the head", "largest gap over depths, nats")
        for kind in KINDS:
            own = [run for run in found["runs"] if run["statistics"] == kind]
            yield row(kind, plus_minus(own, "largest_gap", 3))


SPEC = Spec(
    "experiments.published.depth.head", "Head", "head", {"epochs": 60}, files, table,
    small="--seeds 1 --epochs 2",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
