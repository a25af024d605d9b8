"""Malformed inputs, one for each number: a mutated specimen, or a command that makes no sense."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyroccam import data, inference
from pyroccam.cli.methods import weights
from pyroccam.inference.files import packed, packed_file
from pyroccam.inference.storage import write_digests
from pyroccam.inference.storage.digests import FILE
from torch import nn

from .mutations import ODD, mutated_bytes, mutated_json, mutated_tensors, replace_by_no_file
from .rows import arrays, stream, streamed, wild
from .specimens import RUNS, Specimens
from .verdicts import Case, command

__all__ = ["KINDS", "make_case", "sound_cases"]


def make_case(made: Specimens, work: Path, seed: int, number: int) -> Case:
    """The case of a number, the same for the same seed; its files are in `work`."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    work.mkdir(parents=True)
    return KINDS[kind][1](rng, made, work)


def sound_cases(made: Specimens, work: Path) -> list[Case]:
    """Every way in with a sound specimen: a fuzzer of what refuses everything finds nothing."""
    networks, files, (csv, npz, *_) = made.networks, made.packed[:-1], made.tables
    cases = [
        *(Case("network", str(path), partial(inference.load, path), "pass") for path in networks),
        *(Case("packed", str(path), partial(packed.read, path), "pass") for path in files),
        Case("table", "csv", lambda: data.load(csv, target="label"), "pass"),
        Case("table", "npz", lambda: data.load(npz), "pass"),
        *(Case("stream", str(path), partial(streamed, path), "pass") for path in made.streams),
    ]
    for name in RUNS:
        folder = shutil.copytree(made.run(name), work / name)
        for word in ("evaluate", "diagnose", "report"):
            run = partial(command, [word, str(folder)])
            cases.append(Case("run", f"{word} {name}", run, "pass"))
    return cases


# -- files ----------------------------------------------------------------------------------------


def _damage(rng: random.Random, path: Path, others: list[Path]) -> str:
    """A file is damaged in place, by its kind; what was done, or nothing if it stayed the same."""
    content = path.read_bytes()
    found = [other for other in others if other.is_file()]
    other = rng.choice(found).read_bytes() if found else b""
    chance = rng.random()
    if chance < 0.1:
        return f"{path.name}: {replace_by_no_file(rng, path)}"
    if path.suffix == ".json" and chance < 0.75:
        said, changed = mutated_json(rng, content)
    elif path.suffix == ".safetensors" and chance < 0.6:
        said, changed = mutated_tensors(rng, content)
    else:
        said, changed = mutated_bytes(rng, content, other)
    path.write_bytes(changed)
    return f"{path.name}: {said}" if changed != content else ""


def _sealed(rng: random.Random, folder: Path) -> str:
    """Digests made anew (not damage but intent), removed, or left."""
    if not (folder / FILE).is_file():
        return "unsealed"
    chance = rng.random()
    if chance < 0.35:
        try:
            names = [name for name in json.loads((folder / FILE).read_text()) if name]
            write_digests(folder, [name for name in names if (folder / name).is_file()])
        except (ValueError, OSError, TypeError, RecursionError):  # it is what was damaged
            return "unsealed"
        return "resealed"
    if chance < 0.5:
        (folder / FILE).unlink()
        return "unsealed"
    return "sealed"


def _must(said: str, how: str, name: str) -> str:
    gone = name == weights.FILE and said.endswith("missing")  # it is told, and can be made again
    same = said.endswith("link elsewhere")  # to what was there
    return "refuse" if said and how == "sealed" and name != FILE and not (gone or same) else "any"


def _network(rng: random.Random, made: Specimens, work: Path) -> Case:
    source, other = rng.sample(made.networks, 2)
    folder = shutil.copytree(source, work / "net")
    path = rng.choice(sorted(folder.iterdir()))
    said = _damage(rng, path, [other / path.name])
    how = _sealed(rng, folder)
    must = _must(said, how, path.name)
    return Case(
        "network", f"{how}; {said}", lambda: inference.load(folder), must, names=str(folder)
    )


