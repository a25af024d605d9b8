"""Bits that send the labels of a data set, by every code, and the same with labels at random.

    python -m experiments.published.evidence.labels --data-root FOLDER

Codes: uniform; the bound (weights by bits back); the compressed network in a real file, or a draw
of its posterior in one, and what is left to say of the labels with it; prequential, and switching
between models block by block. No code compresses labels that are drawn at random.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from pyroccam.data import Dataset, load
from pyroccam.guides import CategoricalDepth, Delta, Guide, MeanField
from pyroccam.inference import Draw, Noise, shrink
from pyroccam.inference.fits.fitting import Fit, fit
from pyroccam.inference.marginal_likelihood import blocks_of, description_length, switching
from pyroccam.inference.packing.packed import read, write
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import streamed
from pyroccam.models import BayesianNetwork, LearntDepth
from pyroccam.models.priors import GroupHorseshoe, GroupNormalJeffreys, Normal, WeightPrior
from torch import nn

from .. import options
from ..runner import ResultFile, Row

__all__ = ["CODERS", "PUBLISHED", "SETS"]

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


def _bayes(
    prior: WeightPrior, guide: Callable[[BayesianNetwork], Guide]
) -> Callable[[Dataset, _Set], Pair]:
    def build(rows: Dataset, own: _Set) -> Pair:
        sizes = [math.prod(rows.input_shape), *own.hidden, rows.outputs]
        layers: list[nn.Module] = [nn.Flatten()]
        for place in range(len(own.hidden)):
            layers += [nn.Linear(sizes[place], sizes[place + 1]), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))
        model = BayesianNetwork(net, rows, prior=prior)
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
    the receiver can draw; whether it is compressed."""

    build: Callable[[Dataset, _Set], Pair]
    bounded: bool = False
    drawn: bool = False
    cut: bool = False


CODERS = {
    "linear": _Coder(_linear, bounded=True, drawn=True),
    "gaussian": _Coder(_bayes(Normal("fan_in"), MeanField), bounded=True, drawn=True, cut=True),
    "ghs": _Coder(_bayes(GroupHorseshoe(1e-3), MeanField), bounded=True, cut=True),
    "gnj": _Coder(_bayes(GroupNormalJeffreys(), MeanField), cut=True),
    "delta": _Coder(_bayes(Normal("fan_in"), Delta)),
    "depth": _Coder(_depth),
}


def main(
    data: options.Data = "digits",
    data_root: options.DataRoot = None,
    out: options.Out = options.RESULTS / "labels",
    coders: Annotated[str, options.BY_COMMAS] = ",".join(CODERS),
    seeds: options.Count = 2,
    at_random: Annotated[bool, typer.Option(help="Draw the labels anew.")] = False,
    threads: options.Count = 1,
) -> None:
    """Run what is missing, and write one JSON file for the data set."""
    torch.set_num_threads(threads)
    options.listed("set", data, SETS)
    settings = {**vars(SETS[data]), "hidden": [*SETS[data].hidden], "shares": SHARES}
    file = ResultFile(out / f"{data}{'-random' if at_random else ''}.json", settings=settings)
    for seed in range(seeds):
        rows = _data(data, seed, data_root, at_random)
        for name in options.listed("coder", coders, CODERS):
            if any((r["seed"], r["coder"]) == (seed, name) for r in file.runs):
                continue
            file.runs.append(_row(name, rows, SETS[data], seed))
            file.write(switching=_switched(file.runs), published=PUBLISHED.get(data))
            print(_line(file.runs[-1]), flush=True)


def _data(name: str, seed: int, data_root: str | None, at_random: bool) -> Dataset:
    """All training rows, and none to validate: the receiver has no others."""
    rows = load(name, data_root=data_root, seed=seed).all_rows()
    if not at_random:
        return rows
    generator = torch.Generator().manual_seed(seed)
    assert rows.classes is not None
    return replace(rows, y_train=torch.randint(rows.classes, (rows.N,), generator=generator))


def _row(name: str, rows: Dataset, own: _Set, seed: int) -> Row:
    coder = CODERS[name]
    if name == "depth":
        rows = rows.flattened()
    torch.manual_seed(seed)
    model, guide = coder.build(rows, own)
    common: dict[str, Any] = {"batch_size": own.batch_size, "lr": 3e-3, "weight_decay": 0.0}
    common |= {"seed": seed, "device": "cpu", "progress": False, "compile": "graph"}
    warm: dict[str, Any] = {} if guide.traits.point or name == "depth" else {"kl_warmup": 0.2}
    found = fit(model, guide, rows, epochs=own.epochs, **common, **warm)
    assert rows.classes is not None
    kept: Row = {
        "seed": seed,
        "coder": name,
        "uniform": rows.N * math.log2(rows.classes),
        "accuracy": found.evaluate("test")["accuracy"],
    }
    if coder.bounded:
        length = description_length(found, passes=5)
        kept["bound"] = {"weights": length.weights, "targets": length.targets}
    if coder.cut:
        kept["file"] = _file(found)
    if coder.drawn:
        how = Draw(posterior="own", epochs=own.drawn_epochs, seed=seed, progress=False)
        drawn = shrink(found, code=how)
        kept["draw"] = _with_rest(8.0 * len(drawn.content), drawn.net, found)
    order = torch.randperm(rows.N, generator=torch.Generator().manual_seed(seed))
    blocks = blocks_of(found, order, SHARES, seed=seed, epochs=own.coded_epochs)
    kept["blocks"] = [-block.nats / math.log(2) for block in blocks]
    return kept


def _file(found: Fit[Any, Any]) -> Row:
    """Bits of the network in a file, and of the labels given what is read from that."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.pocc"
        try:
            size = write(shrink(found, cut=Noise()).net, path)
        except ValueError as error:
            return {"refused": str(error)}
        net = read(path)
    return _with_rest(8.0 * size.total, net, found)


def _with_rest(bits: float, net: nn.Module, found: Fit[Any, Any]) -> Row:
    """Bits of a network, and of the labels given the network."""
    x, y = found.data.split("train")
    with torch.no_grad():
        outputs = streamed(lambda part: net(part)[None], x)[0]
    nats = -outputs.double().log_softmax(-1).gather(1, y[:, None]).sum()
    return {"network": bits, "labels": float(nats) / math.log(2)}


def _switched(runs: list[Row]) -> Row:
    """Bits of the code that switches between all models and the uniform, by seed."""
    found = []
    for seed in sorted({run["seed"] for run in runs}):
        own = [run for run in runs if run["seed"] == seed]
        shares = torch.tensor(SHARES).diff(prepend=torch.zeros(1)).double()
        uniform = shares * own[0]["uniform"]
        bits = torch.tensor([*[run["blocks"] for run in own], uniform.tolist()])
        found.append({"bits": -switching(-bits.double() * math.log(2)) / math.log(2)})
    return mean_spread(found)


def _line(row: Row) -> str:
    parts = [f"{row['coder']} seed {row['seed']}: accuracy {row['accuracy']:.4f}"]
    parts += [f"uniform {row['uniform']:,.0f}", f"prequential {sum(row['blocks']):,.0f}"]
    for name in ("bound", "file", "draw"):
        if name in row and "refused" not in row[name]:
            parts.append(f"{name} {' + '.join(f'{v:,.0f}' for v in row[name].values())}")
    return ", ".join(parts)


if __name__ == "__main__":
    typer.run(main)
