"""Draws of posteriors in small files: bytes against test error, and codes against each other.

    python -m pyroccam.experiments.reproduce.coded_draws --run FOLDER --sizes 1000,2000
    python -m pyroccam.experiments.reproduce.coded_draws --codes

The first takes the network that is left of a run of ``gnj``, cut by its own rule, and codes it as a
draw for each size and seed. Nothing is chosen on test rows, or on validation rows: the draw is
trained on the training rows for a given time. What is reported is measured with the network that is
decoded from the file. A finished row is kept. The second codes Gaussian blocks of a known KL.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from ...inference.draw_coding import Sample, code_draw, decoded
from ...inference.posterior.metrics import mean_spread
from ...inference.pruning.decision import decide
from ...inference.relative_entropy import CODES, Target
from ...inference.relative_entropy.integers import BitWriter
from ...inference.relative_entropy.target import gaussian_kl
from ...inference.storage.checkpoint import versions, write_json
from ..methods.weights import evaluate
from ..runs.config import RunConfig
from ..runs.loading import load_fit
from . import options
from .runner import ResultFile, Row

__all__ = ["code_row", "figure"]

SPREAD = ("error", "val_error", "file_bytes", "kl_bits", "over_kl", "distance", "seconds")


def main(
    run: Annotated[Path | None, typer.Option(help="Folder of a run of gnj.")] = None,
    sizes: Annotated[str, options.BY_COMMAS] = "1000",
    seeds: options.Count = 1,
    epochs: options.Count = 20,
    steps: options.Count = 10,
    bits: options.Count = 14,
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
            for word in ("minimal-random", "ordered-random", "a-star")
        ]
        rows += [code_row("greedy-rejection", kl, min(draws, 100), 1) for kl in (0.3, 1.0, 2.0)]
        write_json(out / "codes.json", {"rows": rows, "versions": versions()})
    if run is not None:
        for size in map(int, sizes.split(",")):
            _code(run, size, seeds, epochs, steps, bits, out, data_root)
    if found := sorted(out.glob("*-[0-9]*.json")):
        figure(found, out / "draws.png")


def _code(
    folder: Path, size: int, seeds: int, epochs: int, steps: int, bits: int, out: Path,
    data_root: str | None,
) -> None:  # fmt: skip
    config = RunConfig.read(folder)
    fit = load_fit(folder, "cpu", data_root=data_root)
    decision = decide(fit, "compress", config.options.get("threshold"))
    how = Sample(size=size, bits=bits, epochs=epochs, steps=steps)
    settings = {k: v for k, v in asdict(how).items() if k != "seed"}
    path = out / f"{config.flat()['network']}-{size}.json"
    file = ResultFile(path, config=settings)
    for seed in file.missing(range(seeds)):
        begun = time.perf_counter()
        drawn = code_draw(decision.net, fit.data, Sample(**{**settings, "seed": seed}))
        net = decoded(drawn.content)
        scores = {split: evaluate(fit, net, split) for split in ("train", "val", "test")}
        row: Row = {
            "seed": seed,
            "error": 100 * (1 - scores["test"]["accuracy"]),
            "val_error": 100 * (1 - scores["val"]["accuracy"]),
            "train_error": 100 * (1 - scores["train"]["accuracy"]),
            "nll": scores["test"]["nll"],
            "architecture": decision.report.architecture,
            **drawn.to_json(),
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
    most = 16 if word == "greedy-rejection" else most
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


def figure(paths: list[Path], target: Path) -> None:
    """Test error against bytes, a point for each file."""
    import json

    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = drawn.subplots()
    found: dict[str, list[tuple[float, float]]] = {}
    for path in paths:
        content: dict[str, Any] = json.loads(path.read_text())
        name = path.stem.rpartition("-")[0]
        found.setdefault(name, []).extend((r["file_bytes"], r["error"]) for r in content["runs"])
    for name, points in found.items():
        axes.plot(*zip(*sorted(points), strict=True), "o", label=name)
    axes.set_xlabel("bytes of the file")
    axes.set_ylabel("test error, %")
    axes.legend()
    drawn.savefig(target, dpi=110)


if __name__ == "__main__":
    typer.run(main)
