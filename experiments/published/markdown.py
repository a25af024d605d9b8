"""Markdown tables of result files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

__all__ = ["column", "header", "mean_sd", "plus_minus", "read_all", "row", "trained_on"]

Runs = Iterable[Mapping[str, Any]]


def read_all(folder: Path, pattern: str = "*") -> dict[str, Any]:
    """The result files in a folder whose names match, by name."""
    found = sorted(folder.glob(f"{pattern}.json"))
    return {path.stem: json.loads(path.read_text()) for path in found}


def column(runs: Runs, path: str) -> list[float]:
    """A number of each run that has it, by names with ``/`` between them."""
    found = []
    for value in runs:
        part: Any = value
        for name in path.split("/"):
            part = None if part is None else part.get(name)
        if part is not None:
            found.append(float(part))
    return found


def mean_sd(values: Iterable[float], digits: int = 4, scale: float = 1.0) -> str:
    """A mean and, of more than one, the standard deviation; nothing of none."""
    values = [float(value) for value in values]
    if not values:
        return ""
    sd = f" ± {scale * stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * fmean(values):.{digits}f}{sd}"


def plus_minus(runs: Runs, path: str, digits: int = 4, scale: float = 1.0) -> str:
    """The same of a :func:`column`."""
    return mean_sd(column(runs, path), digits, scale)


def row(*cells: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(str(c) for c in cells) + " |"


def header(*cells: str) -> list[str]:
    """The first two rows of a table."""
    return [row(*cells), row(*["---"] * len(cells))]


def trained_on(found: Mapping[str, Any]) -> tuple[str, str]:
    """The data and the network of a file of runs of a method."""
    return found["config"]["data"]["name"], found["config"]["network"]
