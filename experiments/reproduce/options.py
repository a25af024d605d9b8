"""Options that the scripts share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ...models.checks import unknown_name

__all__ = [
    "BY_COMMAS", "RESULTS", "Count", "Data", "DataRoot", "Device", "Network", "Out", "Runs", "Sets",
    "listed",
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
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")]


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
