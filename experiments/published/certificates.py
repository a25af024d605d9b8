"""Certificates of small convolutional networks: at most so many of new images are wrong.

    python -m experiments certificates --again --data mnist --ways plain

A posterior under normal priors, whose scales are learnt and paid, is trained with more weight on
the KL than the bound on the evidence has, and certified by it on the rows that it was trained on.
The prior may be around what another data set has taught (for MNIST the digits that come with the
package, which have seen none of MNIST's), or half of the rows (the certificate is then of the other
half, beside that of a network of the first half by these rows). LeNet-5, as it is usually trained,
is certified through the file of the small network and the inputs of the test rows, in which they
differ. Test rows are otherwise beside it, and not in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyroccam import data, guides, inference, models
from pyroccam.inference.certificates import ByPosterior, ByTest, Through
from torch import nn

from .markdown import column, header, plus_minus, read_all, row
from .runner import Choice, File, Given, Row, Spec, seeds

__all__ = ["SPEC"]

PUBLISHED = {
    "plain": {"mnist": 11.6, "fashion-mnist": 32.8},
    "other": {"mnist": 9.0, "fashion-mnist": 28.2},
    "half": {},
    "through": {},
}
"""In %: Lotfi et al. 2022, arXiv:2211.13609."""

OTHER = {
    "mnist": "fonts, and digits of scikit-learn",
    "fashion-mnist": "filters of MNIST",
}
"""What has taught the prior of ``other``, and of ``through``."""

KL_WEIGHT = {"mnist": 2.4, "fashion-mnist": 2.0}
CHOICES = 100  # that are paid for: networks, scales and weights of the KL that were looked at
IMAGES = ("mnist", "fashion-mnist")


def files(given: Given) -> Iterable[File]:
    """One of each data set and way."""
    for way in given.ways:
        for name in given.data:
            says = {"data": name, "prior": way, "kl_weight": _kl_weight(given, name)}
            says |= {n: getattr(given, n) for n in ("channels", "epochs", "n_train")}
            made = partial(_certified, given, name, way)
            few = "" if given.n_train is None else f"-{given.n_train}"
            yield File(f"{name}-{way}{few}", {"config": says}, made, seeds(given))


def _certified(given: Given, name: str, way: str, seed: int) -> Row:
    begun, rows = time.perf_counter(), _rows(given, name)
    first, counted = rows.halves(seed) if way == "half" else (rows, rows)
    net, before = _network(given, rows, seed), None
    prior: Any = models.priors.Normal(0.2, learn="scale")
    if way == "half":
        before = _fitted(given, net, prior, first, seed)
        net = before.posterior.mean_network()
        prior = models.priors.Pretrained(net, given.around, learn=True)
    elif way in ("other", "through"):
        prior = _of_other_data(given, name, net, prior, seed)
    fit = _fitted(given, net, prior, counted, seed)
    accuracy, more = fit.evaluate_ways()["stochastic"]["accuracy"], {}
    if way == "through":
        large, by = _lenet5(counted, seed), ByPosterior(choices=CHOICES)
        accuracy = large.evaluate()["accuracy"]
        through = Through(small=fit, x=counted.x_test, by=by)
        found = inference.certify(large.model.part("net"), counted, by=through)
    else:
        found = inference.certify(fit, counted, by=ByPosterior(choices=CHOICES))
    seconds = time.perf_counter() - begun
    if before is not None:  # what a person could have instead
        aside = counted.but(x_test=counted.x_train, y_test=counted.y_train)
        more = {"held_out": inference.certify(before, aside, by=ByTest()).to_json()}
    return {**found.to_json(), **more, "test_error": 1.0 - accuracy, "seconds": seconds}


def _of_other_data(given: Given, name: str, net: nn.Module, own: Any, seed: int) -> Any:
    """A prior around what other data have taught, where the network begins."""
    if name == "mnist":
        prior = models.priors.Pretrained.shipped(scale=given.around)
        prior.start(net)
        return prior
    rows = _rows(given, "mnist")
    mean = _fitted(given, _network(given, rows, seed), own, rows, seed).posterior.mean_network()
    around = models.priors.Pretrained(mean, given.around, learn=True)
    around.start(net)
    *filters, last = [n for n, one in net.named_modules() if hasattr(one, "weight")]
    return {**dict.fromkeys(filters, around), last: own}  # whose classes are others


def _lenet5(rows: data.Dataset, seed: int) -> inference.Fit:
    """LeNet-5 as it is usually trained."""
    torch.manual_seed(seed)
    net = models.networks.lenet_5_caffe(rows.input_shape, rows.outputs)
    model = models.PlainNetwork(net, rows)
    return inference.fit(
        model, guides.Deterministic(model), rows, epochs=10, batch_size=128, lr=1e-3,
        weight_decay=0.01, progress=False, seed=seed,
    )  # fmt: skip


def _rows(given: Given, name: str) -> data.Dataset:
    """Pixels in [0, 1]: nothing by which they are scaled has to be paid."""
    options = {"n_train": given.n_train, "data_root": given.data_root}
    options = {key: value for key, value in options.items() if value is not None}
    return data.load(name, val_fraction=0.0, standardise=False, **options)


def _kl_weight(given: Given, name: str) -> float:
    return KL_WEIGHT[name] if given.kl_weight is None else given.kl_weight


def _network(given: Given, rows: data.Dataset, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return models.networks.small_cnn(rows.input_shape, rows.outputs, channels=given.channels)


def _fitted(
    given: Given, net: nn.Module, prior: Any, rows: data.Dataset, seed: int
) -> inference.Fit:
    """A posterior."""
    model = models.BayesianNetwork(net, rows, prior=prior)
    guide = guides.MeanField(model, scale=0.05)
    return inference.fit(
        model, guide, rows, epochs=given.epochs, batch_size=256, lr=3e-3, kl_warmup=0.3,
        kl_weight=_kl_weight(given, rows.name), progress=False, seed=seed,
    )  # fmt: skip


def _source(name: str, way: str) -> str:
    """What the prior comes from."""
    if way in ("plain", "half"):
        return "the code of this package" if way == "plain" else "half of the rows"
    return OTHER[name] + ("; of LeNet-5, through the small network" if way == "through" else "")


def table(folder: Path) -> Iterable[str]:
    """Certificates by data set and prior, beside the published one."""
    found = read_all(folder, "*mnist-*")
    if not found:
        return
    yield from header(
        "images (seeds)", "rows that are counted", "the prior comes from",
        "with 95 % certainty at most, %", "published, %",
        "by the rows alone, of a network of the other half, %", "KL, nats",
        "wrong of the known rows, %", "wrong of test rows, one draw, %",
    )  # fmt: skip
    for one in found.values():
        runs, name, way = one["runs"], one["config"]["data"], one["config"]["prior"]
        known = PUBLISHED[way].get(name)
        yield row(
            f"{name} ({len(column(runs, 'error'))})",
            f"{runs[0]['rows']:,}",
            _source(name, way),
            plus_minus(runs, "error", 2, 100),
            "" if known is None else f"{known:.1f}",
            plus_minus([one["held_out"] for one in runs], "error", 2, 100) if way == "half" else "",
            plus_minus(runs, "nats", 0),
            plus_minus(runs, "wrong", 2, 100),
            plus_minus(runs, "test_error", 2, 100),
        )
    yield ""


SPEC = Spec(
    "experiments.published.certificates", "Certificates", "certificates",
    {
        "data": Choice(IMAGES), "ways": Choice(PUBLISHED), "channels": 8, "epochs": 20,
        "kl_weight": float,
        "around": 0.1, "n_train": int, "data_root": str,
    },
    files, table,
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
