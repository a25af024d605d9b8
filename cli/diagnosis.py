"""The diagnosis of a run: findings in words, figures, and the posterior as a file for ArviZ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..inference import figures
from ..inference.arviz import write
from ..inference.diagnostics import Finding, diagnose
from ..inference.storage import refuse_links, versions, write_json
from .console import PlainConsole, styled
from .pages import DIAGNOSIS, slug
from .runs import load_fit

POSTERIOR = "posterior.nc"
COLOURS = {"good": "green", "doubtful": "yellow", "poor": "red", "refused": "dim"}
DRAWS, ROWS = 500, 2000  # of the file


def runs_of(folder: Path) -> list[Path]:
    """The folder of a run, or those of its repeats."""
    if (folder / "config.json").is_file():
        return [folder]
    seeds = sorted(
        (path for path in folder.glob("seed-[0-9]*") if (path / "config.json").is_file()),
        key=lambda path: int(path.name.partition("-")[2]),
    )
    if not seeds:
        raise FileNotFoundError(f"{folder} is not a run; expected a folder with a config.json")
    return seeds


def diagnose_run(
    folder: Path, device: str, *, draws: int, rows: int | None, **opening: Any
) -> tuple[list[Finding], list[Path]]:
    """Diagnose a run, or repeats of one, and write what was found beside it.

    ``diagnostics.json``, ``figures/diagnose-*``, and ``posterior.nc``.
    """
    folders = runs_of(folder)
    refuse_links(folder)
    fits = [load_fit(one, device, **opening) for one in folders]
    found = diagnose(fits, draws=draws, rows=rows)
    posterior = fits[0].to_arviz(DRAWS, rows=ROWS)
    written = [write(posterior, folders[0] / POSTERIOR)]
    for one in found:
        if one.figure is not None:
            path = folder / "figures" / f"{DIAGNOSIS}{slug(one.name)}"
            written += figures.save(one.figure, path, title=f"{fits[0].data.name}: {one.name}")
    path = folder / "diagnostics.json"
    content = {"findings": [one.to_json() for one in found], "draws": draws}
    write_json(path, {**content, "versions": versions()})
    return found, [*written, path]


def print_findings(console: PlainConsole, found: Sequence[Finding]) -> None:
    """A line for each, and what they come to."""
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for one in found:
        colour = COLOURS[one.verdict]
        table.add_row(styled((one.verdict, colour)), styled((one.name, "bold")), one.text)
    console.print(table)
    console.say(overall(found))


def overall(found: Sequence[Finding]) -> str:
    """One sentence: what to trust."""
    by = {v: [one.name for one in found if one.verdict == v] for v in COLOURS}
    if by["poor"]:
        return f"Do not rely on this posterior before you have looked at: {', '.join(by['poor'])}."
    if by["doubtful"]:
        return f"Usable with care; what is in doubt: {', '.join(by['doubtful'])}."
    if by["good"]:
        return "Nothing speaks against this posterior, as far as these diagnostics see."
    return "No diagnostic applies here."
