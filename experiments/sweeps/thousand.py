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
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import typer

from ...inference.storage.checkpoint import versions, write_json
from ..reproduce.options import RESULTS
from .store import Store
from .worker import LONGEST, NAP, SHARE

__all__ = ["Cluster", "Outcome", "app", "simulate"]

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
        call: the database is busy so long with a call that takes up or ends a run; there are seven
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


CALLS = 7
"""A look under the lock, two notes and a state to take a run up; a state to end it, and two calls
of the driver that reads it."""


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
    again after ``max(NAP, SHARE * listing)`` seconds, as
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
        cost = (0.0 if left and rng.random() < 0.5 else listed) + CALLS * cluster.call
        began = max(now, free)
        free, busy_database, waited = began + cost, busy_database + cost, max(waited, began - now)
        now = free
        if not left:
            nap = min(max(NAP, SHARE * listed), LONGEST) * rng.uniform(0.5, 1.5)
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
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS / "sweeps",
) -> None:
    """Measure, simulate, print and write."""
    measured: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {"sqlite": f"sqlite:///{folder}/db", "journal": f"journal:{folder}/log"}
        servers = {one.partition(":")[0].partition("+")[0]: one for one in storage or []}
        for name, address in {**files, **servers}.items():
            measured[name] = [measure(address, int(size)) for size in sizes.split(",")]
            print(name, measured[name], flush=True)
    slowest = max((one for found in measured.values() for one in found), key=lambda m: m["runs"])
    best = min(
        (found[-1] for found in measured.values()), key=lambda m: m["list"] + m["take_and_end"]
    )
    assert slowest["runs"] == best["runs"]
    base = Cluster(call=best["take_and_end"] / 4, row=best["list"] / best["runs"])
    rows = []
    for name, cluster in scenes(base):
        each = [asdict(simulate(cluster, seed)) for seed in range(seeds)]
        mean = {key: fmean(one[key] for one in each) for key in each[0]}
        rows.append({"scene": name, "cluster": asdict(cluster), **mean})
        print(name, {key: float(f"{value:.3g}") for key, value in mean.items()}, flush=True)
    content = {"measured": measured, "seeds": seeds, "simulated": rows, "versions": versions()}
    write_json(out / "thousand.json", content)


if __name__ == "__main__":
    app()
