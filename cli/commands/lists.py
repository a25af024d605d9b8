"""``pyroccam methods`` and ``pyroccam data``: what there is."""

from __future__ import annotations

from .application import app, console


@app.command()
def methods() -> None:
    """List the methods."""
    from rich.table import Column, Table

    from ..methods import METHODS

    table = Table("method", Column("what it is, settings of its own, source", overflow="fold"),
                  box=None)  # fmt: skip
    takes: dict[str, list[str]] = {}
    for row in METHODS.values():
        options = ", ".join(f"{k}={v}" for k, v in row.options.items())
        parts = [row.title, options, row.reference]
        table.add_row(row.name, "\n".join(part for part in parts if part) + "\n")
        takes.setdefault(", ".join(row.networks), []).append(row.name)
    console.print(table)
    for networks, names in takes.items():
        console.say(f"\nNetworks of {', '.join(names)}: {networks}.")


@app.command("data")
def list_data() -> None:
    """List the data sets."""
    from rich.table import Table

    from ... import data as datasets

    table = Table("data", "task", "from", "what it is", box=None)
    for entry in datasets.available():
        table.add_row(*entry)
    table.add_row("FILE.npz, FILE.csv", "either", "your own", "arrays x_train, y_train, x_test, "
                  "y_test; or a table with a target column (--set data.target=NAME)")  # fmt: skip
    table.add_row("FOLDER, FILE.parquet", "any", "your own, streamed", "x.npy and y.npy, or "
                  "x-00.npy, ...; images in a folder for each class (--set data.size=PIXELS); "
                  "Parquet files (--set data.target=NAME)")  # fmt: skip
    table.add_row("MODULE:FUNCTION", "any", "your own", "what data.stream or data.Dataset makes; "
                  "FILE.py:FUNCTION too; --set data.NAME=... are its arguments")  # fmt: skip
    console.print(table)
