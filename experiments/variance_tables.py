"""Tables of the experiments with variance networks, from their result files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .markdown import header, plus_minus, read, row
from .mean_propagation import ORDERS

__all__ = ["mean_propagation", "policy_gradient", "variance"]

_WAYS = ("stochastic", "deterministic", "ensemble")


def variance(folder: Path) -> Iterable[str]:
    """Accuracies of three ways to predict, and bounds, beside the published."""
    files = {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
    if not files:
        return
    yield from header("data, network, contender (seeds)", *(f"{w}, %" for w in _WAYS), "ELBO, nats")
    for name, found in files.items():
        spread = found["spread"]
        cells = [plus_minus(spread[way], 2) for way in _WAYS]
        yield row(f"{name} ({len(found['runs'])})", *cells, _power(spread["elbo"]["mean"]))
        if (published := found["published"]) is not None:
            known = [f"{published[way]:g}" if way in published else "" for way in _WAYS]
            elbo = _power(published["elbo"]) if "elbo" in published else ""
            yield row("published", *known, elbo)


def _power(value: float) -> str:
    return f"{value:.1e}"


def mean_propagation(folder: Path) -> Iterable[str]:
    """How many weights have to be drawn, by the order in which they are."""
    for path in sorted(folder.glob("*.json")):
        found = read(path)
        yield from header(
            f"{path.stem}, posterior (seeds)", "means, %", "all drawn, %",
            *(f"by {order}" for order in ORDERS),
        )  # fmt: skip
        for name, spread in found["spread"].items():
            shares = [_percent(spread[f"share, {order}"]) for order in ORDERS]
            yield row(
                f"{name} ({len(found['runs'][name])})", plus_minus(spread["deterministic"], 2),
                plus_minus(spread["ensemble"], 2), *shares,
            )  # fmt: skip
        yield ""


def _percent(m: dict[str, Any]) -> str:
    return plus_minus({k: v if k == "n" or v is None else 100 * v for k, v in m.items()}, 1)


def policy_gradient(folder: Path) -> Iterable[str]:
    """Mean return of the last episodes of training, and with the mean weights."""
    files = [read(path) for path in sorted(folder.glob("*.json"))]
    if not files:
        return
    yield from header("environment, policy (seeds)", "return", "after training", "mean weights")
    for found in files:
        config, spread = found["config"], found["spread"]
        cells = [plus_minus(spread[key], 0) for key in ("final", "noise", "mean_weights")]
        yield row(f"{config['environment']}, {config['policy']} ({len(found['runs'])})", *cells)
