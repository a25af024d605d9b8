"""Fits of several processes beside those of one: as fast, as good, and as hard to kill.

    python -m benchmarks.processes speed
    python -m benchmarks.processes shares
    python -m benchmarks.processes quality --data-root DATA
    python -m benchmarks.processes kills --kills 20

Each process computes with one thread. Processes are forked and joined; one and two take turns.
Where the machine has other work, seconds say little, and the best of the epochs is reported, with
the seconds of processor time of a process beside it: their ratio is what processes gain that have a
core each, but for the time that messages are on their way.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
import typer
from pyroccam import data, guides, inference, models
from pyroccam.inference.distributed import joining
from pyroccam.inference.fits import fitting
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.inference.training.trainer import Batch, Trainer
from pyroccam.models.networks.plain import lenet_5_caffe, lenet_300_100
from rich.console import Console
from torch import nn

from .machine import describe, folder_name
from .steps import RESULTS, Out

__all__ = ["app", "digest", "forked"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)


# -- processes --------------------------------------------------------------------------------


def forked(size: int, work: Callable[[], Any], kill: tuple[int, float] | None = None) -> list[Any]:
    """What ``work()`` gives in each of several forked processes; their exit codes where they give
    nothing, negative for a signal.

    Arguments:
        kill: SIGKILL for this rank after so many seconds, unless it is done by then.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{rank}" for rank in range(size)]
        children = [_fork(rank, size, port, work, path) for rank, path in enumerate(paths)]
        if kill is not None:
            rank, after = kill
            end = time.monotonic() + after
            while time.monotonic() < end and not paths[rank].exists():
                time.sleep(0.01)
            os.kill(children[rank], signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return [
            pickle.loads(path.read_bytes()) if code == 0 else code
            for path, code in zip(paths, codes, strict=True)
        ]


def _fork(rank: int, size: int, port: int, work: Callable[[], Any], path: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        torch.set_num_threads(1)
        if size > 1:
            joining.HEARD_WITHIN = 20.0  # no launcher ends those that wait for one that was killed
            store = dist.TCPStore(
                "127.0.0.1", port, size, is_master=rank == 0, timeout=timedelta(seconds=20)
            )
            joining.join(store, rank, size)
        beside = path.with_suffix(".part")
        beside.write_bytes(pickle.dumps(work()))
        beside.rename(path)
        code = 0
    except inference.distributed.RanksError:
        code = 3  # another has ended
    except BaseException as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
    os._exit(code)


# -- speed ------------------------------------------------------------------------------------


def _images(rows: int) -> data.Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 1, 28, 28, generator=generator)
    y = torch.arange(rows) % 10
    return data.Dataset.from_tensors(x, y, x[:100], y[:100], val_fraction=0.0)


def _over_weights(net: nn.Module, rows: data.Dataset) -> tuple[Any, Any]:
    model = models.BayesianNetwork(net, rows, prior=models.priors.GroupNormalJeffreys())
    return model, guides.MeanField(model)


def _pair(name: str, rows: data.Dataset) -> tuple[Any, Any]:
    torch.manual_seed(0)
    if name == "LeNet-300-100 gnj":
        return _over_weights(lenet_300_100(rows.input_shape, 10), rows)
    if name == "LeNet-5-Caffe gnj":
        return _over_weights(lenet_5_caffe(rows.input_shape, 10), rows)
    model = models.LearntDepth.conv(rows, width=16, inner=8, max_depth=5)
    return model, guides.CategoricalDepth(model, hold=0.1)


ROWS = {"LeNet-300-100 gnj": 16_384, "LeNet-5-Caffe gnj": 4_096, "conv net of learnt depth": 1_024}
BATCH = 512


class _Timed(Trainer):
    """Notes how long the steps of each epoch take, and how long the processor works for them."""

    times: list[tuple[float, float]]

    def _step(self, batch: Batch) -> None:
        before = _now()
        super()._step(batch)
        if self.position == 0:
            _Timed.times.append((0.0, 0.0))
        (wall, work), (last, worked) = _now(), before
        total, all_work = _Timed.times[-1]
        _Timed.times[-1] = total + wall - last, all_work + work - worked


def _now() -> tuple[float, float]:
    """Seconds of the clock, and of all threads of this process on a processor."""
    return time.perf_counter(), time.process_time()


def _epochs(name: str, epochs: int) -> list[tuple[float, float]]:
    """Seconds of each epoch of a fit but the first, which traces, and those of the processor."""
    rows = _images(ROWS[name])
    _Timed.times = []
    setattr(fitting, "Trainer", _Timed)  # noqa: B010
    model, guide = _pair(name, rows)
    inference.fit(model, guide, rows, epochs=epochs, evaluations=1, batch_size=BATCH,
                  progress=False, device="cpu")  # fmt: skip
    return _Timed.times[1:]


def _messages() -> dict[str, float]:
    """Seconds in which rows of so many numbers are added up, the best of a hundred."""
    ranks, found = inference.distributed.joined(), {}
    for numbers in (1_000, 20_000, 500_000):
        took = []
        for _ in range(100):
            row = [torch.ones(numbers), torch.ones(())]  # a gradient and a loss
            start = time.perf_counter()
            ranks.sum_(row)
            took.append(time.perf_counter() - start)
        found[f"{numbers:,}"] = min(took)
    return found


@app.command()
def speed(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each number of processes.")] = 3,
    epochs: Annotated[int, typer.Option(min=2, help="Of a turn; the first is not counted.")] = 6,
    processes: Annotated[int, typer.Option(min=2)] = 2,
    only: Annotated[str | None, typer.Option(help="One of the networks.")] = None,
    out: Out = RESULTS,
) -> None:
    """The time of an epoch with one process and with several, of one thread each."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in [name for name in ROWS if only in (None, name)]:
        seconds: dict[int, list[tuple[float, float]]] = {1: [], processes: []}
        loads: list[float] = []
        for turn in range(rounds):
            for size, each in seconds.items():
                loads.append(os.getloadavg()[0])
                took = forked(size, functools.partial(_epochs, name, epochs))[0]
                each += took
                wall, work = (min(t) for t in zip(*took, strict=True))
                console.print(f"{name}, {turn + 1}, {size}: {wall:.3f} s an epoch, {work:.3f} s of "
                              f"the processor, load {loads[-1]:.1f}")  # fmt: skip
        best = {size: [min(t) for t in zip(*each, strict=True)] for size, each in seconds.items()}
        middle = {
            size: [statistics.median(t) for t in zip(*each, strict=True)]
            for size, each in seconds.items()
        }
        found[name] = {"rows": ROWS[name], "batch": BATCH, "seconds": seconds, "best": best,
                       "load": loads}  # fmt: skip
        for what, of in (("best", best), ("median", middle)):
            ratios = [a / b for a, b in zip(of[1], of[processes], strict=True)]
            found[name][f"ratio_of_{what}"] = dict(zip(("clock", "processor"), ratios, strict=True))
            print(f"{name}, {what}: {of[1][0]:.3f} s and {of[processes][0]:.3f} s, {ratios[0]:.2f} "
                  f"times faster; of the processor {ratios[1]:.2f}")  # fmt: skip
    messages = forked(processes, _messages)[0]
    print("messages:", ", ".join(f"{n} {1e3 * t:.2f} ms" for n, t in messages.items()))
    whole = {"networks": found, "messages": messages, "processes": processes}
    _write(out, "processes-speed.json", whole)
    _say_shares(whole)


@app.command()
def shares(out: Out = RESULTS) -> None:
    """Of what ``speed`` has written: how much of a step the reduction of its gradient takes, which
    is the most that an overlap with the backward pass could hide."""
    path = out / folder_name(torch.device("cpu")) / "processes-speed.json"
    _say_shares(json.loads(path.read_text(encoding="utf-8")))


def _say_shares(whole: dict[str, Any]) -> None:
    sizes, seconds = zip(
        *((int(n.replace(",", "")), t) for n, t in whole["messages"].items()), strict=True
    )
    slope, start = np.polyfit(sizes, seconds, 1)
    for name, found in whole["networks"].items():
        pair = _pair(name, _images(BATCH))
        row = sum(p.numel() for one in pair for p in one.parameters() if p.requires_grad)
        best = {int(size): times for size, times in found["best"].items()}  # texts, in a file
        step = best[whole["processes"]][1] / (found["rows"] / found["batch"])
        message = float(start + slope * row)
        print(f"{name}: {row:,} numbers in {1e3 * message:.2f} ms, {100 * message / step:.1f} % of "
              f"the {1e3 * step:.1f} ms of the processor that a step takes")  # fmt: skip


# -- quality ----------------------------------------------------------------------------------


def _fitted(name: str, rows: data.Dataset, epochs: int, seed: int) -> dict[str, float]:
    """What a fit scores on the test rows, and what it leaves of the network."""
    torch.manual_seed(seed)
    if name == "LeNet-300-100 gnj":
        model, guide = _over_weights(lenet_300_100(rows.input_shape, 10), rows)
        settings: dict[str, Any] = {"lr": 1e-3, "kl_warmup": 0.5, "batch_size": 256}
    else:
        model = models.LearntDepth.mlp(rows, width=30, max_depth=6)
        guide = guides.CategoricalDepth(model, hold=0.25)
        settings = {"lr": 1e-3, "batch_size": 256}
    fit = inference.fit(model, guide, rows, epochs=epochs, seed=seed, progress=False,
                        device="cpu", **settings)  # fmt: skip
    with inference.distributed.apart():
        scores = fit.evaluate()
        found = {"accuracy": scores["accuracy"], "nll": scores["nll"]}
        found["loss"] = fit.history[-1]["loss"]
        if fit.structure is not None:
            found["depth"] = float(fit.structure.depth_chosen)
            found["depth_expected"] = fit.structure.depth_expected
        else:
            small = inference.shrink(fit, cut=inference.Valley())
            found["parameters"] = float(sum(p.numel() for p in small.net.parameters()))
    return found


@app.command()
def quality(
    data_root: Annotated[str | None, typer.Option(help="Folder of the data files.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    rows: Annotated[int, typer.Option(min=100, help="Of MNIST, for training.")] = 15_000,
    processes: Annotated[int, typer.Option(min=2)] = 2,
    out: Out = RESULTS,
) -> None:
    """What fits of one process and of several come to, on MNIST, at the same settings."""
    torch.set_num_threads(1)
    mnist = data.load("mnist", data_root=data_root, n_train=rows)
    found: dict[str, Any] = {}
    for name in ("LeNet-300-100 gnj", "learnt depth"):
        found[name] = {}
        for seed in range(seeds):
            for size in (1, processes):
                work = functools.partial(_fitted, name, mnist, epochs, seed)
                scores = forked(size, work)[0]
                found[name].setdefault(str(size), []).append(scores)
                print(name, size, seed, {k: round(v, 4) for k, v in scores.items()}, flush=True)
    _write(out, "processes-quality.json", {"fits": found, "epochs": epochs, "rows": rows})


# -- kills ------------------------------------------------------------------------------------


def digest(fit: inference.Fit[Any, Any]) -> str:
    """All bits of weights and history that a fit ends with."""
    found = hashlib.blake2b(repr(fit.history).encode(), digest_size=8)
    for module in (fit.model, fit.guide):
        for name, t in module.state_dict().items():
            found.update(name.encode() + t.contiguous().numpy().tobytes())
    return found.hexdigest()


def _killable(name: str, folder: Path) -> str:
    always = functools.partial(Trainer, checkpoint_seconds=0.0)
    setattr(fitting, "Trainer", always)  # noqa: B010
    rows = data.load("digits", seed=0)
    torch.manual_seed(0)
    if name == "weights":
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Linear(20, 10)
        )
        model, guide = _over_weights(net, rows)
    else:
        model = models.LearntDepth.mlp(rows, width=10, max_depth=4)
        guide = guides.CategoricalDepth(model, hold=0.25)
    return digest(inference.fit(model, guide, rows, epochs=6, batch_size=64, seed=1, out=folder,
                                resume=True, progress=False, device="cpu"))  # fmt: skip


@app.command()
def kills(
    kills: Annotated[int, typer.Option(min=1)] = 20,
    processes: Annotated[int, typer.Option(min=2)] = 2,
    seed: Annotated[int, typer.Option()] = 0,
    out: Out = RESULTS,
) -> None:
    """Kill a process of a fit at random moments (SIGKILL), start all again, and compare the bits of
    the end with those of a fit left alone. Every other process has to end by itself, in words."""
    torch.set_num_threads(1)
    chance, scratch = random.Random(seed), Path(tempfile.mkdtemp())
    wrong: list[str] = []
    sittings: list[dict[str, Any]] = []
    for k, name in enumerate(("weights", "depth")):
        _killable(name, scratch / "warm")  # what is imported late is there before the forks
        shutil.rmtree(scratch / "warm")
        began = time.monotonic()
        alone = forked(processes, functools.partial(_killable, name, scratch / f"{name}-alone"))
        lasted = time.monotonic() - began
        if len({*alone}) != 1 or not isinstance(alone[0], str):
            wrong.append(f"{name}: left alone, the processes end with {alone}")
        spent, runs, share = 0, 0, (kills + 1 - k) // 2
        while spent < share:
            runs += 1
            folder, done = scratch / f"{name}-{runs}", False
            while not done:
                work = functools.partial(_killable, name, folder)
                victim = chance.randrange(processes)
                kill = (victim, chance.uniform(0.1, lasted)) if spent < share else None
                found = forked(processes, work, kill)
                done = all(isinstance(one, str) for one in found)
                killed = -signal.SIGKILL in found
                spent += killed
                ends = [one if isinstance(one, int) else "done" for one in found]
                died = victim if killed else None
                sittings.append({"run": f"{name}-{runs}", "killed": died, "ends": ends})
                others = [one for r, one in enumerate(found) if r != victim]
                if killed and any(one != 3 and not isinstance(one, str) for one in others):
                    wrong.append(
                        f"{name}-{runs}: beside a killed process others ended with {found}"
                    )
                if done and {*found} != {*alone}:
                    wrong.append(f"{name}-{runs}: other bits, {found}, left alone {alone}")
    shutil.rmtree(scratch)
    spent = sum(one["killed"] is not None for one in sittings)
    print(f"{spent} kills, {len(wrong)} wrong", *wrong, sep="\n")
    _write(out, "processes-kills.json", {"kills": spent, "wrong": wrong, "sittings": sittings})
    if wrong:
        raise typer.Exit(1)


def _write(out: Path, name: str, found: dict[str, Any]) -> None:
    where = torch.device("cpu")
    write_json(out / folder_name(where) / name, {**found, "machine": describe(where)})


if __name__ == "__main__":
    app()
