"""Batch normalisation in the head: statistics for each depth against statistics shared by all.

    python -m experiments.published.depth.head --out experiments/results/head

The convolutional net on scikit-learn's digits (8 x 8), D = 10. After training, the NLL of every
depth on the training rows with batch statistics (train mode) and with running ones (eval mode).
Shared statistics, as the authors released them, are dominated by the last depths they saw, and
evaluation mode breaks at the others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import typer
from pyroccam import data as datasets
from pyroccam import guides, inference
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.storage.checkpoint import versions, write_json
from pyroccam.models import LearntDepth
from pyroccam.models.networks import ready as networks
from pyroccam.models.networks.normalisation import DepthBatchNorm
from torch import Tensor, nn

from .. import options


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


def main(
    out: options.Out = options.RESULTS / "head",
    seeds: options.Count = 3,
    epochs: options.Count = 60,
) -> None:
    """Run and write head.json."""
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        for kind in ("per depth", "shared"):
            found = _one(kind, seed, epochs)
            runs.append(found)
            print(kind, seed, f"largest gap {found['largest_gap']:.4f} nats", flush=True)
    summary = {
        kind: mean_spread([
            {"largest_gap": r["largest_gap"]} for r in runs if r["statistics"] == kind
        ])
        for kind in ("per depth", "shared")
    }  # fmt: skip
    write_json(out / "head.json", {"summary": summary, "runs": runs, "versions": versions()})


def _one(kind: str, seed: int, epochs: int) -> dict[str, Any]:
    digits = datasets.load("digits", seed=seed)
    torch.manual_seed(seed)
    stack = networks.residual_conv(
        digits.input_shape, digits.outputs, width=16, inner=8, max_depth=10, pool=2
    )
    if kind == "shared":
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
    return {"statistics": kind, "seed": seed, "nll_by_depth": nll, "largest_gap": max(gaps)}


if __name__ == "__main__":
    typer.run(main)
