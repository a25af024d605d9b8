"""What streamed training rows cost: memory, time of a step, and the closed form of q(d).

    python -m benchmarks.streaming memory --folder DIR
    python -m benchmarks.streaming steps
    python -m benchmarks.streaming depth
    python -m benchmarks.streaming report

Each command writes its part of streaming.json, and prints its table in Markdown.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.lib.format import write_array_header_1_0
from pyroccam import data, guides, inference, models
from pyroccam.data.streaming.items import Items
from pyroccam.data.streaming.shuffle import edges_of
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.inference.training.replicate import Replicate
from pyroccam.inference.training.settings import Settings
from pyroccam.inference.training.trainer import Batch, Trainer
from rich.console import Console
from torch import nn
from torch.utils.data import TensorDataset

from .harness import Plan, Quartiles
from .machine import describe
from .report import markdown, number
from .steps import RESULTS, Out

__all__ = ["app"]

NAME = "streaming.json"

CLOCKS = ("clock", "processor")

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)

Folder = Annotated[Path, typer.Option(help="Where the generated rows are put, 4 GB by default.")]


# -- memory ----------------------------------------------------------------------------------------


@app.command()
def memory(
    folder: Folder,
    rows: Annotated[list[int] | None, typer.Option(min=20_000, help="N; may be repeated.")] = None,
    columns: Annotated[int, typer.Option(min=2)] = 100,
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the rows there.")] = False,
    out: Out = RESULTS,
) -> None:
    """Peak resident memory of a process that trains random weights on rows of a folder.

    By default of a million rows and of ten million, each in a process of its own, which reports
    the high-water mark that the kernel keeps (VmHWM) before the data are opened, after the pass in
    which they are checked and scaled, and after the training and an evaluation.
    """
    found = []
    for count in rows or [1_000_000, 10_000_000]:
        where = folder / f"{count}x{columns}"
        generate(where, count, columns)
        command = [sys.executable, "-P", "-m", "benchmarks.streaming", "one", str(where)]
        answer = subprocess.run(
            [*command, "--epochs", str(epochs)], check=True, capture_output=True, text=True
        )
        found.append(json.loads(answer.stdout.splitlines()[-1]))
        console.print(found[-1])
        if not keep:
            shutil.rmtree(where)
    _write(out, {"memory": found})


def generate(folder: Path, rows: int, columns: int, block: int = 100_000) -> None:
    """Rows of a logistic regression on the disk, block by block: y = 1 with probability
    sigmoid(w x), w of every second column zero."""
    if (folder / "y.npy").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    w = random.normal(size=columns) * (np.arange(columns) % 2) * (4 / columns**0.5)
    with (folder / "x.npy").open("wb") as xs, (folder / "y.part").open("wb") as ys:
        for file, shape, kind in ((xs, (rows, columns), "<f4"), (ys, (rows,), "|u1")):
            header = {"descr": kind, "fortran_order": False, "shape": shape}
            write_array_header_1_0(file, header)
        for start in range(0, rows, block):
            x = random.standard_normal((min(block, rows - start), columns), np.float32)
            p = 1 / (1 + np.exp(-(x @ w)))
            xs.write(x.tobytes())
            ys.write((random.random(len(x)) < p).astype(np.uint8).tobytes())
    (folder / "y.part").rename(folder / "y.npy")


@app.command(hidden=True)
def one(folder: Path, epochs: int = 1) -> None:
    """Train on the rows of a folder, and print the memory that this took."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    before = high_water()
    rows = data.stream(folder)
    opened, passed = high_water(), time.perf_counter() - start
    torch.manual_seed(0)
    model = models.BayesianNetwork(
        nn.Linear(rows.input_shape[0], 2), rows, prior=models.priors.GroupNormalJeffreys()
    )
    fit = inference.fit(
        model, guides.MeanField(model), rows, epochs=epochs, batch_size=1024, weight_decay=0.0,
        progress=False,
    )  # fmt: skip
    trained = high_water()
    scores = fit.evaluate("train", draws=5)
    mib = {"imports": before, "opened": opened, "trained": trained, "evaluated": high_water()}
    print(
        json.dumps(
            {
                "rows": rows.N,
                "columns": rows.input_shape[0],
                "bytes": sum(p.stat().st_size for p in folder.glob("*.npy")),
                "epochs": epochs,
                "steps": fit.settings.steps_per_epoch(rows.N) * epochs,
                "engine": fit.engine["kind"],
                "mib": {name: round(value) for name, value in mib.items()},
                "seconds": {"pass": passed, "fit": fit.seconds},
                "train": scores,
                "test": fit.evaluate("test"),
            }
        )
    )


