"""Tables of the experiments with variance networks, from their result files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..markdown import header, plus_minus, read_all, row
from .mean_propagation import ORDERS
from .toys import REGIONS

__all__ = ["mean_propagation", "networks", "policy_gradient", "robustness", "toys"]

_WAYS = ("stochastic", "deterministic", "ensemble")


def networks(folder: Path) -> Iterable[str]:
    """Accuracies of three ways to predict, and bounds, beside the published."""
    files = read_all(folder)
    if not files:
        return
    yield from header("data, network, contender (seeds)", *(f"{w}, %" for w in _WAYS), "ELBO, nats")
    for name, found in files.items():
        spread = found["spread"]
        cells = [plus_minus(spread[way], 2) for way in _WAYS]
        bound = _power(spread["elbo"]["mean"]) if "elbo" in spread else ""
        yield row(f"{name} ({len(found['runs'])})", *cells, bound)
        if (published := found["published"]) is not None:
            known = [f"{published[way]:g}" if way in published else "" for way in _WAYS]
            elbo = _power(published["elbo"]) if "elbo" in published else ""
            yield row("published", *known, elbo)


def _power(value: float) -> str:
    return f"{value:.1e}"


def mean_propagation(folder: Path) -> Iterable[str]:
    """How many weights have to be drawn, by the order in which they are."""
    for stem, found in read_all(folder).items():
        yield from header(
            f"{stem}, posterior (seeds)", "means, %", "all drawn, %",
            *(f"by {order}" for order in ORDERS),
        )  # fmt: skip
        for name, spread in found["spread"].items():
            shares = [plus_minus(spread[f"share, {order}"], 1, 100) for order in ORDERS]
            yield row(
                f"{name} ({len(found['runs'][name])})", plus_minus(spread["deterministic"], 2),
                plus_minus(spread["ensemble"], 2), *shares,
            )  # fmt: skip
        yield ""


def policy_gradient(folder: Path) -> Iterable[str]:
    """Mean return of the last episodes of training, and with the mean weights."""
    files = read_all(folder).values()
    if not files:
        return
    yield from header("environment, policy (seeds)", "return", "after training", "mean weights")
    for found in files:
        config, spread = found["config"], found["spread"]
        cells = [plus_minus(spread[key], 0) for key in ("final", "noise", "mean_weights")]
        yield row(f"{config['environment']}, {config['policy']} ({len(found['runs'])})", *cells)


def robustness(folder: Path) -> Iterable[str]:
    """Accuracy under attacks on the averaged prediction, and how data from elsewhere are told."""
    for stem, found in read_all(folder).items():
        shown = [f"{size:g}" for size in found["asked"]["epsilons"][2:4]]
        yield from header(
            f"{stem} ({len(found['runs'])} seeds)", "accuracy",
            *(f"{kind} {size}" for kind in ("FGSM", "iterated") for size in shown),
            "AUROC, entropy", "AUROC, mutual information",
        )  # fmt: skip
        for name, spread in found["spread"].items():
            auroc = spread["auroc"]
            yield row(
                name,
                plus_minus(spread["test"]["accuracy"], 3),
                *(plus_minus(spread[k][size], 3) for k in ("fgsm", "iterated") for size in shown),
                *(plus_minus(auroc[k], 2) for k in ("predictive_entropy", "mutual_information")),
            )
        yield ""


def toys(folder: Path) -> Iterable[str]:
    """Table of the bands of a regression: how many targets they cover, and how wide they are."""
    for found in read_all(folder, ["regression"]).values():
        yield from header(f"95 % band ({len(found['runs'])} seeds)", "RMSE", *REGIONS)
        for name, spread in found["spread"].items():
            bands = (
                f"{plus_minus(spread[p]['coverage'], 2)}, {spread[p]['width']['mean']:.2f} wide"
                for p in REGIONS
            )
            yield row(name, plus_minus(spread["test"]["rmse"], 3), *bands)
