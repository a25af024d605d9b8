"""Kill the workers of a sweep, or its driver, at random moments, and see what was lost.

    python -m experiments.trials.deaths --kills 20

Sweeps of short runs are driven as by ``pyroccam sweep``, with a checkpoint every second. In the
first part workers are killed (SIGKILL) while they train, in the second the driver, which is then
started again by the same command. At the end every run must be done, with the bits of the same run
left alone; each epoch that is trained is noted, so that those that were trained again are counted.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from pyroccam.cli.console import PlainConsole
from pyroccam.cli.sweeps import pool
from pyroccam.cli.sweeps.driver import run_sweep
from pyroccam.cli.sweeps.plan import Asked, trials_of
from pyroccam.cli.sweeps.worker import leave_with
from pyroccam.inference.storage.checkpoint import versions, write_json
from safetensors.torch import load, save

__all__ = ["app", "digest_of_run", "kill_some"]

RESULTS = Path("experiments/results/sweeps")

app = typer.Typer(add_completion=False)

SETS = {"max_depth": 3, "width": 16, "compile": False, "batch_size": 64}
LISTS = {"lr": [0.01, 0.003], "seed": [0, 1, 2]}
EPOCHS = 60
EVERY = 1.0  # seconds between checkpoints
NOTES = "epochs.log"
MODULE, ROOT = "experiments.trials.deaths", Path(__file__).parents[2]


@app.command()
def main(
    kills: Annotated[int, typer.Option(min=1, help="Of workers, and of drivers.")] = 20,
    epochs: Annotated[int, typer.Option(min=1, help="Of a run.")] = EPOCHS,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS,
) -> None:
    """Kill, go on, count, compare, and write what was found."""
    rng, scratch = random.Random(seed), Path(tempfile.mkdtemp(prefix="pyroccam-deaths-"))
    alone = scratch / "alone"
    _driver(alone, epochs, LISTS).wait()
    found: dict[str, Any] = {"runs": len(_runs(alone)), "epochs": epochs}
    found["trained_alone"] = sum(_epochs(alone).values())
    for whom in ("worker", "driver"):
        total: Counter[str] = Counter()
        while total["kills"] < kills:
            folder = scratch / f"{whom}-{total['sweeps']}"
            total["sweeps"] += 1
            total.update(kill_some(whom, kills - total["kills"], folder, alone, epochs, rng))
            shutil.rmtree(folder)
        found[whom] = dict(total)
        print(whom, json.dumps(found[whom]), flush=True)
    write_json(out / "deaths.json", {**found, "checkpoint_seconds": EVERY, "versions": versions()})
    shutil.rmtree(scratch)


def kill_some(
    whom: str, kills: int, folder: Path, alone: Path, epochs: int, rng: random.Random,
    lists: dict[str, list[Any]] = LISTS,
) -> dict[str, int]:  # fmt: skip
    """A sweep in which so many are killed, if it lasts for so long; then it is left to its end.

    Arguments:
        whom: ``worker`` or ``driver``.
        folder: of the sweep.
        alone: the folder of the same sweep in which nobody was killed.
    """
    found: Counter[str] = Counter(lost=0, other_bits=0, workers_left=0)
    driver = _driver(folder, epochs, lists)
    while driver.poll() is None and found["kills"] < kills:
        time.sleep(rng.uniform(0.2, 1.0))
        training = [pid for pid in map(_holder, folder.glob("*/seed-*/.lock.json")) if pid]
        if not training or not [*folder.glob("*/seed-*/checkpoint.pt")]:
            continue
        with suppress(ProcessLookupError):  # it ended
            os.kill(rng.choice(training) if whom == "worker" else driver.pid, signal.SIGKILL)
            found["kills"] += 1
        if whom == "driver":
            driver.wait()
            found["workers_left"] += sum(not _gone(one) for one in training)
            driver = _driver(folder, epochs, lists)
        time.sleep(rng.uniform(1.0, 6.0))
    driver.wait()
    for name in _runs(alone):
        done = (folder / name / "metrics.json").is_file()
        found["lost"] += not done
        found["other_bits"] += done and digest_of_run(folder / name) != digest_of_run(alone / name)
    trained = _epochs(folder)
    found.update(epochs_trained=sum(trained.values()), epochs_needed=len(trained))
    return dict(found)


def digest_of_run(folder: Path) -> str:
    """A digest of what a run ends with: weights, histories and numbers, but no times."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix().encode()
        if path.suffix == ".safetensors":  # without what its head says of times
            digest.update(name + save(load(path.read_bytes())))
        elif path.suffix == ".csv":
            digest.update(name + path.read_bytes())
        elif path.name in ("metrics.json", "fit.json"):
            digest.update(name + json.dumps(_timeless(json.loads(path.read_text()))).encode())
    return digest.hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if "seconds" not in k}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _driver(folder: Path, epochs: int, lists: dict[str, list[Any]]) -> subprocess.Popen[bytes]:
    """The command, in a process of its own."""
    folder.mkdir(exist_ok=True)
    asked = json.dumps({"epochs": epochs, "lists": lists})
    with open(folder.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, "drive", asked, str(folder)],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def _runs(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/seed-*[0-9]"))


def _holder(path: Path) -> int | None:
    """The process that trains a run, if it is alive."""
    try:
        pid = int(json.loads(path.read_text())["pid"])
        return None if _ended(pid) else pid
    except (OSError, ValueError):
        return None


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _gone(pid: int) -> bool:
    """True once a worker has ended, for which it has some seconds: it saves what it has."""
    for _ in range(200):
        if _ended(pid):
            return True
        time.sleep(0.1)
    return False


def _epochs(folder: Path) -> Counter[str]:
    """How often each epoch of each fit was trained."""
    return Counter((folder / NOTES).read_text().splitlines())


def _noting(folder: Path) -> None:
    """Have this process write down each epoch that it has trained, and save every second."""
    fitting: Any = importlib.import_module("pyroccam.inference.fits.fitting")
    trainer = fitting.Trainer
    end = trainer._end_epoch

    def noted(self: Any, bar: Any) -> None:
        end(self, bar)
        with open(folder / NOTES, "a") as file:
            file.write(f"{self.out} {self.epoch}\n")

    trainer._end_epoch = noted
    fitting.Trainer = functools.partial(trainer, checkpoint_seconds=EVERY)


def _drive(asked: str, folder: Path) -> None:
    """What ``pyroccam sweep`` does, with workers that note what they do."""
    pool.WORKER = MODULE
    found = json.loads(asked)
    run = Asked("ldn", "digits", sets={**SETS, "epochs": found["epochs"]})
    trials = trials_of(run, found["lists"])
    run_sweep(PlainConsole(), folder, trials, options=["--no-figures"], workers=2)


def _work(arguments: Sequence[str]) -> None:
    """As a worker is started, in the folder of its sweep."""
    leave_with(sys.stdin.fileno())
    from pyroccam.cli.main import main as pyroccam

    _noting(Path(arguments[-1].partition("=")[2]).parents[1])
    pyroccam()


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        _drive(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["fit"]:
        _work(sys.argv[1:])
    else:
        app()
