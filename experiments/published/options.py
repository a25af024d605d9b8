"""Options that the scripts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pyroccam.cli.runs.config import parse_settings
from pyroccam.models.checks import unknown_name

__all__ = [
    "BY_COMMAS", "RESULTS", "Count", "Data", "DataRoot", "Device", "Network", "Out", "Runs", "Sets",
    "Workers", "listed", "settings_of",
]  # fmt: skip

RESULTS = Path("experiments/results")
BY_COMMAS = typer.Option(help="Separated by commas.")

Count = Annotated[int, typer.Option(min=1)]
Data = Annotated[str, typer.Option(help="A data set.")]
DataRoot = Annotated[str | None, typer.Option("--data-root", metavar="FOLDER")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")]
Network = Annotated[str, typer.Option(help="That the methods take.")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Runs = Annotated[Path | None, typer.Option(help="Keep the runs here, with files and figures.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes that train the seeds.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")]


def settings_of(asked: Sequence[str] | None, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a script, with those of ``--set`` in place of the usual ones.

    Raises:
        typer.BadParameter: for one that the script has not, or chooses itself.
    """
    own = parse_settings([*(asked or [])])
    for name in own:
        if name not in usual:
            raise typer.BadParameter(unknown_name("setting", name, usual))
    return {**usual, **own}


def listed(kind: str, asked: str, known: Iterable[str], separator: str = ",") -> list[str]:
    """The names in an option.

    Raises:
        typer.BadParameter: for one that is not known.
    """
    names = asked.split(separator)
    for name in names:
        if name not in known:
            raise typer.BadParameter(unknown_name(kind, name, known))
    return names
