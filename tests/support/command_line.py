"""The command line, called."""

from contextlib import nullcontext

from pictures import unrendered
from pyroccam.experiments.cli import app
from typer.testing import CliRunner


def call(*arguments, code=0, rendered=False):
    """What it says, in one line. Figures are made, but are empty files unless ``rendered``."""
    with nullcontext() if rendered else unrendered():
        result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())
