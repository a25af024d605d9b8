"""The command line, called."""

from pyroccam.experiments.cli import app
from typer.testing import CliRunner


def call(*arguments, code=0):
    """What it says, in one line."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())
