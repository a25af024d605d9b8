"""Files that a finished run left in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ...data import PyroccamError
from ...inference.diagnostics import Verdict
from ..methods import METHODS
from ..runs import RunConfig, check_files, read_json, reading


@dataclass(frozen=True)
class RunFiles:
    """A run of one seed, or of several.

    Attributes:
        config: of the first seed.
        seeds: ``metrics.json`` of each.
        together: metrics of the averaged predictions of all seeds, where they were taken.
        findings: of ``diagnostics.json``; empty where there is none.
    """

    name: str
    folder: Path
    config: RunConfig
    seeds: list[dict[str, Any]]
    together: dict[str, float] | None
    findings: list[dict[str, Any]]

    @property
    def first(self) -> dict[str, Any]:
        """The metrics of the first seed."""
        return self.seeds[0]

    @property
    def task(self) -> str:
        """What was predicted, in a word, by the metrics that there are."""
        test = self.first["test"]
        found = test.get("ensemble", test)
        signs = {"f1": "multi-label classification", "accuracy": "classification"}
        signs["deviance"] = "regression of counts"
        return next((word for name, word in signs.items() if name in found), "regression")

    @property
    def title(self) -> str:
        """Title of the run's method, in one line, without how to set it."""
        row = METHODS.get(self.config.method)
        return self.config.method if row is None else row.title.partition(" (")[0]

    def figures(self) -> dict[str, Path]:
        """Its pictures by name: those of the first seed, and over them those of all seeds."""
        found: dict[str, Path] = {}
        folders = [self.folder / "figures"]
        if len(self.seeds) > 1:
            folders.insert(0, _of_seed(self.folder, self.first) / "figures")
        for folder in folders:
            found |= {path.stem: path for path in sorted(folder.glob("*.png"))}
        return found


def read_run(folder: Path) -> RunFiles:
    """Read a run."""
    folder = Path(folder)
    path = folder / "metrics.json"
    if not path.is_file():
        begun = (folder / "config.json").is_file() or any(folder.glob("seed-*/config.json"))
        why = "has no metrics.json: the run did not finish (--resume)" if begun else "is not a run"
        raise FileNotFoundError(f"{folder} {why}; expected the folder of a finished run")
    check_files(folder)
    content = read_json(path)
    with reading(path):
        seeds = content.get("repeats", [content])
        if missing := {"rows", "seed", "test", "versions"} - {*seeds[0]}:
            raise PyroccamError(f"it has no {min(missing)!r}")
        place = _of_seed(folder, seeds[0]) if "repeats" in content else folder
        together = content.get("spread", {}).get("together")
    config, found = RunConfig.read(place), _findings(folder)
    return RunFiles(folder.resolve().name, folder, config, seeds, together, found)


def _of_seed(folder: Path, metrics: dict[str, Any]) -> Path:
    return folder / f"seed-{int(metrics['seed'])}"


def _findings(folder: Path) -> list[dict[str, Any]]:
    path = folder / "diagnostics.json"
    if not path.is_file():
        return []
    with reading(path):
        found: list[dict[str, Any]] = read_json(path)["findings"]
        for one in found:
            if {"name", "text"} - {*one} or one["verdict"] not in get_args(Verdict):
                raise PyroccamError(f"a finding is {one!r}")
    return found
