"""Results as files and as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyroccam.inference.storage.checkpoint import write_json

from .harness import Measured, Quartiles, Report

__all__ = ["brief", "markdown", "read", "read_folder", "table", "write"]


def write(report: Report, folder: Path) -> Path:
    """One JSON file for each workload."""
    path = folder / f"{report.name}.json"
    write_json(path, report.to_json())
    return path


def read(path: Path) -> Report:
    """The report in a file."""
    return Report.from_json(json.loads(path.read_text()))


def read_folder(folder: Path, names: Sequence[str]) -> list[Report]:
    """Reports of the named workloads, as far as there are files."""
    paths = [folder / f"{name}.json" for name in names]
    return [read(path) for path in paths if path.exists()]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def table(report: Report) -> str:
    """A Markdown table of one workload, with its machine and the notes below."""
    rows = [_cells(row, report.base) for row in report.contenders]
    header = ["contender", "ms a step", "quartiles", f"time / {report.base}", "compile, s"]
    if any(row.memory is not None for row in report.contenders):
        header.append("peak memory, MB")
        for cells, row in zip(rows, report.contenders, strict=True):
            cells.append("" if row.memory is None else number(1e-6 * row.memory))
    plan, machine = report.plan, report.machine
    threads = machine["threads"]
    lines = [
        f"**{report.title}** ({plan.rounds} rounds of {plan.steps} steps; "
        f"{machine['device'] if machine['device'] != 'cpu' else machine['cpu']}, "
        f"{threads} thread{'s' if threads != 1 else ''}, torch {machine['versions']['torch']}, "
        f"Pyro {machine['versions']['pyro-ppl']})",
        "",
        markdown(header, rows),
    ]
    lines += ["", *_share(report)]
    notes = [f"{row.name}: {row.note}" for row in report.contenders if row.note]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines)


def _share(report: Report) -> list[str]:
    """How near to what the processor can do the fastest of our own steps is."""
    if report.flops is None or report.peak is None:
        return []
    least = 1e3 * report.flops / report.peak
    ours = [r for r in report.contenders if r.name == "pyroccam compiled" and r.ms is not None]
    return [
        f"Products of a step are {number(1e-6 * report.flops)} MFLOP: {number(least)} ms at the "
        f"{number(1e-9 * report.peak)} GFLOP/s of a product of two large matrices, "
        f"{number(100 * least * row.networks / row.ms.median)} % of pyroccam compiled."
        for row in ours
        if row.ms is not None
    ]


def _cells(row: Measured, base: str) -> list[str]:
    if row.ms is None:
        return [row.name, f"fails: {brief(row.error)}", "", "", ""]
    step = number(row.ms.median)
    if row.networks > 1:
        step += f" ({number(row.ms.median / row.networks)} a network)"
    seconds = "" if row.compile_seconds is None else f"{row.compile_seconds:.1f}"
    ratio = "1" if row.name == base else _ratio(row.ratio)
    return [row.name, step, _range(row.ms), ratio, seconds]


def _range(q: Quartiles) -> str:
    return f"{number(q.lower)} to {number(q.upper)}"


def _ratio(q: Quartiles | None) -> str:
    return "" if q is None else f"{number(q.median)} ({_range(q)})"


def number(value: float) -> str:
    """Three digits that count, as a plain decimal."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def brief(error: str | None, length: int = 110) -> str:
    """The first line of an error, without what would break a table."""
    lines = (error or "not measured").strip().splitlines()
    first = lines[0].replace("|", "/")
    return first if len(first) <= length else first[: length - 3].rstrip() + "..."
