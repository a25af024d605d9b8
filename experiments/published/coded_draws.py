"""Draws of posteriors in small files: bytes against test error.

    python -m experiments coded_draws --again --runs FOLDER,FOLDER --sizes 1000,2000

Takes the network that is left of each run of ``gnj``, cut by its own rule, and codes it
as a draw for each size, with the seed of the run. Nothing is chosen on test rows, or on validation
rows: the draw is trained on the training rows for a given time. What is reported is measured with
the network that is decoded from the file. How codes of Gaussian blocks of a known KL compare was
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
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pyroccam.cli.methods.weights import cut_of, evaluate
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference import Draw
from pyroccam.inference.draws.drawn import draw
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import styled
from pyroccam.inference.files.draw_file import decoded
from pyroccam.inference.shrinking.decision import decide

from .markdown import header, plus_minus, read_all, row
from .runner import File, Given, Made, Row, Spec

__all__ = ["SPEC"]

HOW = ("epochs", "steps", "bits", "shift", "code", "batch_size", "lr", "coding_lr")
"""Options of the draw."""


def files(given: Given) -> Iterable[File]:
    """One of each network and size."""
    how = {name: getattr(given, name) for name in HOW}
    for size in given.sizes:
        for folder in filter(None, given.runs.split(",")):
            config = RunConfig.read(Path(folder))
            seed = int(config.settings["seed"])
            sample = Draw(bytes=size, seed=seed, **how)
            left_out = ("seed", "posterior", "out", "resume", "progress", "bytes")
            says = {"size": size, **{k: v for k, v in vars(sample).items() if k not in left_out}}
            says |= {} if given.tolerance is None else {"tolerance": given.tolerance}
            parts = [config.flat()["network"], *([f"shift-{given.shift}"] if given.shift else [])]
            parts += [given.code] if given.code != "minimal-random" else []
            run_one = partial(_coded, folder, sample, given)
            yield File("-".join([*parts, str(size)]), {"config": says}, run_one, [{"seed": seed}])


def _coded(folder: str, sample: Draw, given: Given, seed: int) -> Row:
    """The row of a run: its network is cut, coded as a draw, and decoded."""
    fit = load_fit(Path(folder), "cpu", data_root=given.data_root)
    config = RunConfig.read(Path(folder))
    rule: Any = config.options.get("threshold") if given.tolerance is None else "validation"
    decision = decide(fit, cut_of(fit, rule, given.tolerance))
    begun = time.perf_counter()
    drawn = draw(decision.net, fit.data, sample)
    net = decoded(drawn.content)
    scores = {split: evaluate(fit, net, split) for split in ("train", "val", "test")}
    return {
        "error": 100 * (1 - scores["test"]["accuracy"]),
        "val_error": 100 * (1 - scores["val"]["accuracy"]),
        "train_error": 100 * (1 - scores["train"]["accuracy"]),
        "nll": scores["test"]["nll"],
        "architecture": decision.report.architecture,
        **drawn.report.to_json(),
        "seconds": time.perf_counter() - begun,
    }


NETWORKS = {"lenet-300-100": "LeNet-300-100", "lenet-5-caffe": "LeNet-5"}

# By network: what it is, bytes, test error in %. The third is of files in a public repository, by
# its own account.
PUBLISHED: dict[str, tuple[tuple[str, tuple[tuple[int, float], ...]], ...]] = {
    "lenet-300-100": (("Oktay et al. 2020", ((8560, 1.9),)),),
    "lenet-5-caffe": (
        ("Havasi et al. 2018", ((1520, 0.96), (3030, 0.69))),
        ("T. Paras, code of that", ((1140, 0.98), (1694, 0.83))),
        ("Oktay et al. 2020", ((2840, 1.0),)),
    ),
}


OURS = {"draws, moved images": "oC0", "draws, images as they are": "sC1", "epr": "^C2"}


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
                label = "epr" if "epr" in rest else f"draws, {shift}"
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
        for part in (config["size"], config["code"], f"shift-{shift}"):
            network = network.removesuffix(f"-{part}")
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
        "code": "minimal-random", "batch_size": 256, "lr": 3e-3, "coding_lr": 1e-2,
        "tolerance": float, "data_root": str,
    },
    files, table, drawn,
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