def _packed(rng: random.Random, made: Specimens, work: Path) -> Case:
    source, other = rng.sample(made.packed, 2)
    path = work / "net.pocc"
    content = source.read_bytes()
    if rng.random() < 0.4:
        shutil.copy(source, path)
        said = _damage(rng, path, [other])
        whole = path.is_file() and path.read_bytes() in [p.read_bytes() for p in made.packed]
        must = "any" if whole else "refuse"
    else:
        said, must = "resealed; ", "any"
        header, tables, coded, digest, *_ = packed_file.split(content)
        part = rng.choice(["header", "header", "tables", "coded"])
        if part == "header":
            words, text = mutated_json(rng, json.dumps(header).encode())
        elif part == "tables":
            words, tables = mutated_bytes(rng, tables, content)
        else:
            words, coded = mutated_bytes(rng, coded, content)
        said += f"{part}: {words}"
        text = text if part == "header" else json.dumps(header).encode()
        path.write_bytes(packed_file.join(text, tables, coded, digest))
    runs: list[Callable[[], Any]] = [lambda: packed.read(path)]
    if source.name == "tensors.pocc":
        runs.append(lambda: packed.read(path, skeleton=nn.Sequential(nn.Linear(4, 5))))
    runs.append(lambda: command(["decompress", str(path), "--out", str(work / "out")]))
    return Case("packed", said, rng.choice(runs), must, names=str(path))


def _table(rng: random.Random, made: Specimens, work: Path) -> Case:
    source, other = rng.sample(made.tables, 2)
    path = Path(shutil.copy(source, work))
    options: dict[str, Any] = {"target": "label"} if path.suffix == ".csv" else {}
    chance = rng.random()
    if chance < 0.4 and path.suffix == ".csv":
        said = _cells(rng, path)
    elif chance < 0.75:
        said = _damage(rng, path, [other])
    else:
        names = ["target", "task", "val_fraction", "test_fraction", "standardise", "seed", "x"]
        option, value = rng.choice(names), rng.choice([*ODD, float("nan")])
        options[option] = value
        said = f"{option}={value!r:.40}"
    return Case("table", said, lambda: data.load(path, **options), names="")


def _rows(rng: random.Random, made: Specimens, work: Path) -> Case:
    """A damaged table for a command: to score, or to learn from."""
    path = Path(shutil.copy(made.tables[0], work))
    said = _cells(rng, path) if rng.random() < 0.7 else _damage(rng, path, made.tables)
    if rng.random() < 0.7:
        arguments = ["evaluate", str(made.run("own")), "--data", str(path)]
    else:
        arguments = [*made.words("ldn"), "--out", str(work / "out"), "--data", str(path)]
        arguments[arguments.index("data.n=120")] = "data.target=label"
    names = "" if " link " in said else str(work)  # or where the link leads to
    return Case("rows", f"{arguments[0]}; {said}", lambda: command(arguments), names=names)


def _cells(rng: random.Random, path: Path) -> str:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row = rng.choice([0, rng.randrange(len(rows))])
    column = rng.randrange(len(rows[row]))
    value = str(rng.choice([v for v in ODD if not isinstance(v, list | dict)]))
    rows[row][column] = value
    if rng.random() < 0.2:
        rows[row] *= rng.choice([0, 2, 300])
    text = "\n".join(map(",".join, rows))
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"row {row}, column {column}: {value!r:.40}"


# -- runs -----------------------------------------------------------------------------------------


def _files_of(folder: Path) -> list[Path]:
    kinds = (".json", ".csv", ".safetensors", ".pt", ".pocc")
    return sorted(p for p in folder.rglob("*") if p.suffix in kinds and p.is_file())