def high_water() -> float:
    """Most resident memory that this process has had, in MiB, pages of mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(found) / 1024


# -- steps -----------------------------------------------------------------------------------------


@app.command()
def steps(
    rounds: Annotated[int, typer.Option(min=1, help="Epochs of each contender.")] = 9,
    rows: Annotated[int, typer.Option(min=2000)] = 60_000,
    batch_size: Annotated[int, typer.Option(min=2)] = 512,
    compile: Annotated[bool, typer.Option("--compile/--eager")] = True,
    out: Out = RESULTS,
) -> None:
    """How long a step takes of streamed rows, over one of the same rows in memory.

    Images of the size and number of MNIST's, as bytes, for a Gaussian LeNet-300-100. The contenders
    take turns of one epoch each, so that what is read ahead is paid for in its turn. Beside the
    time on the clock stands that of the processor in the training process: the two differ where its
    cores are busy with something else, the process that reads items for one.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        took = _turns(Path(name), rounds, rows, batch_size, compile)
    found: dict[str, Any] = {
        "rows": rows, "batch_size": batch_size, "compiled": compile, "rounds": rounds,
    }  # fmt: skip
    for k, clock in enumerate(CLOCKS):
        each = {way: [turn[k] for turn in turns] for way, turns in took.items()}
        found[clock] = {
            way: {
                "ms": vars(Quartiles.of([1e3 * one for one in own])),
                "ratio": vars(
                    Quartiles.of([a / b for a, b in zip(own, each["memory"], strict=True)])
                ),
            }
            for way, own in each.items()
        }
    _write(out, {"steps": found})


def _turns(
    folder: Path, rounds: int, count: int, batch_size: int, compile: bool
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a step by both clocks, by contender and round."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    y = random.integers(0, 10, count)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    aside: dict[str, Any] = {"val": 0, "test": 0, "classes": 10}
    items = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    sets: dict[str, data.Dataset] = {
        "memory": data.Dataset.from_tensors(x, y, x[:9], y[:9], val_fraction=0, classes=10),
        "files": data.stream(folder, **aside),
        "items": data.stream(items, **aside),
    }
    trainers = {way: _trainer(rows, batch_size, compile) for way, rows in sets.items()}
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in sets}
    for round in range(rounds + 1):  # the first is warm-up
        for way in Plan().order(round, list(sets)):
            seconds = _epoch(trainers[way])
            if round:
                took[way].append(seconds)
        console.print(f"round {round} of {rounds}")
    return took


def _trainer(rows: data.Dataset, batch_size: int, compile: bool) -> Trainer:
    torch.manual_seed(0)
    flat = rows.flattened()
    net = models.networks.lenet_300_100(flat.input_shape, flat.outputs)
    model = models.BayesianNetwork(net, flat, prior=models.priors.Normal(0.1))
    settings = Settings(epochs=1000, batch_size=batch_size, compile=compile)
    trainer = Trainer([Replicate(model, guides.MeanField(model), flat, 0)], settings)
    trainer._prepare()
    return trainer


def _epoch(trainer: Trainer) -> tuple[float, float]:
    """Seconds of a step by both clocks, of an epoch of them."""
    begun = time.perf_counter(), time.process_time()
    batches: Iterator[Batch] = trainer._batches(trainer.batches, trainer._order())
    for batch in batches:
        trainer._step(batch)
    trainer.loss_sum.tolist()
    trainer.epoch += 1
    steps = len(trainer.batches)
    return (time.perf_counter() - begun[0]) / steps, (time.process_time() - begun[1]) / steps


# -- depth -----------------------------------------------------------------------------------------


class _Blocks(Items):
    """Items that come in blocks of so many rows."""

    block = 1

    @property
    def edges(self) -> Any:
        return edges_of(self.rows, self.block)


