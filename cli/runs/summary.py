"""Output of a run for a person at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table as Printed

from ...data import PyroccamError
from .. import PlainConsole
from .tables import Table, learnt, learnt_tables, scores


def refuse_unmet(metrics: Mapping[str, Any]) -> None:
    """Refuse a run of every size of which no network was cut, or none meets the budget; all that
    was trained is written by then.
    """
    if "unmet" in metrics.get("path", {}):
        raise PyroccamError(metrics["path"]["unmet"])


def print_run(console: PlainConsole, metrics: Mapping[str, Any]) -> None:
    """What speaks against the run, what it learnt, and its networks side by side."""
    for sentence in metrics["warnings"]:
        console.say("\n", ("Beware:", "yellow"), f" {sentence}")
    tables = {table.caption: table for table in learnt_tables([metrics])}
    for one in learnt(metrics):
        console.say("\n", (one["title"], "bold"))
        for sentence in one["sentences"]:
            console.say(sentence)
        if one["title"] in tables:
            console.print(_printed(tables[one["title"]]))
    console.say()
    console.print(_printed(scores([metrics], "", without=("brier",))))
    console.say(_trained(metrics))


def _printed(table: Table) -> Printed:
    out = Printed(*table.head, box=None)
    for k, column in enumerate(out.columns):
        column.overflow = "fold"
        if all(row[k].value is not None or not row[k].text for row in table.rows):
            column.justify = "right"
    for row in table.rows:
        out.add_row(*(cell.text for cell in row))
    return out


def _trained(metrics: Mapping[str, Any]) -> str:
    engine = metrics["engine"]
    how = []
    if engine["replicates"] > 1:
        how.append(f"{engine['replicates']} seeds together")
    if engine["kind"] == "compiled":
        how.append(f"{engine['compile_seconds']:.0f} s of it for compiling")
    note = f" ({', '.join(how)})" if how else ""
    return f"Trained in {metrics['seconds']:.0f} s{note}."


def print_repeats(
    console: PlainConsole, found: Sequence[Mapping[str, Any]], spread: Mapping[str, Any]
) -> None:
    """Mean and standard deviation over the repeats."""
    console.say("\n", (f"Mean ± standard deviation of {len(found)}", "bold"))
    console.print(_printed(scores(found, "", without=("brier",))))
    for name, one in spread.get("structure", {}).items():
        console.say(f"{name} {one['mean']:.4f} ± {one['sd']:.4f}")
    if "together" in spread:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in spread["together"].items())
        console.say(f"All {len(found)} together, their predictions averaged: {shown}.")
