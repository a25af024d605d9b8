"""Certificates of small convolutional networks: at most so many of new images are wrong.

    python -m experiments.published.certificates --data mnist

A posterior under a normal prior that was fixed beforehand is trained with more weight on the KL
than the bound on the evidence has, and certified by it on the 60,000 rows that it was trained on.
Nothing is chosen: the settings are those of a first trial. Test rows are beside it, and not in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from pyroccam import data, guides, inference, models
from torch import nn

from .markdown import column, header, plus_minus, read_all, row
from .runner import Choice, File, Given, Row, Spec, seeds

__all__ = ["SPEC"]

PUBLISHED = {"mnist": 11.6, "fashion-mnist": 32.8}
"""Without data in the prior, in %: Lotfi et al. 2022, arXiv:2211.13609."""

KL_WEIGHT = {"mnist": 2.4, "fashion-mnist": 2.0}


def network(widths: Iterable[int]) -> nn.Sequential:
    """LeNet-5 with filters of these widths and one hidden layer, for 28 x 28 grey images."""
    first, second, hidden = widths
    return nn.Sequential(
        nn.Conv2d(1, first, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(first, second, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * second, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    )  # fmt: skip


def files(given: Given) -> Iterable[File]:
    """One of each data set."""
    for name in given.data:
        says = {"data": name, "kl_weight": KL_WEIGHT[name]}
        says |= {n: getattr(given, n) for n in ("widths", "epochs", "scale", "n_train")}
        yield File(name, {"config": says}, partial(_certified, given, name), seeds(given))


def _certified(given: Given, name: str, seed: int) -> Row:
    options = {"n_train": given.n_train, "data_root": given.data_root}
    options = {key: value for key, value in options.items() if value is not None}
    rows = data.load(name, val_fraction=0.0, **options)
    torch.manual_seed(seed)
    prior = models.priors.Normal(given.scale)
    model = models.BayesianNetwork(network(given.widths), rows, prior=prior)
    guide = guides.MeanField(model, scale=0.05)
    begun = time.perf_counter()
    fit = inference.fit(
        model, guide, rows, epochs=given.epochs, batch_size=256, lr=3e-3, kl_warmup=0.3,
        kl_weight=KL_WEIGHT[name], progress=False, seed=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    found = inference.certify(fit, rows)
    accuracy = fit.evaluate_ways()["stochastic"]["accuracy"]
    return {**found.to_json(), "test_error": 1.0 - accuracy, "seconds": seconds}


def table(folder: Path) -> Iterable[str]:
    """Certificates by data set, beside the published one."""
    found = read_all(folder)
    if not found:
        return
    yield from header(
        "images (seeds)", "with 95 % certainty at most, %", "published, %", "KL, nats",
        "wrong of 60,000, %", "wrong of test rows, one draw, %",
    )  # fmt: skip
    for name, one in found.items():
        runs = one["runs"]
        yield row(
            f"{name} ({len(column(runs, 'error'))})",
            plus_minus(runs, "error", 2, 100),
            f"{PUBLISHED[name]:.1f}",
            plus_minus(runs, "nats", 0),
            plus_minus(runs, "wrong", 2, 100),
            plus_minus(runs, "test_error", 2, 100),
        )
    yield ""


SPEC = Spec(
    "experiments.published.certificates", "Certificates", "certificates",
    {
        "data": Choice(PUBLISHED), "widths": (8, 12, 32), "epochs": 60, "scale": 0.2,
        "n_train": int, "data_root": str,
    },
    files, table,
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
