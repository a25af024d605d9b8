"""Whether a change of the code changed a number: results of two versions, bit for bit.

    python tests/support/frozen.py --against 3c77626 [--only guide:]

Each result (pairs of priors and guides on 54 rows, each method of the command line for a few
epochs, a fit that was interrupted, one of two processes, files of networks, a coded draw) becomes
a digest of its numbers, in a process of its own, once by the code of this checkout and once by
that of the revision, on the same machine and with the same libraries. Printed are the results
that differ, and those that one version alone has; none differ: exit code 0.

A digest knows values, their types and shapes, and no names, so that renaming changes none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLOCK = ("learnt", "second", "times_faster", "version", "engine", "machine", "created", "digest")
QUICK = ["--epochs", "2", "--set", "compile=false"]
OWN = {  # settings of methods whose shortest run would be long
    "structure": ["--set", "random=1"],
    "every-size": ["--set", "points=3"],
    "miracle": ["--set", "size=150", "--set", "coding=2"],
}


def parts(found: Any) -> Iterator[bytes]:
    """The values in a nest of modules, dicts, sequences, tensors, numbers and bytes."""
    import torch

    if isinstance(found, torch.nn.Module):
        yield from parts(list(found.state_dict().values()))
    elif isinstance(found, torch.Tensor):
        whole = found.detach().cpu().contiguous()
        raw = whole.view(torch.uint8) if whole.dim() else whole.reshape(1).view(torch.uint8)
        yield f"{found.dtype}{tuple(found.shape)}".encode() + raw.numpy().tobytes()
    elif isinstance(found, dict):
        for key, value in found.items():
            if not any(word in str(key) for word in CLOCK):
                yield from parts(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from parts(value)
    elif found is not None:
        yield found if isinstance(found, bytes) else repr(found).encode()


def digest(found: Any) -> str:
    """Of the values in any order."""
    each = sorted(hashlib.sha256(part).hexdigest() for part in parts(found))
    return hashlib.sha256("".join(each).encode()).hexdigest()[:16]


def results() -> dict[str, Callable[[], Any]]:
    """What is compared, by name."""
    import fitting
    import guide_case
    from pyroccam.cli.methods import METHODS
    from pyroccam.models import priors

    def pair(case: Any) -> Any:
        model, guide, rows = case.pair()
        whole = {**fitting.SHORT, "batch_size": 54, "compile": False}
        return numbers(fitting.inference.fit(model, guide, rows, **whole))

    def numbers(fit: Any) -> Any:
        return [fit.model, fit.guide, fit.history, fit.evaluate("test")]

    def weights(prior: Any) -> Any:
        drawn = isinstance(prior, priors.GaussianMixture | priors.UnsquaredNorm)
        guide = partial(fitting.guides.MeanField, local=not drawn)
        return numbers(fitting.fit_weights(prior, guide=guide, compile=False))

    over_weights = [
        priors.Normal(1.0),
        priors.ARD("group"),
        priors.GaussianMixture(),
        priors.GroupHalfCauchy(0.5),
        priors.GroupHorseshoe(1e-3),
        priors.GroupNormalJeffreys(),
        priors.LogUniform(),
        priors.MultiSpike(),
        priors.StudentT(),
        priors.UnsquaredNorm(),
    ]
    found: dict[str, Callable[[], Any]] = {}
    for name, case in guide_case.CASES.items():
        found[f"guide: {name}"] = partial(pair, case)
    for prior in over_weights:
        found[f"prior: {type(prior).__name__}"] = partial(weights, prior)
    for name in METHODS:
        found[f"method: {name}"] = partial(method, name)
    found |= {
        "compiled step": lambda: numbers(fitting.run(compile=True)),
        "interrupted": interrupted,
        "two processes": two_processes,
        "networks in files": files,
        "a coded draw": draw,
    }
    return found


def call(*arguments: str) -> None:
    """A command, whose words go nowhere."""
    from pyroccam.cli.main import main

    sys.argv = ["pyroccam", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{arguments} ends with {end.code}") from None


def inside(folder: Path) -> Any:
    """What a run left: metrics, tensors and files of networks."""
    from safetensors.torch import load_file

    named = sorted(folder.rglob("*.safetensors"))
    files = [path.read_bytes() for path in sorted(folder.rglob("*.pocc"))]
    metrics = json.loads((folder / "metrics.json").read_text())
    return [metrics, [list(load_file(path).values()) for path in named], files]


def method(name: str) -> Any:
    """A short run of a method on the digits."""
    from pyroccam.cli.methods import METHODS

    with tempfile.TemporaryDirectory() as folder:
        small = ["--set", "hidden=[12]"] * ("perceptron" in METHODS[name].networks)
        where = ["--out", f"{folder}/run", "--data", "digits"]
        call("fit", name, *where, *QUICK, *small, *OWN.get(name, []))
        return inside(Path(folder) / "run")


def interrupted() -> Any:
    """A fit that goes on after a signal in its fifth step."""
    import fitting
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        begin = partial(fitting.run, compile=False, out=folder)
        with pytest.MonkeyPatch.context() as patch:
            fitting.stopped(patch, begin)
        fit = fitting.run(compile=False, out=folder, resume=True)
        return [fit.model, fit.guide, fit.history]


def two_processes() -> Any:
    """A run of two processes on one core each."""
    with tempfile.TemporaryDirectory() as folder:
        where = ["--data", "digits", "--out", f"{folder}/run", "--processes", "2"]
        call("fit", "gnj", *where, *QUICK, "--device", "cpu")
        return inside(Path(folder) / "run")


def files() -> Any:
    """Files of every kind of plain network, with and without rounding."""
    import plain
    from pyroccam.inference.files import Small
    from pyroccam.inference.rounding import quantised

    written = []
    with tempfile.TemporaryDirectory() as folder:
        for name in plain.NETWORKS:
            net, _ = plain.trained(name)
            for bits in ({}, 6):
                path = Small(quantised(net, bits)).save(Path(folder) / "net.pocc")
                written.append(path.read_bytes())
    return written


def draw() -> Any:
    """A draw of a small network, of a given size."""
    import fitting
    from pyroccam import inference
    from pyroccam.models import priors

    with tempfile.TemporaryDirectory() as folder:
        fit = fitting.fit_weights(priors.Normal(1.0), compile=False)
        return inference.shrink(fit, code=inference.Draw(bytes=60, out=folder)).content


def worker(only: str) -> None:
    """Digests of the code that is imported, a line each as soon as it is known."""
    import torch

    torch.set_num_threads(1)
    from pyroccam import data

    print(f"results of {Path(data.__file__).parents[1]}", file=sys.stderr)
    said = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # of processes that are started, too
    warnings.simplefilter("ignore")
    for name, compute in results().items():
        if only in name:
            torch.manual_seed(0)
            try:
                line = digest(compute())
            except Exception as error:
                line = f"{type(error).__name__}: {error}".split("\n")[0]
            print(json.dumps([name, line]), file=said, flush=True)


def digests(tree: Path, script: Path, only: str) -> dict[str, str]:
    """Digests of a tree, whose folder is called pyroccam."""
    paths = os.pathsep.join([str(tree.parent), str(script.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, str(script), "--worker", "--only", only]
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tree)
    return dict(json.loads(line) for line in ran.stdout.splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--against", help="an earlier version, by a name that git knows")
    parser.add_argument("--only", default="", help="results whose names have this in them")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.only)
        return 0
    with ExitStack() as stack:
        now = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "pyroccam"
        now.symlink_to(ROOT)
        found = [digests(now, Path(__file__).resolve(), asked.only)]
        if asked.against:
            from benchmarks.against import unpacked

            before = stack.enter_context(unpacked(asked.against)) / "pyroccam"
            own = before / "tests/support/frozen.py"
            if not own.exists():  # a version from before this script
                own.write_text(Path(__file__).read_text())
            found.append(digests(before, own, asked.only))
    for name in sorted({*found[0], *found[-1]}):
        now_, before_ = (each.get(name, "absent") for each in (found[0], found[-1]))
        print(f"{'same' if now_ == before_ else 'DIFFERS':8} {name:40} {now_} {before_}")
    return found[0] != found[-1]


if __name__ == "__main__":
    sys.exit(main())
