"""Draws of posteriors in small files: bytes against test error.

    python -m experiments coded_draws --again --runs FOLDER,FOLDER --sizes 1000,2000

    python -m experiments coded_draws --again --basis frequencies --sizes 1000,2000

Takes the network that is left of each run of ``gnj``, cut by its own rule, or without runs a narrow
LeNet-5 that is trained on MNIST for a short time (:data:`PLAIN`), and codes it
as a draw for each size, with the seed of the run. Nothing is chosen on test rows, or on validation
rows: the draw is trained on the training rows for a given time. What is reported is measured with
the network that is decoded from the file. What codes take for Gaussian blocks of a known KL was
measured by ``experiments/reproduce/coded_draws.py --codes`` at a9ba2b7 (``codes.json``).

The results are of the runs

    pyroccam fit gnj --data mnist --network lenet-300-100 --epochs 180 --compile
        --set batch_size=256 --set kl_warmup=0.02 --set "narrow=[0.22,0.44,0.67]"
        --set threshold=noise --set start=0 --set finish=0 --seed 0
    pyroccam fit gnj --data mnist --network lenet-5-caffe --epochs 80 --compile
        --set batch_size=256 --set kl_warmup=0.01 --set "narrow=[0.08,0.2,0.4,0.6,0.8]"
        --set threshold=noise

with the seeds 0, 1 and 2, and with the options in the result files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
import torch
from matplotlib.figure import Figure
from pyroccam.cli.methods.weights import cut_of, evaluate
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.loading import load_fit
from pyroccam.data import load
from pyroccam.guides import Delta
from pyroccam.inference import Draw, fit
from pyroccam.inference.draws import Basis
from pyroccam.inference.draws.drawn import draw
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import styled
from pyroccam.inference.files.draw_file import decoded
from pyroccam.inference.posterior import mean_network
from pyroccam.inference.shrinking.decision import decide
from pyroccam.inference.training import Fit
from pyroccam.models import BayesianNetwork
from pyroccam.models.networks import lenet_5_caffe
from pyroccam.models.priors import Normal
from torch import nn

from .markdown import header, plus_minus, read_all, row
from .runner import Choice, File, Given, Made, Row, Spec

__all__ = ["SPEC"]

HOW = ("epochs", "steps", "bits", "shift", "batch_size", "lr", "coding_lr")
"""Options of the draw."""

CHANNELS, HIDDEN = (7, 8), 36
"""Filters and units of the narrow LeNet-5."""

PLAIN: dict[str, Any] = {
    "steps": 2000, "epochs": None, "batch_size": 128, "lr": 2e-3, "compile": "graph",
    "device": "cpu", "progress": False,
}  # fmt: skip


def files(given: Given) -> Iterable[File]:
    """One of each network and size."""
    how = {name: getattr(given, name) for name in HOW}
    for size, basis in product(given.sizes, given.basis):
        for network, seed, begin in _starts(given):
            sample = Draw(bytes=size, seed=seed, basis=basis, **how)
            left_out = ("seed", "posterior", "out", "resume", "progress", "bytes")
            says = {"size": size, **{k: v for k, v in vars(sample).items() if k not in left_out}}
            says |= {} if given.tolerance is None else {"tolerance": given.tolerance}
            parts = [network, *([f"shift-{given.shift}"] if given.shift else [])]
            parts += [basis] if basis != "weights" else []
            run_one = partial(_coded, begin, sample)
            yield File("-".join([*parts, str(size)]), {"config": says}, run_one, [{"seed": seed}])


Start = Callable[[], tuple[Fit, nn.Module, str]]


def _starts(given: Given) -> Iterable[tuple[str, int, Start]]:
    """The word of a network, a seed, and a fit, the network that is left of it, and its widths."""
    if not given.runs:
        for seed in range(given.seeds):
            yield "narrow-lenet-5", seed, partial(_narrow, given.data_root, seed)
    for folder in filter(None, given.runs.split(",")):
        config = RunConfig.read(Path(folder))
        begin = partial(_left, given, Path(folder), config)
        yield config.flat()["network"], int(config.settings["seed"]), begin


def _left(given: Given, folder: Path, config: RunConfig) -> tuple[Fit, nn.Module, str]:
    found = load_fit(folder, "cpu", data_root=given.data_root)
    rule: Any = config.options.get("threshold") if given.tolerance is None else "validation"
    decision = decide(found, cut_of(found, rule, given.tolerance))
    return found, decision.net, decision.report.architecture


def _narrow(data_root: str | None, seed: int) -> tuple[Fit, nn.Module, str]:
    rows = load("mnist", data_root=data_root, seed=seed)
    torch.manual_seed(seed)
    net = lenet_5_caffe(rows.input_shape, rows.outputs, channels=CHANNELS, hidden=HIDDEN)
    model = BayesianNetwork(net, rows, prior=Normal(1.0))
    found = fit(model, Delta(model), rows, seed=seed, weight_decay=0.0, **PLAIN)
    return found, mean_network(model, found.guide), "-".join(map(str, (*CHANNELS, HIDDEN)))


def _coded(begin: Start, sample: Draw, seed: int) -> Row:
    """The row of a run: its network is coded as a draw, and decoded."""
    fit, net, architecture = begin()
    begun = time.perf_counter()
    drawn = draw(net, fit.data, sample)
    net = decoded(drawn.content)
    scores = {split: evaluate(fit, net, split) for split in ("train", "val", "test")}
    return {
        "error": 100 * (1 - scores["test"]["accuracy"]),
        "val_error": 100 * (1 - scores["val"]["accuracy"]),
        "train_error": 100 * (1 - scores["train"]["accuracy"]),
        "nll": scores["test"]["nll"],
        "architecture": architecture,
        **drawn.report.to_json(),
        "seconds": time.perf_counter() - begun,
    }


NETWORKS = {"lenet-300-100": "LeNet-300-100", "lenet-5": "LeNet-5"}

# By network: what it is, bytes, test error in %. The third is of files in a public repository, by
# its own account.
PUBLISHED: dict[str, tuple[tuple[str, tuple[tuple[int, float], ...]], ...]] = {
    "lenet-300-100": (("Oktay et al. 2020", ((8560, 1.9),)),),
    "lenet-5": (
        ("Havasi et al. 2018", ((1520, 0.96), (3030, 0.69))),
        ("T. Paras, code of that", ((1140, 0.98), (1694, 0.83))),
        ("Oktay et al. 2020", ((2840, 1.0),)),
    ),
}


OURS = {
    "draws, moved images": "oC0", "draws, images as they are": "sC1", "of frequencies": "DC3",
    "epr": "^C2",
}  # fmt: skip


@styled
def figure(given: Given) -> Figure:
    """Test error against bytes by network, a point for each file, beside what is published, and
    beside files of ``epr`` where there are results of it."""
    drawn = new_figure(3.4)
    panels = drawn.subplots(1, len(NETWORKS), sharey=True)
    found = {**_files(given.out), **read_all(given.out.parent / "compression", "*-epr*")}
    for axes, (network, title) in zip(panels, NETWORKS.items(), strict=True):
        points: dict[str, list[tuple[float, float]]] = {label: [] for label in OURS}
        for name, one in found.items():
            _, place, rest = name.partition(network)
            if place:
                shift = "moved images" if "shift" in rest else "images as they are"
                words = {"epr": "epr", "frequencies": "of frequencies"}
                label = next((words[w] for w in words if w in rest), f"draws, {shift}")
                points[label] += [(r["file_bytes"] / 1e3, r["error"]) for r in one["runs"]]
        for label, style in OURS.items():
            if points[label]:
                axes.plot(*zip(*sorted(points[label]), strict=True), style, label=label)
        for marker, (label, known) in zip("x+1", PUBLISHED[network], strict=False):
            sizes, errors = zip(*known, strict=True)
            axes.plot(np.array(sizes) / 1e3, errors, marker, color="0.35", label=label)
        axes.set_title(title)
        axes.set_xlabel("file, kB")
        axes.set_xlim(left=0.0)
        axes.legend(fontsize="x-small")
    panels[0].set_ylabel("test error, %")
    panels[0].set_ylim(bottom=0.0)
    return drawn


def _files(folder: Path) -> dict[str, Any]:
    return {name: one for name, one in read_all(folder).items() if "runs" in one}


def drawn(given: Given) -> Mapping[str, Made]:
    """The figure, once there are files."""
    return {"draws": partial(figure, given)} if _files(given.out) else {}


def table(folder: Path) -> Iterable[str]:
    """Bytes and errors by network, size and shift."""
    found = _files(folder)
    if not found:
        return
    yield from header(
        "network, images moved by (seeds)", "left", "file, bytes", "file over KL",
        "training error, %", "test error, %",
    )  # fmt: skip
    for name, one in sorted(found.items(), key=lambda pair: pair[1]["config"]["size"]):
        runs, config = one["runs"], one["config"]
        network, shift = name, config["shift"]
        basis = config.get("basis", "weights")
        for part in (config["size"], basis, f"shift-{shift}"):
            network = network.removesuffix(f"-{part}")
        network += f", {basis}" if basis != "weights" else ""
        yield row(
            f"{network}, {shift} px ({len(runs)})",
            ", ".join(dict.fromkeys(run["architecture"] for run in runs)),
            f"{fmean(run['file_bytes'] for run in runs):,.0f}",
            f"{fmean(run['over_kl'] for run in runs):.2f}",
            f"{fmean(run['train_error'] for run in runs):.2f}",
            plus_minus(runs, "error", 2),
        )
    yield ""


SPEC = Spec(
    "experiments.published.coded_draws", "Coded draws", "coded_draws",
    {
        "runs": "", "sizes": (1000,), "epochs": 20, "steps": 10, "bits": 14, "shift": 0,
        "basis": Choice(get_args(Basis), ("weights",)), "batch_size": 256, "lr": 3e-3,
        "coding_lr": 1e-2, "tolerance": float, "data_root": str,
    },
    files, table, drawn,
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
