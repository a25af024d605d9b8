"""Bits that send the labels of a data set, by every code, and the same with labels at random.

    python -m experiments labels --again --data-root FOLDER

Codes: uniform; the bound (weights by bits back); the compressed network in a real file, or a draw
of its posterior in one, and what is left to say of the labels with it; prequential, and switching
between models block by block. No code compresses labels that are drawn at random.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pyroccam.data import Dataset, load
from pyroccam.guides import CategoricalDepth, Delta, Guide, MeanField
from pyroccam.inference import Draw, Noise, shrink
from pyroccam.inference.files import read
from pyroccam.inference.marginal_likelihood.codes import block_ends, blocks_of, switching
from pyroccam.inference.marginal_likelihood.message import description_length
from pyroccam.inference.posterior.predict import streamed
from pyroccam.inference.training.fitting import fit
from pyroccam.inference.training.result import Fit
from pyroccam.models import BayesianNetwork, LearntDepth
from pyroccam.models.networks import lenet_5_caffe, with_dropout
from pyroccam.models.priors import GroupHorseshoe, GroupNormalJeffreys, Normal, WeightPrior
from torch import nn

from ..calibration import lenet_5
from ..coded_draws import CHANNELS, HIDDEN
from ..markdown import header, mean_sd, read_all, row
from ..runner import Choice, File, Given, Row, Spec

__all__ = ["CODERS", "PUBLISHED", "SETS", "SPEC", "switched", "table"]

# Kilobits for the labels of MNIST (Blier, Ollivier 2018, arXiv:1802.07044).
PUBLISHED = {"mnist": {"uniform": 199.0, "prequential": 4.10}}

Pair = tuple[Any, Guide]


@dataclass(frozen=True)
class _Set:
    """Epochs of a fit, of each fit of a prequential code, and of a posterior that is drawn from."""

    epochs: int
    coded_epochs: int
    drawn_epochs: int
    hidden: tuple[int, ...]
    batch_size: int = 256


SETS = {"digits": _Set(300, 200, 20, (100,)), "mnist": _Set(40, 15, 5, (300, 100))}
SHARES = [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0]
EARLIER, LATER = (5e-4, 1e-3, 2e-3), (0.11, 0.23, 0.45, 0.8)
"""Ends of blocks that a learner of few rows has besides, and one of many."""


def _mlp(rows: Dataset, own: _Set) -> nn.Module:
    sizes = [math.prod(rows.input_shape), *own.hidden, rows.outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    for place in range(len(own.hidden)):
        layers += [nn.Linear(sizes[place], sizes[place + 1]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def _dropped(rows: Dataset, own: _Set) -> nn.Module:
    return with_dropout(lenet_5(rows.input_shape, rows.outputs), 0.2, ["3", "6", "9", "11"])


def _narrow(rows: Dataset, own: _Set) -> nn.Module:
    side = 28
    net = lenet_5_caffe(
        (rows.input_shape[0], side, side), rows.outputs, channels=CHANNELS, hidden=HIDDEN
    )
    return net if rows.input_shape[1:] == (side, side) else nn.Sequential(nn.Upsample(side), *net)


def _bayes(
    prior: WeightPrior,
    guide: Callable[[BayesianNetwork], Guide],
    net: Callable[[Dataset, _Set], nn.Module] = _mlp,
) -> Callable[[Dataset, _Set], Pair]:
    def build(rows: Dataset, own: _Set) -> Pair:
        model = BayesianNetwork(net(rows, own), rows, prior=prior)
        return model, guide(model)

    return build


def _linear(rows: Dataset, own: _Set) -> Pair:
    net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(rows.input_shape), rows.outputs))
    model = BayesianNetwork(net, rows, prior=Normal("fan_in"))
    return model, MeanField(model)


def _depth(rows: Dataset, own: _Set) -> Pair:
    model = LearntDepth.mlp(rows.flattened(), width=own.hidden[0], max_depth=5)
    return model, CategoricalDepth(model)


@dataclass(frozen=True)
class _Coder:
    """How it is made; whether its guide has a bound that is a code, and its prior one from which
    the receiver can draw; whether it is compressed; settings of its own; ends of further blocks;
    how a draw is trained anew, if it is."""

    build: Callable[[Dataset, _Set], Pair]
    bounded: bool = False
    drawn: bool = False
    cut: bool = False
    how: Mapping[str, Any] = field(default_factory=dict)
    further: tuple[float, ...] = ()
    sample: Draw | None = None


# A thousand steps, or ten epochs where those are more.
PLAIN: dict[str, Any] = {"epochs": None, "steps": 1000, "batch_size": 128, "lr": 2e-3}
CODERS = {
    "linear": _Coder(_linear, bounded=True, drawn=True),
    "gaussian": _Coder(_bayes(Normal("fan_in"), MeanField), bounded=True, drawn=True, cut=True),
    "ghs": _Coder(_bayes(GroupHorseshoe(1e-3), MeanField), bounded=True, cut=True),
    "gnj": _Coder(_bayes(GroupNormalJeffreys(), MeanField), cut=True),
    "delta": _Coder(_bayes(Normal("fan_in"), Delta)),
    "lenet-5": _Coder(_bayes(Normal(1.0), Delta, _dropped), how=PLAIN, further=EARLIER),
    "lenet-5 for longer": _Coder(
        _bayes(Normal(1.0), Delta, _dropped), how={**PLAIN, "epochs": 40}, further=LATER
    ),
    "narrow lenet-5": _Coder(
        _bayes(Normal(1.0), Delta, _narrow),
        how=PLAIN,
        sample=Draw(
            bytes=600,
            basis="frequencies",
            epochs=20,
            steps=50,
            bits=20,
            batch_size=64,
            progress=False,
        ),
    ),
    "depth": _Coder(_depth),
}


def files(given: Given) -> Iterable[File]:
    """One of the data set."""
    own = SETS[given.data]
    if given.epochs is not None:
        own = _Set(given.epochs, given.epochs, given.epochs, (6,))
    settings = {**asdict(own), "hidden": [*own.hidden], "shares": SHARES}
    keys = [{"seed": seed, "coder": name} for seed in range(given.seeds) for name in given.coders]
    name = f"{given.data}{'-random' if given.at_random else ''}"
    yield File(name, {"settings": settings}, partial(_row, own, given), keys)


def _data(given: Given, seed: int) -> Dataset:
    """All training rows, and none to validate: the receiver has no others."""
    rows = load(given.data, data_root=given.data_root, seed=seed).all_rows()
    if not given.at_random:
        return rows
    generator = torch.Generator().manual_seed(seed)
    assert rows.classes is not None
    return replace(rows, y_train=torch.randint(rows.classes, (rows.N,), generator=generator))


def _row(own: _Set, given: Given, seed: int, coder: str) -> Row:
    how, rows = CODERS[coder], _data(given, seed)
    if coder == "depth":
        rows = rows.flattened()
    torch.manual_seed(seed)
    model, guide = how.build(rows, own)
    common: dict[str, Any] = {"batch_size": own.batch_size, "lr": 3e-3, "weight_decay": 0.0}
    common |= {"seed": seed, "device": "cpu", "progress": False, "compile": "graph"}
    asked = {} if given.epochs is None else {"epochs": given.epochs}
    common |= {"epochs": own.epochs, **how.how, **asked}
    warm: dict[str, Any] = {} if guide.traits.point or coder == "depth" else {"kl_warmup": 0.2}
    found = fit(model, guide, rows, **common, **warm)
    assert rows.classes is not None
    kept: Row = {
        "uniform": rows.N * math.log2(rows.classes),
        "accuracy": found.evaluate("test")["accuracy"],
    }
    if how.bounded:
        length = description_length(found, passes=5)
        kept["bound"] = {"weights": length.weights, "targets": length.targets}
    if how.cut:
        kept["file"] = _file(found)
    if how.drawn:
        sample = Draw(posterior="own", epochs=own.drawn_epochs, seed=seed, progress=False)
        kept["draw"] = _drawn(found, sample)
    if how.sample is not None:
        kept["draw"] = _drawn(found, replace(how.sample, seed=seed))
    order = torch.randperm(rows.N, generator=torch.Generator().manual_seed(seed))
    shares = sorted([*how.further, *SHARES])
    again = {"epochs": own.coded_epochs, **how.how, **asked}
    blocks = blocks_of(found, order, shares, seed=seed, **again)
    sent = dict(zip((b.end for b in blocks), accumulate(b.nats for b in blocks), strict=True))
    ends = block_ends(rows.N, SHARES, least=2)
    nats = [sent[ends[0]], *(sent[b] - sent[a] for a, b in pairwise(ends))]
    kept["blocks"] = [-one / math.log(2) for one in nats]
    return kept


def _drawn(found: Fit[Any, Any], sample: Draw) -> Row:
    """Bits of a draw in a file, and of the labels given what is read from that."""
    small = shrink(found, code=sample)
    return _with_rest(8.0 * small.bytes, small.net, found)


def _file(found: Fit[Any, Any]) -> Row:
    """Bits of the network in a file, and of the labels given what is read from that."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.pocc"
        try:
            small = shrink(found, cut=Noise())
            net = read(small.save(path))
        except ValueError as error:
            return {"refused": str(error)}
    return _with_rest(8.0 * small.bytes, net, found)


