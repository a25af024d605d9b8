"""What an experiment is, and the one program that runs any of them.

    python -m experiments NAME --again [OPTIONS]

A result file holds the runs of one setting. A finished run is kept, so that the same command goes
on where an earlier one stopped; a file of other settings is refused. Figures are drawn where
something was trained, or where there are none. What is trained goes into ``runs/experiments``, and
into the committed results if ``--out`` says so. Without ``--again`` the table of the committed
results is printed, and no file is written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam.cli.methods.base import Pair
from pyroccam.cli.requests import RunRequest
from pyroccam.cli.runs.building import build_network
from pyroccam.cli.runs.config import RunConfig, changed_settings
from pyroccam.cli.runs.execution import Outcome, RunOptions, run
from pyroccam.cli.signatures import parse_settings
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.figures import save
from pyroccam.inference.storage.checkpoint import versions, write_json
from pyroccam.inference.storage.whole import write_whole
from pyroccam.models.checks import unknown_name

__all__ = [
    "Choice", "File", "Given", "Key", "Made", "Row", "Spec", "of_method", "resolve", "seeds",
    "untrained",
]  # fmt: skip

RESULTS = Path("experiments/results")
TRAINED = Path("runs/experiments")

NEWER = {"start": 0.0, "finish": 0.0, "number_bits": 0.0}
"""Options that files of before there were these do not name, with values that change nothing."""

Row = dict[str, Any]
Made = Callable[[], Figure | Row | str]
"""Makes a figure, or what a file of JSON or Markdown holds."""

Key = Mapping[str, Any]
"""What tells the rows of a file apart, such as their seeds."""


Given = argparse.Namespace
"""The options of a command, as attributes."""


@dataclass(frozen=True, eq=False)
class Choice:
    """An option that takes some of the names that are known.

    Attributes:
        known: all of them.
        usual: those that are taken if nothing is said; all of them if left out.
        separator: between two names.
    """

    known: Collection[str]
    usual: Sequence[str] | None = None
    separator: str = ","

    def __call__(self, text: str) -> list[str]:
        """The names in a text.

        Raises:
            ArgumentTypeError: for one that is not known.
        """
        names = text.split(self.separator)
        for name in names:
            if name not in self.known:
                raise argparse.ArgumentTypeError(unknown_name("name", name, self.known))
        return names


@dataclass(frozen=True)
class File:
    """A result file, and how a row of it is made.

    Attributes:
        name: without its suffix.
        says: how it is run; with other values a file is refused.
        run: from a key to the rest of its row; of a file without keys, to all that it holds.
        keys: of the rows that are asked for.
        at: where the rows are in the file.
    """

    name: str
    says: Mapping[str, Any]
    run: Callable[..., Row]
    keys: Sequence[Key] = ()
    at: tuple[str, ...] = ("runs",)


@dataclass(frozen=True)
class Spec:
    """An experiment.

    Attributes:
        module: that it is in.
        title: of its tables.
        folder: of its results, in ``experiments/results``.
        options: of its command, by name, with their defaults. A type stands for an option that is
            ``None`` unless it is given; a tuple for several values with commas between them; a
            mapping for settings (``--set``), of which other names are refused unless it is empty.
        files: that are asked for.
        table: from a folder of results to Markdown; no lines without results.
        drawn: figures, and files of JSON or Markdown (with that suffix), by name.
        small: options with which it takes next to no time, for tests.
    """

    module: str
    title: str
    folder: str
    options: Mapping[str, Any]
    files: Callable[[Given], Iterable[File]]
    table: Callable[[Path], Iterable[str]]
    drawn: Callable[[Given], Mapping[str, Made]] = lambda given: {}
    small: str = ""

    def parser(self) -> argparse.ArgumentParser:
        """Of the command."""
        made = argparse.ArgumentParser(
            prog=f"python -m {self.module}",
            description=sys.modules[self.table.__module__].__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        common = {"out": Path, "seeds": 3, "threads": 1}
        for name, usual in {**common, **self.options}.items():
            made.add_argument(f"--{name.replace('_', '-')}", dest=name, **_argument(usual))
        made.add_argument(
            "--again", action="store_true", help="train; otherwise nothing is written"
        )
        return made

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Print the table of what is there, or train (``--again``) and draw what changed."""
        parser = self.parser()
        given = parser.parse_args(arguments, Given())
        given.out = given.out or (TRAINED if given.again else RESULTS) / self.folder
        if given.again:
            self._train(parser, given)
        print("\n".join([f"### {self.title}\n", *self.table(given.out)]))

    def _train(self, parser: argparse.ArgumentParser, given: Given) -> None:
        torch.set_num_threads(given.threads)
        try:
            for name, usual in self.options.items():
                if isinstance(usual, Mapping):
                    setattr(given, name, _settings(getattr(given, name), usual))
            self.run(given)
        except PyroccamError as error:
            parser.error(str(error))

    def run(self, given: Given) -> None:
        """The same with options that were read.

        Raises:
            PyroccamError: for a file that was run with other settings, before anything is run.
        """
        trained = False
        for kept in [_Kept(given.out / f"{file.name}.json", file) for file in self.files(given)]:
            trained |= kept.complete()
        for name, make in self.drawn(given).items():
            path = given.out / name
            if trained or not (path if path.suffix else Path(f"{path}.png")).exists():
                _write(path, make())


def _write(path: Path, found: Figure | Row | str) -> None:
    if isinstance(found, Figure):
        save(found, path)
    elif isinstance(found, str):
        write_whole(path, lambda file: file.write(found), "w")
    else:
        write_json(path, found)


