"""Files that a finished run left in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ...inference.diagnostics import Verdict
from ..methods import METHODS
from ..runs import RunConfig, RunError, check_files, read_json

__all__ = ["RunFiles", "read_run"]


@dataclass(frozen=True)
class RunFiles:
    """A run of one seed, or of several.

    Attributes:
        name: of its folder.
        folder: of the run.
        config: how it was run; of the first seed.
        seeds: ``metrics.json`` of each seed.
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
            for suffix in (".svg", ".png"):
                found |= {path.stem: path for path in sorted(folder.glob(f"*{suffix}"))}
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
    repeats = content.get("repeats", [content])
    seeds = [_checked(one, path) for one in repeats] if isinstance(repeats, list) else []
    if not seeds:
        raise RunError(f"{path} cannot be read: it holds no runs.")
    config = RunConfig.read(_of_seed(folder, seeds[0]) if "repeats" in content else folder)
    spread = content.get("spread")
    return RunFiles(
        name=folder.resolve().name,
        folder=folder,
        config=config,
        seeds=seeds,
        together=spread.get("together") if isinstance(spread, dict) else None,
        findings=_findings(folder),
    )


def _of_seed(folder: Path, metrics: dict[str, Any]) -> Path:
    return folder / f"seed-{metrics['seed']}"


def _checked(metrics: Any, path: Path) -> dict[str, Any]:
    needed = ("method", "data", "seed", "rows", "parameters", "seconds", "test", "versions")
    missing = [n for n in needed if n not in metrics] if isinstance(metrics, dict) else ["method"]
    if not missing and not isinstance(metrics["seed"], int):  # it names a folder
        missing = ["seed"]
    if missing:
        raise RunError(f"{path} cannot be read: {missing[0]!r} is missing. Run it again.")
    found: dict[str, Any] = metrics
    return found


def _findings(folder: Path) -> list[dict[str, Any]]:
    path = folder / "diagnostics.json"
    if not path.is_file():
        return []
    found = read_json(path).get("findings")
    if not isinstance(found, list):
        raise RunError(f"{path} cannot be read: it has no list of findings.")
    for one in found:
        whole = isinstance(one, dict) and {"name", "verdict", "text"} <= {*one}
        if not whole or one["verdict"] not in get_args(Verdict):
            raise RunError(f"{path} cannot be read: a finding is {one!r}.")
    return found
