"""Calling the experiments behind the tables."""

import json
from contextlib import nullcontext

from pictures import unrendered


def call(spec, *arguments, rendered=True):
    """Unless ``rendered``, figures are made, but are empty files: for those that runs have too."""
    with nullcontext() if rendered else unrendered():
        spec.main([str(a) for a in (*arguments, "--again")])


def read(path):
    return json.loads(path.read_text())
