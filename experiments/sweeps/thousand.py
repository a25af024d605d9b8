"""What a sweep on a thousand machines costs: the database is measured, the machines are simulated.

    python -m pyroccam.experiments.sweeps.thousand
    python -m pyroccam.experiments.sweeps.thousand --storage postgresql://user@host/database

The first part times the calls that workers make, for databases with a number of runs in them. The
second follows workers through a sweep, event by event: the times of runs are drawn, heavy-tailed;
workers die at random moments, and what they trained since their last checkpoint is trained again;
every call of the database waits for those before it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import torch
import typer
from torch import nn

from ... import data, guides, inference, models
from ...inference.storage.checkpoint import CHECKPOINT, versions, write_json
from .store import Store
from .worker import LONGEST, NAP, SHARE

__all__ = ["Cluster", "Outcome", "app", "simulate"]

RESULTS = Path("experiments/results/sweeps")

app = typer.Typer(add_completion=False)

SIZES = (1_000, 10_000)
SEEDS = 5


@dataclass(frozen=True)
class Cluster:
    """A sweep on many machines; times in seconds.

    Attributes:
        workers: machines, with a worker each.
        runs: of the sweep.
        mean: time of a run.
        spread: standard deviation of the logarithm of the time: 1 makes one run in a hundred last
            six times the mean, or longer.
        life: mean time between deaths of a worker; exponential.
        start: from a death to a new worker.
        checkpoint: between checkpoints.
        call: the database is busy so long with a call that takes up or ends a run; there are five
            for each run.
        row: and so long with each run in a listing.
        longest_first: runs begin in the order of their times, as if they were known.
    """

    workers: int = 1000
    runs: int = 10_000
    mean: float = 3600.0
    spread: float = 1.0
    life: float = 24 * 3600.0
    start: float = 60.0
    checkpoint: float = 30.0
    call: float = 0.002
    row: float = 5e-5
    longest_first: bool = False


CALLS = 5
"""Of each run: a look under the lock, two notes and a state to take it up, a state to end it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a sweep.

    Attributes:
        hours: until the last run ended.
        ideal: hours, if no worker ever waited or died.
        busy: share of the workers' time in training that counted.
        again: share that was trained twice, after deaths.
        database: share of the time in which the database was busy.
        waited: longest wait for it, in seconds.
        tail: hours in which fewer than half of the workers had a run.
    """

    hours: float
    ideal: float
    busy: float
    again: float
    database: float
    waited: float
    tail: float


def simulate(cluster: Cluster, seed: int = 0) -> Outcome:
    """Follow a sweep, worker by worker.

    The database answers one call after the other. A worker that finds no run to take lists the runs
    again after a while that grows with the time that a list takes, as
    :meth:`~pyroccam.experiments.sweeps.worker.Worker.work` does.

    Arguments:
        seed: of times and deaths.
    """
    rng = random.Random(seed)
    mu = math.log(cluster.mean) - cluster.spread**2 / 2  # so that the mean is the mean
    times = [rng.lognormvariate(mu, cluster.spread) for _ in range(cluster.runs)]
    left = sorted(times) if cluster.longest_first else times[::-1]  # the last is taken first
    total, listed = sum(times), cluster.row * cluster.runs
    free = busy_database = waited = again = 0.0
    ends: list[float] = []
    order = itertools.count()
    # When, order, and training that a worker who dies then leaves to others. One without any asks
    # for a run.
    events = [(rng.uniform(0.0, cluster.start), next(order), 0.0) for _ in range(cluster.workers)]
    heapq.heapify(events)
    while len(ends) < cluster.runs:
        now, _, rest = heapq.heappop(events)
        if rest:
            left.append(rest)
            heapq.heappush(events, (now + cluster.start, next(order), 0.0))
            continue
        # A list serves for more than one run, as long as enough of it is left.
        cost = CALLS * cluster.call if left else listed
        cost += listed if left and rng.random() < 0.5 else 0.0
        began = max(now, free)
        free, busy_database, waited = began + cost, busy_database + cost, max(waited, began - now)
        took, now = free - now, free
        if not left:
            nap = min(max(NAP, SHARE * took), LONGEST) * rng.uniform(0.5, 1.5)
            heapq.heappush(events, (now + nap, next(order), 0.0))
            continue
        need = left.pop()
        death = math.inf if cluster.life == math.inf else rng.expovariate(1.0 / cluster.life)
        if death >= need:
            ends.append(now + need)
            heapq.heappush(events, (now + need, next(order), 0.0))
            continue
        saved = death - death % cluster.checkpoint
        again += death - saved
        heapq.heappush(events, (now + death, next(order), need - saved))
    end = max(ends)
    at_work = sorted(ends)
    half = at_work[-min(len(at_work), cluster.workers // 2)]
    capacity = cluster.workers * end
    return Outcome(
        hours=end / 3600,
        ideal=max(total / cluster.workers, max(times)) / 3600,
        busy=total / capacity,
        again=again / capacity,
        database=min(1.0, busy_database / end),
        waited=waited,
        tail=(end - half) / 3600,
    )


def scenes(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """What is simulated, with its name."""
    yield "as it is", cluster
    yield "runs of equal length", replace(cluster, spread=0.0)
    yield "longest runs first", replace(cluster, longest_first=True)
    yield "machines that last an hour", replace(cluster, life=3600.0)
    yield "and save every ten minutes", replace(cluster, life=3600.0, checkpoint=600.0)
    yield "runs of a minute", replace(cluster, mean=60.0, life=math.inf)
    yield "a hundred machines", replace(cluster, workers=100)
    yield "ten thousand machines", replace(cluster, workers=10_000, runs=100_000)
    yield (
        "ten thousand, of equal length",
        replace(cluster, workers=10_000, runs=100_000, spread=0.0),
    )


def measure(address: str, runs: int, looks: int = 5) -> dict[str, float]:
    """Seconds of the calls of a worker, with a number of runs in the database.

    Arguments:
        address: of the database.
        looks: listings that are timed.
    """
    store = Store(address, f"measured-{time.time_ns()}")
    began = time.perf_counter()
    store.add(f"lr=0.01/seed-{k}" for k in range(runs))
    added = (time.perf_counter() - began) / runs
    listing = _times(store.states, looks)
    states = [*store.states().values()][: 4 * looks]
    one = iter(states)

    def whole() -> None:
        state = store.look(next(one))
        store.take(state, [0], "somewhere:1")
        store.finish(state, 0.5)

    calls = _times(whole, len(states))
    return {"runs": runs, "add": added, "list": median(listing), "take_and_end": median(calls)}


def checkpoint_bytes() -> int:
    """Bytes of a checkpoint of LeNet-300-100 with random weights, stopped in the midst of a fit."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 784, generator=generator), torch.arange(64) % 10
    rows = data.Dataset.from_tensors(x, y, x, y)
    units = (784, 300, 100, 10)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(units)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    model = models.BayesianNetwork(net, rows, prior=models.priors.GroupNormalJeffreys())
    how: dict[str, Any] = {"epochs": 9, "batch_size": 32, "compile": False, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        with suppress(inference.Interrupted):
            inference.fit(model, guides.MeanField(model), rows, out=folder, device="cpu",
                          watch=lambda _: signal.raise_signal(signal.SIGTERM), **how)  # fmt: skip
        return (Path(folder) / CHECKPOINT).stat().st_size


def _times(call: Callable[[], object], number: int) -> list[float]:
    found = []
    for _ in range(number):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


@app.command()
def main(
    storage: Annotated[
        list[str] | None, typer.Option(help="A database to measure beside the files.")
    ] = None,
    sizes: Annotated[str, typer.Option(help="Runs in a database, by commas.")] = ",".join(
        map(str, SIZES)
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Of each simulation.")] = SEEDS,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS,
) -> None:
    """Measure, simulate, print and write."""
    measured: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {"sqlite": f"sqlite:///{folder}/db", "journal": f"journal:{folder}/log"}
        servers = {one.partition(":")[0].partition("+")[0]: one for one in storage or []}
        for name, address in {**files, **servers}.items():
            measured[name] = [measure(address, int(size)) for size in sizes.split(",")]
            print(name, measured[name], flush=True)
    last = measured["journal"][-1]  # five calls make up a whole, see CALLS
    base = Cluster(call=last["take_and_end"] / CALLS, row=last["list"] / last["runs"])
    rows = []
    for name, cluster in scenes(base):
        each = [asdict(simulate(cluster, seed)) for seed in range(seeds)]
        mean = {key: fmean(one[key] for one in each) for key in each[0]}
        rows.append({"scene": name, "cluster": asdict(cluster), **mean})
        print(name, {key: float(f"{value:.3g}") for key, value in mean.items()}, flush=True)
    size = checkpoint_bytes()
    print(f"a checkpoint of LeNet-300-100 has {size:,} bytes", flush=True)
    content = {
        "checkpoint_bytes": size,
        "measured": measured,
        "seeds": seeds,
        "simulated": rows,
        "versions": versions(),
    }
    write_json(out / "thousand.json", content)


if __name__ == "__main__":
    app()