def _copied(rng: random.Random, made: Specimens, work: Path) -> tuple[str, Path, Path, str, str]:
    """Name and copy of a run, the file of it that was damaged, how, and whether it is sealed."""
    name, other = rng.sample(sorted(RUNS), 2)
    ignore = shutil.ignore_patterns("figures*", "*.html")
    folder = shutil.copytree(made.run(name), work / "run", ignore=ignore)
    path = rng.choice(_files_of(folder))
    others = [made.run(other) / path.relative_to(folder), *_files_of(made.run(name))[:1]]
    said = _damage(rng, path, others)
    return name, folder, path, said, _sealed(rng, path.parent)


def _run(rng: random.Random, made: Specimens, work: Path) -> Case:
    name, folder, path, said, how = _copied(rng, made, work)
    own = ["compress"] if name != "ldn" else ["prune", "--form", "single"]
    words = rng.choice([["evaluate"]] * 4 + [own, own, ["report"], ["diagnose"]])
    recorded = path.parent == folder and path.name in _recorded(made.run(name))
    read = words != ["report"]
    must = _must(said, how, path.name) if recorded and read else "any"
    must = "refuse" if " link " in said or said.endswith("pipe") else must
    arguments = [words[0], str(folder), *words[1:]]
    said = f"{words[0]} {name}; {how}; {said}"
    return Case("run", said, lambda: command(arguments), must, names=str(folder))


def _recorded(folder: Path) -> set[str]:
    path = folder / FILE
    return set(json.loads(path.read_text())) if path.is_file() else set()


def _resume(rng: random.Random, made: Specimens, work: Path) -> Case:
    name, folder, path, said, how = _copied(rng, made, work)
    if rng.random() < 0.7:  # as if it had been stopped
        for gone in ("model.safetensors", "fit.json", "metrics.json", FILE):
            if (folder / gone) != path:
                (folder / gone).unlink(missing_ok=True)
    arguments = [*made.words(name), "--out", str(folder), "--resume"]
    must = "refuse" if said and path.name == "checkpoint.pt" and path.is_file() else "any"
    said = f"{name}; {how}; {said}"
    return Case("resume", said, lambda: command(arguments), must, names=str(folder))


def _linked(rng: random.Random, made: Specimens, work: Path) -> Case:
    """Something in the folder of a run leads elsewhere, where nothing may be written."""
    name = rng.choice(sorted(RUNS))
    folder = shutil.copytree(made.run(name), work / "run")
    theirs = work / "theirs"
    theirs.write_text("theirs")
    path = folder / rng.choice([
        ".lock", ".lock.txt", "figures", "diagnostics.json.part", "posterior.nc", "history.csv",
        "metrics.json", "x", "figures/diagnose-x.png", "config.json",
    ])  # fmt: skip
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    kind = rng.choice(["link", "pipe"])
    path.symlink_to(theirs) if kind == "link" else os.mkfifo(path)
    again = [*made.words(name), "--out", str(folder), "--resume"]
    own = "compress" if name != "ldn" else "prune"
    arguments = rng.choice(
        [again, *([w, str(folder)] for w in ("evaluate", "diagnose", "report", own))]
    )

    def run() -> None:
        try:
            command(arguments)
        finally:
            assert theirs.read_text() == "theirs", "written through a link"

    said = f"{arguments[0]} {name}: {path.relative_to(folder)} is a {kind}"
    return Case("linked", said, run, "refuse")


# -- commands -------------------------------------------------------------------------------------

_WORDS = [
    "nan", "inf", "-inf", "-1", "0", "1e400", "1" + "0" * 18, "1" + "0" * 400, "1e-400", "0.5",
    "true", "null", "None", "", " ", "[", "[1", "[]", "[0]", "[-1]", "[1e9]", "{}", '{"a":1}',
    "[/x]", "[red]", "\ud800", "\udcff", "x" * 5000, "'", "1,2", "0x10", "\u0661",
    "\x1b[31m", "a\nb", "%s", "[[1]]", "2.0", "auto", "-0", "1e18",
]  # fmt: skip
_SETTINGS = [
    "lr", "epochs", "steps", "batch_size", "hidden", "width", "max_depth", "kl_weight", "threshold",
    "tolerance", "prior", "samples", "seed", "data.target", "data.noise", "data.n", "data.seed",
    "data.", "data.x", "x", "compile", "clip", "weight_decay", "val_fraction", "temperature",
    "eval_every", "patience", "noise", "narrow", "depth_prior", "rows", "optimiser",
]  # fmt: skip
_PATHS = ["", "nothing", "/", "/dev/null", "\0", "a\0b", "\udcff", "x" * 5000, "[/x]", "a.npz",
          "a.csv", "~nobody/x", "..", "http://x/y.csv", "\x1b[31m", "x/" * 3000]  # fmt: skip
