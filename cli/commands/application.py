"""The application of the command line."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Annotated

import typer

from .. import App, PlainConsole

app = App(
    help="Learn how much network your data needs, and get the smaller network.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
console = PlainConsole()


def _say_versions(asked: bool) -> None:
    """Print versions, and leave."""
    if asked:
        of = {name: version(name) for name in ("pyroccam", "torch", "pyro-ppl")}
        found = [f"{name} {number}" for name, number in of.items()]
        console.say(", ".join([*found, f"Python {platform.python_version()}"]))
        raise typer.Exit


@app.callback()
def pyroccam(
    versions: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_versions, is_eager=True, help="Say the versions, and leave."
        ),
    ] = False,
) -> None:
    """Learn how much network your data needs, and get the smaller network."""


def tested(scores: dict[str, float]) -> str:
    """What was measured on test rows, in words."""
    return "test " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
