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


def sets(words):
    """Settings, which blanks part, as arguments."""
    return [part for one in words.split() for part in ("--set", one)]


def without_times(found):
    """Of numbers of a run those that a clock has no part in."""
    if isinstance(found, dict):
        return {k: without_times(v) for k, v in found.items() if "seconds" not in k}
    return [without_times(v) for v in found] if isinstance(found, list) else found


def call(*arguments, code=0, made=False, rendered=False):
    """What it says, in one line. Figures are squares, unless they are ``made`` or ``rendered``."""
    with nullcontext() if rendered else unrendered(made), warnings.catch_warnings():
        # Of networks that have hardly been trained.
        warnings.filterwarnings("ignore", "The cut by")
        result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def metrics_of(folder):
    """What a run measured."""
    return json.loads((folder / "metrics.json").read_text())