@app.command()
def depth(
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    rows: Annotated[int, typer.Option(min=200)] = 4000,
    epochs: Annotated[int, typer.Option(min=1)] = 200,
    blocks: Annotated[list[int] | None, typer.Option(min=1, help="Rows of a block.")] = None,
    out: Out = RESULTS,
) -> None:
    """How far the closed form of q(d) that trains a network is from the exact posterior, on the
    spirals, where the log-likelihood is kept for blocks of rows instead of every row."""
    torch.set_num_threads(1)
    found = []
    for block in blocks or [1, 16, 128, 1024, rows]:
        each = []
        for seed in range(seeds):
            each.append(_one_depth(rows, block, epochs, seed))
            console.print(block, seed, each[-1])
        found.append({"block": block, "runs": each, **mean_spread(each)})
    _write(out, {"depth": {"rows": rows, "epochs": epochs, "seeds": seeds, "blocks": found}})


def _one_depth(rows: int, block: int, epochs: int, seed: int) -> dict[str, float]:
    spirals = data.load("spirals", seed=seed, n=rows)
    parts: dict[str, Any] = {}
    for split in ("train", "val", "test"):
        x, y = spirals.split(split)
        parts[split] = x * spirals.x_std + spirals.x_mean, y
    source = _Blocks(TensorDataset(*parts.pop("train")))
    source.block = block
    # a piece holds a quarter of the rows, as a large set is held in parts
    streamed = data.stream(source, held=spirals.N // 4, workers=0, seed=seed, **parts)
    torch.manual_seed(seed)
    model = models.LearntDepth.mlp(streamed, width=20, max_depth=10)
    fit = inference.fit(
        model, guides.CategoricalDepth(model), streamed, epochs=epochs, batch_size=128, seed=seed,
        progress=False,
    )  # fmt: skip
    assert fit.structure is not None
    return {
        "tv_running": float(fit.structure.tv_running or 0.0),
        "same_depth": float(fit.structure.depth_chosen_running == fit.structure.depth_chosen_exact),
        "depth": float(fit.structure.depth_chosen_exact),
        "accuracy": fit.evaluate("test")["accuracy"],
    }


# -- results ---------------------------------------------------------------------------------------


def _write(out: Path, part: dict[str, Any]) -> None:
    path = out / "cpu" / NAME
    known = json.loads(path.read_text()) if path.is_file() else {}
    known |= part | {"machine": describe(torch.device("cpu"))}
    write_json(path, known)
    for name in part:
        print(TABLES[name](known[name]))


@app.command()
def report(out: Out = RESULTS) -> None:
    """Print the tables of what was measured before."""
    known = json.loads((out / "cpu" / NAME).read_text())
    for name, table in TABLES.items():
        if name in known:
            print(table(known[name]))


def _memory_table(found: list[dict[str, Any]]) -> str:
    names = ["rows", "MB on the disk", "steps", "MiB after imports", "after the first pass",
             "after training", "after an evaluation", "test NLL"]  # fmt: skip
    lines = [
        [f"{one['rows']:,}", f"{one['bytes'] / 1e6:,.0f}", f"{one['steps']:,}"]
        + [str(value) for value in one["mib"].values()]
        + [number(one["test"]["nll"])]
        for one in found
    ]
    return markdown(names, lines)


def _steps_table(found: dict[str, Any]) -> str:
    lines = []
    for way in found[CLOCKS[0]]:
        line = [way]
        for clock in CLOCKS:
            own = found[clock][way]
            ratio = own["ratio"]
            line += [number(own["ms"]["median"]), f"{ratio['median']:.2f}",
                     f"{ratio['lower']:.2f} to {ratio['upper']:.2f}"]  # fmt: skip
        lines.append(line)
    names = ["rows are read from", "ms", "over memory", "quartiles", "ms of the processor",
             "over memory", "quartiles"]  # fmt: skip
    return markdown(names, lines)


def _depth_table(found: dict[str, Any]) -> str:
    lines = []
    for one in found["blocks"]:
        tv = one["tv_running"]
        lines.append(
            [
                str(one["block"]),
                f"{tv['mean']:.3f}" + ("" if tv["sd"] is None else f" ± {tv['sd']:.3f}"),
                f"{one['same_depth']['mean']:.2f}",
                f"{100 * one['accuracy']['mean']:.1f}",
            ]
        )
    names = ["rows of a block", "total variation to the exact posterior", "same depth",
             "test accuracy, %"]  # fmt: skip
    return markdown(names, lines)


TABLES: dict[str, Callable[[Any], str]] = {
    "memory": _memory_table,
    "steps": _steps_table,
    "depth": _depth_table,
}


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.streaming")
