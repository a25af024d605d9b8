"""Costs of a network: its parameters, and the time of a pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["count_parameters", "seconds_per_batch"]


def count_parameters(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(p.numel() for p in module.parameters())


def seconds_per_batch(
    nets: Mapping[str, nn.Module], x: Tensor, *, rounds: int = 15, least_seconds: float = 0.01
) -> dict[str, float]:
    """Median wall time of a forward pass on ``x``, the contenders alternating in each round.

    Arguments:
        nets: contenders, in evaluation mode.
        x: one batch.
        rounds: measurements of each.
        least_seconds: a measurement repeats the pass until it lasts this long.
    """

    def passes(net: Any, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            net(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    x = x.clone()  # which a network may change in place
    times: dict[str, list[float]] = {name: [] for name in nets}
    with torch.inference_mode():
        counts = {}
        for name, net in nets.items():
            passes(net, 2)
            counts[name] = max(1, int(least_seconds / max(passes(net, 2), 1e-9)))
        for _ in range(rounds):
            for name, net in nets.items():
                times[name].append(passes(net, counts[name]))
    return {name: statistics.median(t) for name, t in times.items()}