_DEVICES = ["meta", "mps", "xla", "cuda:99", "cpu:3", "[/x]", "", "cuda:-1", "cuda:x", "fpga"]
_NETWORKS = ["nothing", "x:y", "math:sqrt", "math:pi", "[/x]", "", ":", "a.b:c", "json:", "os:x"]
_OPTIONS: dict[str, list[str]] = {
    "--epochs": _WORDS, "--seed": _WORDS, "--repeats": [*_WORDS, "1000000000"],
    "--threads": [*_WORDS, "1000000"], "--device": _DEVICES, "--network": _NETWORKS,
    "--out": _PATHS, "--data": [*_PATHS, "uci/x", "uci/..", "spiral"], "--data-root": _PATHS,
    "--depth": _WORDS, "--form": ["x", ""], "--cut": _WORDS, "--cut.nats": _WORDS,
    "--code.values": _WORDS, "--code.significand": ["x"], "--split": ["x", "val"], "--x": ["1"],
}  # fmt: skip
_TAKES = {
    "fit": ["--epochs", "--seed", "--repeats", "--threads", "--device", "--network", "--data"],
    "evaluate": ["--data", "--data-root", "--split", "--device"],
    "prune": ["--depth", "--form", "--device"],
    "compress": ["--cut", "--cut.nats", "--code.values", "--code.significand", "--device"],
    "diagnose": ["--device"],
    "report": ["--x"],
    "decompress": ["--x"],
}


def _command(rng: random.Random, made: Specimens, work: Path) -> Case:
    """A command of which one part, or two, cannot be meant."""
    name = rng.choice(["fit", "fit", "fit", *_TAKES])
    if name == "fit":
        run = rng.choice(sorted(RUNS))
        arguments = [*made.words(run), "--out", str(work / "out")]
        arguments[1] = rng.choice([run] * 9 + ["nothing", "[/x]", ""])
    else:
        folder: Any = made.run("gnj" if name == "compress" else "ldn")
        if rng.random() < 0.4:
            folder = rng.choice(_PATHS)
        arguments = [name, str(folder)]
        if name not in ("diagnose", "report"):
            arguments += ["--out", str(work / "out")]
        elif not isinstance(folder, str):
            arguments[1] = str(shutil.copytree(folder, work / "run"))
    for _ in range(rng.choice([1, 1, 2])):
        if name == "fit" and rng.random() < 0.5:
            arguments += ["--set", f"{rng.choice(_SETTINGS)}={rng.choice(_WORDS)}"]
        elif rng.random() < 0.1:
            arguments += rng.choice([["--out", rng.choice(_PATHS)], ["--set"], ["--set", "x"]])
        else:
            option = rng.choice(_TAKES[name])
            arguments += [option, rng.choice(_OPTIONS[option])]
    said = " ".join(f"{word!a:.60}" for word in arguments)
    return Case("command", said, lambda: command(arguments))


KINDS: dict[str, tuple[float, Callable[[random.Random, Specimens, Path], Case]]] = {
    "network": (20, _network),
    "packed": (20, _packed),
    "table": (10, _table),
    "wild": (3, wild),
    "arrays": (15, arrays),
    "stream": (10, stream),
    "linked": (2, _linked),
    "rows": (3, _rows),
    "command": (12, _command),
    "run": (4, _run),
    "resume": (1, _resume),
}
"""Kinds of cases: how often, of a hundred, and how one is made."""
