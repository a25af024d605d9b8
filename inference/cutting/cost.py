"""Costs of a network: its parameters, and the time of a pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...data import Count, Positive
from ...models import Fields, fields_of, give

LONGEST = 30.0
"""Seconds that rounds of a comparison take together, about; of slow networks fewer are made."""

FEWEST = 5
"""Rounds, at least."""


def count_parameters(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(p.numel() for p in module.parameters())


def multiply_adds(net: nn.Module, x: Tensor, fields: Fields | None = None) -> int:
    """Multiplications, each with an addition, of matrix products and convolutions in a pass.

    Arguments:
        net: in evaluation mode.
        x: one row, ``(1, *)``.
        fields: what stands where in a row, if the network takes several inputs.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        give(net, x, fields)
    return int(counter.get_total_flops()) // 2


BATCHES = (1, 256)
"""Rows at once for which networks are timed: one that is asked for alone, and many."""


def seconds_per_batch(
    nets: Mapping[str, Callable[..., Any]],
    x: Tensor,
    *,
    rounds: Count = 15,
    least_seconds: Positive = 0.01,
) -> dict[str, float]:
    """Median wall time of a forward pass on ``x``, the contenders alternating in each round.

    Arguments:
        nets: contenders, in evaluation mode.
        x: one batch; where one of them is a network that is fed with a table, all are.
        rounds: measurements of each, at most.
        least_seconds: a measurement repeats the pass until it lasts this long.
    """
    times = _rounds(nets, x, rounds, least_seconds)
    return {name: statistics.median(t) for name, t in times.items()}


def compare_speed(
    nets: Mapping[str, nn.Module], x: Tensor, before: str, *, rounds: Count = 41,
    least_seconds: Positive = 0.002,
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Times of networks beside those of one of them, for one row and for many.

    Arguments:
        nets: contenders, in evaluation mode.
        x: rows, of which :data:`BATCHES` are taken.
        before: the name of the network with which the others are compared.
        rounds, least_seconds: as for :func:`seconds_per_batch`. Other programs slow down a round or
            two: many short rounds have medians and quartiles that do not mind.

    Returns:
        By name, for each size of batch: ``batch``; ``times_faster``, the quartiles of the ratios of
        what stood beside each other in a round; ``seconds`` and ``seconds_before``, the times of
        the round whose ratio is the median (of the other network itself, the median time), so that
        times and ratios do not contradict each other on a busy machine.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in nets}
    for batch in sorted({min(size, len(x)) for size in BATCHES}):
        times = _rounds(nets, x[:batch], rounds, least_seconds)
        for name, own in times.items():
            ratios = [a / b for a, b in zip(times[before], own, strict=True)]
            low, _, high = statistics.quantiles(ratios, method="inclusive")
            order = sorted(range(len(own)), key=lambda k: (ratios[k], own[k]))
            middle = order[len(order) // 2]
            found[name].append(
                {
                    "batch": batch,
                    "seconds": own[middle],
                    "seconds_before": times[before][middle],
                    "times_faster": [low, high],
                }
            )
    return found


def _rounds(
    nets: Mapping[str, Callable[..., Any]], x: Tensor, rounds: int, least_seconds: float
) -> dict[str, list[float]]:
    """Seconds of a pass, in each round."""

    def passes(net: Any, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            give(net, x, fields)
        if x.is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    given = (fields_of(net) for net in nets.values() if isinstance(net, nn.Module))
    fields = next((found for found in given if found is not None), None)
    x = x.clone()  # which a network may change in place
    times: dict[str, list[float]] = {name: [] for name in nets}
    with torch.inference_mode():
        counts, whole = {}, 0.0
        for name, net in nets.items():
            passes(net, 2)
            each = max(passes(net, 2), 1e-9)
            counts[name] = max(1, int(least_seconds / each))
            whole += counts[name] * each
        for _ in range(min(rounds, max(FEWEST, int(LONGEST / whole)))):
            for name, net in nets.items():
                times[name].append(passes(net, counts[name]))
    return times
