"""Calling the scripts behind the tables."""

import json

from typer import Typer
from typer.testing import CliRunner


def call(script, *arguments):
    app = Typer()
    app.command()(script.main)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)


def read(path):
    return json.loads(path.read_text())
