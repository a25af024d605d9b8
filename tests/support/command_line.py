"""The command line, called."""

import json
import warnings
from contextlib import nullcontext

from pictures import unrendered
from pyroccam.cli.commands import app
from typer.testing import CliRunner

# Of a run over random weights that takes a second or so; with WHOLE it cuts at the end only.
SMALL = ["--data", "digits", "--epochs", "6", "--set", "hidden=[12]", "--set", "lr=0.01"]
WHOLE = ["--set", "narrow=[]"]


def call(*arguments, code=0, rendered=False):
    """What it says, in one line. Figures are made, but are empty files unless ``rendered``."""
    with nullcontext() if rendered else unrendered(), warnings.catch_warnings():
        # Of networks that have hardly been trained.
        warnings.filterwarnings("ignore", "The cut by")
        result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def metrics_of(folder):
    """What a run measured."""
    return json.loads((folder / "metrics.json").read_text())
