"""Result files that go on from what they hold, and the runs that they lack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import typer
from pyroccam.cli.methods import find
from pyroccam.cli.methods.base import Pair
from pyroccam.cli.runs.building import build_network
from pyroccam.cli.runs.config import RunConfig, changed_settings
from pyroccam.cli.runs.run import Outcome, RunOptions, run
from pyroccam.cli.sweeps.driver import train_seeds
from pyroccam.cli.sweeps.plan import Asked
from pyroccam.data import Dataset
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.storage.checkpoint import versions, write_json

__all__ = ["ResultFile", "Row", "add_seeds", "renew", "untrained"]

Row = dict[str, Any]


def untrained(config: RunConfig, data: Dataset) -> Pair:
    """The model and the guide of a run."""
    return config.chosen.build(build_network(config, data), data)


class ResultFile:
    """A JSON file of runs with one setting, and the versions that they were run with.

    Arguments:
        path: read if it exists.
        empty: what a new file begins with; by default no ``runs``.
        settings: parts of the file that say how it is run, such as ``config={...}``.

    Raises:
        typer.BadParameter: if the file was run with other settings.
    """

    trained: ClassVar[bool] = False
    """Whether this process has written one."""

    def __init__(self, path: Path, empty: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.path = path
        self.content: Row = {**settings, **({"runs": []} if empty is None else empty)}
        if path.exists():
            self.content = json.loads(path.read_text())
            if "options" in (then := self.content.get("config", {})):  # there are more by now
                then["options"] = {**find(then["method"]).without, **then["options"]}
            then, now = (_joined(found, settings) for found in (self.content, settings))
            if changed := changed_settings(then, now):
                raise typer.BadParameter(
                    f"{path} was run with other settings: {'; '.join(changed)}. Give another "
                    "--out, or delete it."
                )

    @property
    def runs(self) -> list[Row]:
        runs: list[Row] = self.content["runs"]
        return runs

    def missing(self, seeds: Iterable[int], by: str = "seed") -> list[int]:
        """Those of which there is no run yet."""
        done = {one[by] for one in self.runs}
        return [seed for seed in seeds if seed not in done]

    def add(self, row: Row, spread: Callable[[list[Row]], Any], **parts: Any) -> None:
        """Take up a run, and write the file with the spread over all of them."""
        self.runs.append(row)
        self.write(spread=spread(self.runs), **parts)

    def write(self, **parts: Any) -> None:
        """Write the file, with these parts anew."""
        self.content |= {"versions": versions(), **parts}
        write_json(self.path, self.content)
        ResultFile.trained = True


def renew(path: Path, write: Callable[..., object], *arguments: Any) -> None:
    """Write what is made of result files, if this process has changed one, or it is not there."""
    if ResultFile.trained or not path.exists():
        write(*arguments)
    else:
        print(f"Nothing was missing: {path} stays.", flush=True)


def _joined(content: Mapping[str, Any], names: Iterable[str]) -> Row:
    """Parts of a file as one; those that are no mapping keep their name."""
    found: Row = {}
    for name in names:
        part = content.get(name)
        found |= part if isinstance(part, Mapping) else {name: part}
    return found


def add_seeds(
    path: Path,
    seeds: int,
    method: str,
    data: str,
    *,
    row: Callable[[Outcome], Row],
    numbers: Callable[[Row], Mapping[str, float]],
    say: Callable[[Row], str],
    runs: Path | None,
    device: str,
    workers: int | None = None,
    beside: Mapping[str, Any] | None = None,
    **resolved: Any,
) -> None:
    """Run the seeds that a file lacks, and write it after each.

    Arguments:
        path: with ``config``, ``runs``, their ``spread`` and ``versions``.
        seeds: 0, 1, ..., so many.
        method, data, resolved: for :meth:`~pyroccam.cli.runs.config.RunConfig.resolve`.
        row: what is kept of a run; with its ``seed``.
        numbers: of a row, those of which the spread is written.
        say: of a row, a line to print.
        runs: folder in which the runs stay, or ``None``.
        device: of the runs.
        workers: processes that train them; one after the other, in this one, if left out.
        beside: what else the file says, such as published numbers.
    """
    first, _ = RunConfig.resolve(method, data, **resolved)
    file = ResultFile(path, config=first.without_seed())
    missing = file.missing(range(seeds))
    folders = {s: None if runs is None else runs / f"{path.stem}-{s}" for s in missing}
    with ExitStack() as held:
        if workers is not None and missing:
            kept = Path(held.enter_context(TemporaryDirectory())) if runs is None else runs
            asked = Asked(method, data, **resolved)
            folders |= train_seeds(kept / path.stem, missing, asked, workers, device)
        for seed, folder in folders.items():
            config, dataset = RunConfig.resolve(method, data, seed=seed, **resolved)
            options = RunOptions(device=device, resume=folder is not None)
            outcome = run(config, dataset, out=folder, options=options)  # which may be trained
            file.add(
                row(outcome), lambda rows: mean_spread([*map(numbers, rows)]), **(beside or {})
            )
            print(say(file.runs[-1]), flush=True)
