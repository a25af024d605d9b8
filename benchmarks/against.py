"""Whether our steps are slower than those of an earlier version: both in turns, as ratios.

    python -m benchmarks.against HEAD~3 mlp-d20-b200 lenet

The earlier version is unpacked beside this one, and each runs in a process of its own. Times are
of the processor, so that what else the machine does matters little.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from pyroccam.inference.storage.checkpoint import write_json
from rich.console import Console

from .cache import VARIABLE
from .harness import Quartiles
from .machine import describe, folder_name
from .report import markdown, number
from .steps import RESULTS, Out
from .workloads.table import WORKLOADS, find

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)

TREE = Path(__file__).resolve().parents[1]
ENGINES = ("eager", "traced", "compiled")

# Runs in either version: it may use only what has long been there.
_WORKER = """
import sys, time, torch
torch.set_num_threads(1)
try:
    from benchmarks.workloads.table import WORKLOADS
except ImportError:  # once they were a part of the package
    from pyroccam.benchmarks.workloads.table import WORKLOADS
import pyro
pyro.enable_validation(False)
said = sys.stdout
sys.stdout = sys.stderr
entry = WORKLOADS[sys.argv[1]]
made = entry.make(sys.argv[1], entry.title, torch.device("cpu"))
torch.manual_seed(0)
step = next(c for c in made.contenders if c.name == "pyroccam " + sys.argv[2]).build()
begun = time.perf_counter()
step()
print(time.perf_counter() - begun, file=said, flush=True)
for line in sys.stdin:
    begun = time.process_time()
    for _ in range(int(line)):
        step()
    print(time.process_time() - begun, file=said, flush=True)
"""


class Worker:
    """A contender of one version, in a process that takes steps when it is told to.

    Arguments:
        parent: folder that holds the version as ``pyroccam``.
        workload, engine: what to run.

    Attributes:
        first: seconds of the first step, compiling included.
    """

    def __init__(self, parent: Path, workload: str, engine: str) -> None:
        self.cache = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed below
        places = os.pathsep.join(map(str, (parent, parent / "pyroccam")))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER, workload, engine],
            env={**os.environ, "PYTHONPATH": places, VARIABLE: self.cache.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        try:
            self.first = self._heard()
        except RuntimeError:
            self.close()
            raise

    def __call__(self, steps: int) -> float:
        """Milliseconds of a step."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self._heard() / steps * 1e3

    def _heard(self) -> float:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            self.said.seek(0)
            raise RuntimeError(self.said.read().strip().split("\n")[-1])
        return float(line)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.said.close()
        self.cache.cleanup()


@contextmanager
def unpacked(revision: str) -> Iterator[Path]:
    """A folder that holds a revision of the repository as ``pyroccam``."""
    packed = subprocess.run(
        ["git", "-C", str(TREE), "archive", "--prefix=pyroccam/", revision], capture_output=True
    )
    if packed.returncode:
        said = packed.stderr.decode().strip().split("\n")[0]
        raise typer.BadParameter(f"git has no revision {revision!r}: {said}")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def compare(before: Path, now: Path, workload: str, engine: str, rounds: int) -> dict[str, Any]:
    """Steps of two versions, in turns."""
    entry = find(workload)
    steps = entry.plan.steps
    with ExitStack() as stack:
        workers = {}
        for name, parent in (("before", before), ("now", now)):
            workers[name] = Worker(parent, workload, engine)
            stack.callback(workers[name].close)
            workers[name](entry.plan.warmup + 1)
        ms: dict[str, list[float]] = {name: [] for name in workers}
        for round in range(rounds):
            order = list(workers) if round % 2 else list(workers)[::-1]
            for name in order:
                ms[name].append(workers[name](steps))
        ratios = [b / a for a, b in zip(ms["before"], ms["now"], strict=True)]
        return {
            "workload": workload,
            "engine": engine,
            "ms": {name: asdict(Quartiles.of(found)) for name, found in ms.items()},
            "ratio": asdict(Quartiles.of(ratios)),
            "first_seconds": {name: worker.first for name, worker in workers.items()},
        }


def table(rows: list[dict[str, Any]]) -> str:
    """Rows in Markdown."""
    head = ["workload", "engine", "before, ms", "now, ms", "now / before", "first step, s"]
    body = []
    for row in rows:
        before, now, ratio = row["ms"]["before"], row["ms"]["now"], row["ratio"]
        spread = f" ({number(ratio['lower'])} to {number(ratio['upper'])})"
        first = row["first_seconds"]
        body.append(
            [
                row["workload"],
                row["engine"],
                number(before["median"]),
                number(now["median"]),
                number(ratio["median"]) + spread,
                f"{number(first['before'])} to {number(first['now'])}",
            ]
        )
    return markdown(head, body)


@app.command(help=(__doc__ or "").split("\n\n")[0])
def main(
    revision: Annotated[str, typer.Argument(help="The earlier version, by a name that git knows.")],
    workloads: Annotated[
        list[str] | None, typer.Argument(help="Which to measure; all if left out.")
    ] = None,
    engines: Annotated[
        str, typer.Option(help="Of eager, traced and compiled, separated by commas.")
    ] = "compiled",
    rounds: Annotated[int, typer.Option(min=2, help="Turns of each version.")] = 15,
    out: Out = RESULTS,
) -> None:
    chosen = [one.strip() for one in engines.split(",")]
    try:
        names = workloads or list(WORKLOADS)
        for name in names:
            find(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if unknown := set(chosen) - set(ENGINES):
        raise typer.BadParameter(f"{sorted(unknown)[0]!r} is no engine; there are {ENGINES}.")
    rows = []
    with unpacked(revision) as before, tempfile.TemporaryDirectory() as folder:
        now = Path(folder)
        (now / "pyroccam").symlink_to(TREE)
        for name in names:
            for engine in chosen:
                try:
                    rows.append(compare(before, now, name, engine, rounds))
                except RuntimeError as error:
                    console.print(f"{name}, {engine}: {error}")
                    continue
                console.print(table(rows[-1:]))
    where = torch.device("cpu")
    content = {"against": revision, "rows": rows, "machine": describe(where)}
    write_json(out / folder_name(where) / "against.json", content)
    print(table(rows))


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.against")
