"""Kill runs at random moments, go on, and compare the end with that of a run left alone.

    python tests/support/kills.py --kills 200 --seed 1

A child is forked for each sitting, so that Python and torch are loaded once. It is killed by a
clock (SIGKILL, SIGTERM, SIGHUP or SIGINT), or kills itself in the midst of writing: before or after
a file is renamed. After each death the folder must open, or say in words why it does not; the run
that is gone on with must end with the same bits.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from safetensors.torch import load, save

RUNS = {
    "ldn": ["ldn", "--data", "spirals", "--epochs", "15", "--set", "max_depth=2",
            "--set", "width=6", "--set", "batch_size=64", "--set", "compile=false"],
    "gnj": ["gnj", "--data", "digits", "--epochs", "2", "--set", "hidden=[8]", "--set", "lr=0.01",
            "--set", "compile=false", "--set", "narrow=[0.5]", "--set", "threshold=100"],
}  # fmt: skip
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def outcome(folder: Path) -> str:
    """A digest of what a run ends with: all weights, histories and numbers, but no times."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":  # without what its head says of times
            digest.update(name.encode() + save(load(path.read_bytes())))
        elif path.suffix in (".csv", ".pocc"):
            digest.update(name.encode() + path.read_bytes())
        elif path.name in ("metrics.json", "fit.json"):
            digest.update(
                name.encode() + json.dumps(_timeless(json.loads(path.read_text()))).encode()
            )
    return digest.hexdigest()


def _timeless(value):
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if "seconds" not in k}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def sitting(arguments: list[str], folder: Path, write: int | None) -> int:
    """In a child: the command, with checkpoints at every step; dies at a write if asked to."""
    from pyroccam.cli.commands import app

    fitting = importlib.import_module("pyroccam.inference.training.fitting")
    runs, weights = (
        importlib.import_module(f"pyroccam.cli.{name}")
        for name in ("runs.execution", "methods.weights")
    )
    fitting.Trainer = functools.partial(fitting.Trainer, checkpoint_seconds=0.0)
    runs.draw = weights.draw_compressed = lambda *a, **k: None
    if write is not None:
        left = [write]
        rename = os.replace

        def replace(*args, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(*args, **options)
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = replace
    try:
        ended = app(["fit", *arguments, "--out", str(folder), "--resume"], standalone_mode=False)
    except SystemExit as left:
        return int(left.code or 0)
    return int(ended or 0)


def fork(work) -> int:
    """The process id of a child that does this and is quiet."""
    child = os.fork()
    if child:
        return child
    code = 71
    log = os.open(os.environ["KILLS_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def opened(folder: Path) -> str | None:
    """What is wrong with how a folder opens after a death."""
    from pyroccam.cli.runs.loading import load_fit
    from pyroccam.data.errors import PyroccamError

    if not folder.exists():
        return None
    try:
        load_fit(folder, "cpu")
    except (PyroccamError, FileNotFoundError) as error:
        return None if "finish" in str(error) or "not a run" in str(error) else str(error)
    return None


def survive(name: str, kills: int, rng: random.Random, scratch: Path) -> tuple[int, list[str]]:
    """Runs of one kind until that many kills are spent; what did not end as it should."""
    arguments, wrong, spent = RUNS[name], [], 0
    begun = time.monotonic()
    reference = scratch / f"{name}-alone"
    _, status = os.waitpid(fork(functools.partial(sitting, arguments, reference, None)), 0)
    if status:
        return 0, [f"{name}: the run left alone ended with status {status}"]
    lasted, expected, run = time.monotonic() - begun, outcome(reference), 0
    while spent < kills:
        run, folder = run + 1, scratch / f"{name}-{run}"
        done = False
        while not done:
            timed = rng.random() < 0.5
            write = None if timed or spent >= kills else rng.randrange(1, 150)
            child = fork(functools.partial(sitting, arguments, folder, write))
            if timed and spent < kills:
                time.sleep(rng.uniform(0.0, 0.8 * lasted))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, rng.choice(SIGNALS))
            _, status = os.waitpid(child, 0)
            done = status == 0
            spent += not done
            code = os.waitstatus_to_exitcode(status)
            if code > 0 and code != 130:
                wrong.append(f"{name}, run {run}: a sitting ended with exit code {code}")
                break
            if (why := opened(folder)) is not None:
                wrong.append(f"{name}, run {run}, after {spent} kills: {why}")
        if done and (found := outcome(folder)) != expected:
            wrong.append(f"{name}, run {run}: other bits ({found}, alone {expected})")
        if done:
            shutil.rmtree(folder)
    return spent, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill runs, go on, compare the bits.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", choices=RUNS, action="append")
    asked = parser.parse_args()
    import pyroccam.cli.runs.repeats  # noqa: F401  children share it, and torch
    import torch

    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGHUP):  # which a shell's job in the background ignores
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    rng, names = random.Random(asked.seed), asked.method or list(RUNS)
    scratch = Path(tempfile.mkdtemp(prefix="pyroccam-kills-"))
    os.environ["KILLS_LOG"] = str(scratch / "log.txt")
    os.environ["COLUMNS"] = "200"
    spent, wrong = 0, []
    for k, name in enumerate(names):
        found = survive(name, (asked.kills - spent) // (len(names) - k), rng, scratch)
        spent, wrong = spent + found[0], wrong + found[1]
    print(f"{spent} kills, {len(wrong)} wrong")
    print("\n".join(wrong))
    if not wrong:
        shutil.rmtree(scratch)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
