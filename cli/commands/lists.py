"""``pyroccam methods`` and ``pyroccam data``: what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from .. import said_of
from .application import app, console

if TYPE_CHECKING:
    from ..methods import Method


@app.command()
def methods(method: str | None = None) -> None:
    """List the methods, or what can be set of one beside its data.

    Arguments:
        method: One of them.
    """
    from rich.table import Column, Table

    from ..methods import METHODS, find

    if method is not None:
        _print_method(find(method))
        return
    table = Table("method", Column("what it is, source", overflow="fold"), box=None)
    takes: dict[str, list[str]] = {}
    for row in METHODS.values():
        table.add_row(row.name, f"{row.title}\n{row.reference}\n")
        takes.setdefault(", ".join(row.networks), []).append(row.name)
    console.print(table)
    for networks, names in takes.items():
        console.say(f"\nNetworks of {', '.join(names)}: {networks}.")
    console.say("\n`pyroccam methods METHOD` says what can be set of one.")


def _print_method(row: Method) -> None:
    """What it is, and what `--set` takes beside options of the data."""
    from ...inference.training import Settings
    from ..runs import FIT, PASSES

    console.say((row.name, "bold"), f": {row.title}. {row.reference}.")
    console.say(f"Networks: {', '.join(row.networks)}.")
    usual = {**vars(Settings()), **row.settings}
    rate = usual["lr"]
    del usual["seed"]  # an option of `pyroccam fit`
    _print_options("options of the method", type(row), row.options)
    if row.over == "stack":  # by the network
        usual |= dict.fromkeys(
            {name for one in FIT.values() for name in one} - {*row.settings}, ...
        )
    _print_options("settings of the fit", Settings, usual)
    if "steps" in row.settings:
        console.say(f"With neither epochs nor steps: {PASSES} passes over the rows at least.")
    for name, maker in row.networks.items():
        parameters = signature(maker).parameters.values()
        own = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        if row.over == "stack":  # by the data
            own = dict.fromkeys(own, ...)
        if own:
            _print_options(f"options of {name}", maker, own)
    console.say(f"\nFor example: pyroccam fit {row.name} --set lr={rate / 2:g}")


def _print_options(title: str, owner: Any, values: Mapping[str, Any]) -> None:
    """A table of what `--set` takes for an owner, with usual values where they are known."""
    from rich.table import Column, Table

    from ...data import described, kinds_of

    kinds, said = kinds_of(owner), said_of(owner)
    table = Table(title, Column("what it is", overflow="fold"), box=None)
    for name, value in values.items():
        allowed = f" [{described(kinds[name])}]" if name in kinds else ""
        text = re.sub(r" \(:mod:[^)]*\)|``", "", said.get(name, ""))
        shown = name if value is ... else f"{name}={json.dumps(value)}"
        table.add_row(shown, f"{text}{allowed}".replace("None", "null"))
    console.say()
    console.print(table)


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
