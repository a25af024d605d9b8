"""Draws of posteriors in small files: bytes against test error, and codes against each other.

    python -m experiments.published.coded_draws --runs FOLDER,FOLDER --sizes 1000,2000
    python -m experiments.published.coded_draws --codes

The first takes the network that is left of each run of ``gnj``, cut by its own rule, and codes it
as a draw for each size, with the seed of the run. Nothing is chosen on test rows, or on validation
rows: the draw is trained on the training rows for a given time. What is reported is measured with
the network that is decoded from the file. A finished row is kept. The second codes Gaussian blocks
of a known KL.

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

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from pyroccam.cli.methods.weights import cut_of, evaluate
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.draw_coding import Draw, decoded, draw
from pyroccam.inference.figures.canvas import new_figure, save
from pyroccam.inference.figures.style import styled
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.pruning.decision import decide
from pyroccam.inference.relative_entropy import CODES, Target
from pyroccam.inference.relative_entropy.integers import BitWriter
from pyroccam.inference.relative_entropy.target import gaussian_kl
from pyroccam.inference.storage.checkpoint import versions, write_json

from . import options
from .runner import ResultFile, Row

__all__ = ["code_row", "figure"]

SPREAD = ("error", "val_error", "file_bytes", "kl_bits", "over_kl", "distance", "seconds")


def main(
    runs: Annotated[str, options.BY_COMMAS] = "",
    sizes: Annotated[str, options.BY_COMMAS] = "1000",
    epochs: options.Count = 20,
    steps: options.Count = 10,
    bits: options.Count = 14,
    shift: Annotated[int, typer.Option(min=0, help="Pixels by which images are moved.")] = 0,
    code: str = "minimal-random",
    batch_size: options.Count = 256,
    lr: float = 3e-3,
    coding_lr: float = 1e-2,
    tolerance: Annotated[
        float | None, typer.Option(help="Cut by this tolerance, and not by the run's own rule.")
    ] = None,
    codes: Annotated[bool, typer.Option("--codes", help="Measure the codes alone.")] = False,
    draws: options.Count = 300,
    out: options.Out = options.RESULTS / "coded_draws",
    data_root: options.DataRoot = None,
    threads: options.Count = 1,
) -> None:
    """Run what is missing; one JSON file for each network and size, and a figure of all."""
    torch.set_num_threads(threads)
    if codes:
        rows = [
            code_row(word, kl, draws)
            for kl in (2.0, 5.0, 8.0, 11.0)
            for word in ("minimal-random", "ordered-random")
        ]
        write_json(out / "codes.json", {"rows": rows, "versions": versions()})
    how: dict[str, Any] = {
        "epochs": epochs, "steps": steps, "bits": bits, "shift": shift, "code": code,
        "batch_size": batch_size, "lr": lr, "coding_lr": coding_lr,
    }  # fmt: skip
    for size in map(int, sizes.split(",")):
        for folder in filter(None, runs.split(",")):
            _code(Path(folder), size, how, tolerance, out, data_root)
    if found := sorted(out.glob("*-[0-9]*.json")):
        figure(found, out / "draws.png")


def _code(
    folder: Path, size: int, how: dict[str, Any], tolerance: float | None, out: Path,
    data_root: str | None,
) -> None:  # fmt: skip
    config = RunConfig.read(folder)
    seed = int(config.settings["seed"])
    whole = Draw(bytes=size, seed=seed, **how)
    left_out = ("seed", "posterior", "out", "resume", "progress", "bytes")
    settings = {"size": size, **{k: v for k, v in vars(whole).items() if k not in left_out}}
    shift, code = how["shift"], how["code"]
    parts = [config.flat()["network"], *([f"shift-{shift}"] if shift else [])]
    parts += [code] if code != "minimal-random" else []
    path = out / f"{'-'.join([*parts, str(size)])}.json"
    cut = {} if tolerance is None else {"tolerance": tolerance}
    file = ResultFile(path, config={**settings, **cut})
    if not file.missing([seed]):
        return
    fit = load_fit(folder, "cpu", data_root=data_root)
    rule: Any = config.options.get("threshold") if tolerance is None else "validation"
    decision = decide(fit, cut_of(fit, rule, tolerance))
    begun = time.perf_counter()
    drawn = draw(decision.net, fit.data, whole)
    net = decoded(drawn.content)
    scores = {split: evaluate(fit, net, split) for split in ("train", "val", "test")}
    row: Row = {
        "seed": seed,
        "error": 100 * (1 - scores["test"]["accuracy"]),
        "val_error": 100 * (1 - scores["val"]["accuracy"]),
        "train_error": 100 * (1 - scores["train"]["accuracy"]),
        "nll": scores["test"]["nll"],
        "architecture": decision.report.architecture,
        **drawn.report.to_json(),
        "seconds": time.perf_counter() - begun,
    }
    file.add(row, lambda rows: mean_spread([{k: r[k] for k in SPREAD} for r in rows]))
    print(
        f"{path.stem} seed {seed}: {row['error']:.2f} % (train {row['train_error']:.2f}), "
        f"{row['file_bytes']} bytes, {row['over_kl']:.3f} of the KL, {row['seconds']:.0f} s",
        flush=True,
    )


def code_row(word: str, kl_bits: float, draws: int, weights: int = 24) -> Row:
    """Bits, bias and time of a code, for blocks of one KL.

    Arguments:
        word: of the code.
        kl_bits: KL of a block, in bits.
        draws: blocks that are coded.
        weights: in a block.
    """
    noise = np.random.default_rng(0)
    scale = np.full(weights, 0.9 if weights > 1 else 0.7)
    rest = kl_bits * math.log(2) - gaussian_kl(0 * scale, scale).sum()
    direction = noise.normal(size=weights)
    loc = direction * math.sqrt(2 * max(rest, 0.0) / (direction @ direction))
    most = math.ceil(kl_bits) + 1 if word == "minimal-random" else math.ceil(kl_bits) + 4
    begun = time.perf_counter()
    indices, z = [], []
    for block in range(draws):
        target = Target(loc, scale, 0, block)
        indices.append(CODES[word].choose(target, most, noise))
        z.append((target.value(indices[-1]) - loc) / scale)
    seconds = (time.perf_counter() - begun) / draws
    out = BitWriter()
    CODES[word].write(indices, most, out)
    along = np.stack(z) @ loc / np.linalg.norm(loc)
    kl = float(gaussian_kl(loc, scale).sum()) / math.log(2)
    return {
        "code": word,
        "weights": weights,
        "kl_bits": kl,
        "candidates_bits": most,
        "bits": len(out) / draws,
        "over_kl": len(out) / draws / kl,
        # Along the mean, where few candidates fall short: 0 for draws of q, with an error of
        # 1 / sqrt(draws).
        "bias": float(along.mean()),
        "distance": float(np.square(np.stack(z)).mean()),
        "draws": draws,
        "seconds": seconds,
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
def figure(paths: list[Path], target: Path) -> None:
    """Test error against bytes by network, a point for each file, beside what is published, and
    beside files of ``epr`` where there are results of it."""
    drawn = new_figure(3.4)
    panels = drawn.subplots(1, len(NETWORKS), sharey=True)
    beside = sorted((target.parent.parent / "compression").rglob("*-epr*.json"))
    for axes, (network, title) in zip(panels, NETWORKS.items(), strict=True):
        found: dict[str, list[tuple[float, float]]] = {}
        for path in (*paths, *beside):
            _, place, rest = path.stem.partition(network)
            if place:
                shift = "moved images" if "shift" in rest else "images as they are"
                label = "epr" if "epr" in rest else f"draws, {shift}"
                runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
                found.setdefault(label, []).extend(
                    (r["file_bytes"] / 1e3, r["error"]) for r in runs
                )
        for label, style in OURS.items():
            if label in found:
                axes.plot(*zip(*sorted(found[label]), strict=True), style, label=label)
        for marker, (label, known) in zip("x+1", PUBLISHED[network], strict=False):
            sizes, errors = zip(*known, strict=True)
            axes.plot(np.array(sizes) / 1e3, errors, marker, color="0.35", label=label)
        axes.set_title(title)
        axes.set_xlabel("file, kB")
        axes.set_xlim(left=0.0)
        axes.legend(fontsize="x-small")
    panels[0].set_ylabel("test error, %")
    panels[0].set_ylim(bottom=0.0)
    save(drawn, target.with_suffix(""))


if __name__ == "__main__":
    typer.run(main)
