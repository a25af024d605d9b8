"""Calling the scripts behind the tables."""

import json
from contextlib import nullcontext

from pictures import unrendered
from typer import Typer
from typer.testing import CliRunner


def call(script, *arguments, rendered=True):
    """Unless ``rendered``, figures are made, but are empty files: for those that runs have too."""
    app = Typer()
    app.command()(script.main)
    with nullcontext() if rendered else unrendered():
        result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)


def read(path):
    return json.loads(path.read_text())