def _argument(usual: Any) -> dict[str, Any]:
    """How argparse is told of an option, by its default."""
    if isinstance(usual, Mapping):
        return {"action": "append", "default": [], "metavar": "KEY=VALUE"}
    if isinstance(usual, Choice):
        default = list(usual.known if usual.usual is None else usual.usual)
        shown = usual.separator.join(usual.known).replace("%", "%%")
        return {"type": usual, "default": default, "help": f"of {shown}"}
    if isinstance(usual, tuple):
        kind = type(usual[0]) if usual else int
        return {
            "type": lambda text: [kind(part) for part in text.split(",") if part],
            "default": list(usual),
        }
    if isinstance(usual, bool):
        return {"action": "store_true"}
    if isinstance(usual, type):
        return {"type": usual}
    return {"type": type(usual), "default": usual, "help": f"{usual}"}


def _settings(pairs: list[str], usual: Mapping[str, Any]) -> Row:
    """Those of ``--set``, in place of the usual ones."""
    own = parse_settings(pairs)
    if usual and (odd := [name for name in own if name not in usual]):
        raise PyroccamError(unknown_name("setting", odd[0], usual))
    return {**usual, **own}


class _Kept:
    """A result file as it is."""

    def __init__(self, path: Path, file: File) -> None:
        self.path, self.file = path, file
        self.content: Row = dict(file.says)
        self._read()
        if self.there:
            if asked := file.says.get("config", {}).get("options"):
                then = self.content.get("config", {}).setdefault("options", {})
                then |= {k: v for k, v in NEWER.items() if k in asked and k not in then}
            says = json.loads(json.dumps(file.says))  # as a file would have it, with lists
            before, now = (_joined(found, says) for found in (self.content, says))
            if changed := changed_settings(before, now):
                raise PyroccamError(f"{path} was run with other settings: {'; '.join(changed)}")

    def _read(self) -> None:
        self.there = self.path.exists()
        if self.there:
            self.content = json.loads(self.path.read_text())

    def complete(self) -> bool:
        """Run what is missing; true if anything was."""
        self._read()  # another part of the same file may have been run
        if not self.file.keys:
            if not self.there:
                self._write(_timed(self.file.run, {}))
            return not self.there
        rows: Any = self.content
        for name in self.file.at[:-1]:
            rows = rows.setdefault(name, {})
        rows = rows.setdefault(self.file.at[-1], [])
        missing = [
            key
            for key in self.file.keys
            if not any(all(row[name] == key[name] for name in key) for row in rows)
        ]
        for key in missing:
            rows.append({**key, **_timed(self.file.run, key)})
            self._write(rows[-1], {})
        return bool(missing)

    def _write(self, found: Row, parts: Row | None = None) -> None:
        self.content |= {"versions": versions(), **(found if parts is None else parts)}
        write_json(self.path, self.content)
        print(f"{self.path.stem}: {_said(found)}", flush=True)


def _timed(run: Callable[..., Row], key: Key) -> Row:
    """A row, with the seconds that it took unless it says its own."""
    start = time.monotonic()
    row = run(**key)
    row.setdefault("seconds", time.monotonic() - start)
    return row


def _joined(content: Mapping[str, Any], names: Iterable[str]) -> Row:
    """Parts of a file as one; those that are no mapping keep their name."""
    found: Row = {}
    for name in names:
        part = content.get(name)
        found |= part if isinstance(part, Mapping) else {name: part}
    return found


def _said(row: Mapping[str, Any], most: int = 12) -> str:
    """The first numbers and words of a row."""
    found = []
    for name, value in row.items():
        if isinstance(value, Mapping) and all(isinstance(v, float) for v in value.values()):
            found += [f"{name} {inner} {v:.4g}" for inner, v in value.items()]
        elif isinstance(value, float):
            found.append(f"{name} {value:.4g}")
        elif isinstance(value, int | str):
            found.append(f"{name} {value}")
    return ", ".join(found[:most])


def seeds(given: Given, first: int = 0) -> list[Key]:
    """As many as there are asked for."""
    return [{"seed": seed} for seed in range(first, first + given.seeds)]


def resolve(
    method: str, data: str, seed: int = 0, *, sets: Row | None = None, **how: Any
) -> tuple[RunConfig, Dataset]:
    """The settings and the rows of a run, as ``pyroccam fit`` has them."""
    return RunConfig.resolve(RunRequest(method, data, set_=sets or {}, **how), seed)


def untrained(config: RunConfig, data: Dataset) -> Pair:
    """The model and the guide of a run."""
    return config.chosen.build(build_network(config, data), data)


def of_method(
    name: str,
    method: str,
    row: Callable[[Outcome], Row],
    given: Given,
    sets: Mapping[str, Any],
    network: str | None = None,
) -> File:
    """A file of runs of a method, as ``pyroccam fit`` makes them.

    Arguments:
        row: what is kept of a run.
        given: with ``data``, ``network`` and ``data_root``; runs stay in the folder ``runs``, if
            there is one.
        sets: settings of the method.
        network: that of ``given`` if left out.
    """
    how = {"network": network or given.network, "data_root": given.data_root, "sets": dict(sets)}
    first, _ = resolve(method, given.data, **how)

    def run_one(seed: int) -> Row:
        config, data = resolve(method, given.data, seed, **how)
        out = None if given.runs is None else Path(given.runs) / f"{name}-{seed}"
        # What a method leaves is reported as it is, also where a plain network is better.
        compare = method == "structure"
        options = RunOptions(device=given.device, resume=out is not None, compare=compare)
        return row(run(config, data, out=out, options=options))

    return File(name, {"config": first.without_seed()}, run_one, seeds(given))
