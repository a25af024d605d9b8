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
from pathlib import Path
from typing import Annotated, Any

import typer
from pyroccam.cli.console import PlainConsole
from pyroccam.cli.sweeps import team, worker
from pyroccam.cli.sweeps.command import read_request, run_sweep
from pyroccam.cli.sweeps.plan import Plan
from pyroccam.cli.sweeps.store import State, Store
from pyroccam.inference.storage.checkpoint import versions, write_json
from safetensors.torch import load, save

__all__ = ["app", "digest_of_run"]

RESULTS = Path("experiments/results/sweeps")

app = typer.Typer(add_completion=False)

SETS = ["max_depth=3", "width=16", "compile=false", "batch_size=64"]
LISTS = ["lr=0.01,0.003", "seed=0,1,2"]
EPOCHS = 60
EVERY = 1.0  # seconds between checkpoints
NOTES = "epochs.log"
MODULE = "experiments.trials.deaths"


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
    _driver(alone, epochs).wait()
    expected = {run.name: digest_of_run(alone / run.name) for run in Plan.read(alone).trials}
    found: dict[str, Any] = {"runs": len(expected), "epochs": epochs}
    found["trained_alone"] = sum(_epochs(alone).values())
    for whom in ("worker", "driver"):
        found[whom] = _part(whom, kills, scratch, epochs, expected, rng)
        print(whom, json.dumps(found[whom]), flush=True)
    write_json(out / "deaths.json", {**found, "checkpoint_seconds": EVERY, "versions": versions()})
    shutil.rmtree(scratch)


def _part(
    whom: str,
    kills: int,
    scratch: Path,
    epochs: int,
    expected: dict[str, str],
    rng: random.Random,
) -> dict[str, Any]:
    """Sweeps until so many were killed, the last of them left to its end."""
    found: Counter[str] = Counter()
    while found["kills"] < kills:
        found["sweeps"] += 1
        folder = scratch / f"{whom}-{found['sweeps']}"
        driver = _driver(folder, epochs)
        while driver.poll() is None:
            if found["kills"] == kills or not _sleep(driver, rng.uniform(1.0, 6.0)):
                driver.wait()
                break
            training = _training(folder)
            if not training or not _kill(rng.choice(training) if whom == "worker" else driver.pid):
                continue
            found["kills"] += 1
            if whom == "driver":
                driver.wait()
                found["workers_left"] += sum(not _gone(one) for one in training)
                driver = _driver(folder, epochs)
        states = {state.name: state for state in _states(folder)}
        for name, bits in expected.items():
            done = name in states and states[name].word == "done"
            found["lost"] += not done
            found["other_bits"] += done and digest_of_run(folder / name) != bits
        trained = _epochs(folder)
        found["epochs_trained"] += sum(trained.values())
        found["epochs_needed"] += len(trained)
        shutil.rmtree(folder)
    names = ["kills", "sweeps", "lost", "other_bits", "epochs_needed", "epochs_trained"]
    names += ["workers_left"] if whom == "driver" else []
    return {name: found[name] for name in names}


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


def _driver(folder: Path, epochs: int) -> subprocess.Popen[bytes]:
    """The command, in a process of its own."""
    folder.mkdir(exist_ok=True)
    with open(folder.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, "drive", str(epochs), str(folder)],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def _sleep(driver: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait; false if the driver ended meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if driver.poll() is not None:
            return False
        time.sleep(0.05)
    return True


def _states(folder: Path) -> list[State]:
    if not (folder / "sweep.json").is_file():
        return []
    return [*Store.in_folder(folder, Plan.read(folder).study).states().values()]


def _training(folder: Path) -> list[int]:
    """Processes of workers that train a run, or died at it."""
    running = [state for state in _states(folder) if state.word == "running"]
    return [int(state.worker.rpartition(":")[2]) for state in running if state.worker]


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended, or was killed just before
        return False
    return True


def _gone(pid: int) -> bool:
    """True once a worker has ended, for which it has some seconds: it saves what it has."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
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


def _drive(epochs: int, folder: Path) -> None:
    """What ``pyroccam sweep`` does, with workers that note what they do."""
    team.start = functools.partial(worker.start, module=MODULE)
    given = {"data": "digits", "figures": False}
    request = read_request("ldn", given, [*SETS, f"epochs={epochs}"], LISTS, folder)
    run_sweep(PlainConsole(), request, workers=2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        _drive(int(sys.argv[2]), Path(sys.argv[3]))
    elif len(sys.argv) == 4 and Path(sys.argv[1]).is_dir():  # as a worker is started
        _noting(Path(sys.argv[1]))
        sys.exit(worker.main(sys.argv[1:]))
    else:
        app()