def _with_rest(bits: float, net: nn.Module, found: Fit[Any, Any]) -> Row:
    """Bits of a network, and of the labels given the network."""
    x, y = found.data.split("train")
    with torch.no_grad():
        outputs = streamed(lambda part: net(part)[None], x)[0]
    nats = -outputs.double().log_softmax(-1).gather(1, y[:, None]).sum()
    return {"network": bits, "labels": float(nats) / math.log(2)}


def switched(runs: list[Row]) -> list[float]:
    """Bits of the code that switches between all models and the uniform, by seed."""
    found = []
    for seed in sorted({run["seed"] for run in runs}):
        own = [run for run in runs if run["seed"] == seed]
        shares = torch.tensor(SHARES).diff(prepend=torch.zeros(1)).double()
        uniform = shares * own[0]["uniform"]
        bits = torch.tensor([*[run["blocks"] for run in own], uniform.tolist()])
        found.append(-switching(-bits.double() * math.log(2)) / math.log(2))
    return found


PARTS = ("bound", "file", "draw")


def table(folder: Path) -> Iterable[str]:
    """Bits that send the labels, in kilobits, by every model and code; weights first."""
    for name, found in read_all(folder).items():
        runs = found["runs"]
        uniform = runs[0]["uniform"] / 1000
        yield from header(
            f"{name}, uniform {uniform:.2f} kbit", "accuracy, %", "bound", "file and the rest",
            "draw and the rest", "prequential",
        )  # fmt: skip
        for coder in dict.fromkeys(run["coder"] for run in runs):
            own = [run for run in runs if run["coder"] == coder]
            accuracy = fmean(100 * run["accuracy"] for run in own)
            coded = fmean(sum(run["blocks"]) for run in own) / 1000
            cells = (_two_parts([run.get(part) for run in own]) for part in PARTS)
            yield row(f"{coder} ({len(own)})", f"{accuracy:.1f}", *cells, f"{coded:.2f}")
        yield row("switching between all", "", "", "", "", mean_sd(switched(runs), 2, 1e-3))
        if (published := PUBLISHED.get(name)) is not None:
            yield row("published", "", "", "", "", f"{published['prequential']:.2f}")
        yield ""


def _two_parts(found: list[Row | None]) -> str:
    """The sum of the two parts of a message, and each of them."""
    known = [tuple(one.values()) for one in found if one is not None and "refused" not in one]
    if not known:
        return ""
    first, second = (fmean(one[k] for one in known) / 1000 for k in (0, 1))
    return f"{first + second:.2f} ({first:.2f} + {second:.2f})"


SPEC = Spec(
    "experiments.published.evidence.labels", "Labels", "labels",
    {
        "data": "digits", "data_root": str, "coders": Choice(CODERS), "seeds": 2,
        "at_random": False, "epochs": int,
    },
    files, table,
    small="--coders linear,gnj --epochs 1 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
