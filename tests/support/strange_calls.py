"""Call every public function and class with one argument that is wrong, and see who answers.

    python tests/support/strange_calls.py [--only TEXT] [--out strange.json]

Each argument of a call that is sound is replaced in turn by things that it is not: numbers out of
range, texts, empty lists, functions, tensors. A call may be taken, or refused by this package in
words (``PyroccamError``, an ``OSError`` of a path) or by Python (a missing argument); what ends in
the words of torch, Pyro or NumPy is counted. Each call has a process of its own.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import house
import numpy as np
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from torch import nn

SECONDS = 30
STRANGE = {
    "None": None, "True": True, "-1": -1, "0": 0, "1.5": 1.5, "nan": math.nan, "inf": math.inf,
    "10**20": 10**20, "'x'": "x", "''": "", "[]": [], "['x']": ["x"], "{}": {},
    "{'x': -1}": {"x": -1}, "object": object(), "function": lambda *_: None, "int64": np.int64(2),
    "empty": torch.empty(0), "NaNs": torch.full((3,), math.nan), "a module": nn.Linear(2, 3),
    "a class": nn.Linear,
}  # fmt: skip


def things() -> dict[str, Any]:
    """What sound calls are made of: small, and trained for an epoch."""
    torch.manual_seed(0)
    x = torch.randn(48, 4)
    y = (x[:, 0] > 0).long()
    rows = data.Dataset.from_tensors(x, y, x[:12], y[:12])
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    usual = {"epochs": 1, "batch_size": 16, "progress": False, "compile": False, "device": "cpu"}
    prior = models.priors.GroupNormalJeffreys()
    model = models.BayesianNetwork(net, rows, prior=prior)
    guide = guides.MeanField(model)
    deep = models.LearntDepth.mlp(rows, width=3, max_depth=2)
    of_depth = guides.CategoricalDepth(deep)
    graph = models.StructureGraph({("x", "y"): {"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)}})
    cell = models.StructuredNetwork(graph, rows, structure=models.priors.GumbelSoftmax(1.0))
    of_cell = guides.MeanField(cell)
    normal = models.BayesianNetwork(net, rows, prior=models.priors.Normal())
    return {
        "x_train": x, "y_train": y, "x_test": x[:12], "y_test": y[:12], "rows": rows, "net": net,
        "prior": prior, "model": model, "guide": guide, "deep": deep, "of_depth": of_depth,
        "graph": graph, "usual": usual, "x": x,
        "fit": inference.fit(model, guide, rows, weight_decay=0.0, **usual),
        "depth_fit": inference.fit(deep, of_depth, rows, **usual),
        "cell_fit": inference.fit(cell, of_cell, rows, **usual),
        "normal_fit": inference.fit(normal, guides.MeanField(normal), rows, **usual),
    }  # fmt: skip


def public() -> dict[str, Any]:
    """All callables that the packages and their rooms hand on, but errors."""
    return {
        name.removeprefix("pyroccam."): value
        for name, value in house.public().items()
        if callable(value) and not (isinstance(value, type) and issubclass(value, BaseException))
    }


def sound(name: str, call: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments of a call that is taken, or None where this script knows none.

    Required arguments are known by their names; of several fits, the first that is taken counts.
    """
    own = {
        "data": known["rows"], "data_root": None, "net": known["net"], "layer": nn.Linear(4, 5),
        "stem": nn.Linear(4, 3), "blocks": [nn.Linear(3, 3)], "head": nn.Linear(3, 2), "targets": 1,
        "classes": 2, "labels": 2, "scale": 1.0, "start": 1.0, "end": 0.1, "example": known["x"],
        "structure": models.priors.GumbelSoftmax(1.0), "edges": {("x", "y"): [nn.Linear(2, 2)]},
        "fits": {"a": known["fit"], "b": known["normal_fit"]}, "values": [1.0, 2.0, 3.0],
        "text": "normal", "stack": known["deep"].stack, "outputs": torch.randn(12, 2),
        "y": known["y_test"], "probs": torch.tensor([0.5, 0.5]), "p": torch.tensor([0.5, 0.5]),
        "name": "spirals", "folder": tempfile.mkdtemp(), "likelihood": models.Classification(2),
    }  # fmt: skip
    own = known | own
    found, pairs = {}, [{}]
    for one in inspect.signature(call).parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or one.default is not one.empty:
            continue
        if one.name not in own:
            return None
        found[one.name] = own[one.name]
    if "fit" in found:
        pairs = [{"fit": known[f]} for f in ("fit", "depth_fit", "cell_fit", "normal_fit")]
    elif {"model", "guide"} <= found.keys():
        pairs = [{}, {"model": known["deep"], "guide": known["of_depth"]}]
    elif "model" in found:
        pairs = [{}, {"model": known["deep"]}]
    for pair in pairs:
        if answer(call, found | pair) == "taken":
            return found | pair
    return None


def answer(call: Callable[..., Any], given: dict[str, Any]) -> str:
    """How one call ends, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        signal.alarm(SECONDS)
        warnings.simplefilter("ignore")
        try:
            call(**given)
            said = "taken"
        except (PyroccamError, OSError) as error:
            said = f"refused: {error}"
        except BaseException as error:
            said = f"{type(error).__name__}: {str(error)[:200]}"
        os.write(writing, said.encode()[:2000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return said or "died, or took longer than it may"


def main() -> None:
    """Try all, and print what was not answered by this package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the names to try")
    parser.add_argument("--out", type=Path, help="a JSON file of all that was wrong")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known, counts, wrong, untried = things(), Counter[str](), [], []
    for name, call in sorted(public().items()):
        if asked.only not in name:
            continue
        try:
            given = sound(name, call, known)
        except ValueError:  # a class that shows no signature
            given = None
        if given is None:
            untried.append(name)
            continue
        for argument, one in inspect.signature(call).parameters.items():
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                continue
            for word, value in STRANGE.items():
                said = answer(call, given | {argument: value})
                word_of = said.split(":")[0]
                counts[word_of if word_of in ("taken", "refused") else "wrong"] += 1
                if word_of not in ("taken", "refused"):
                    wrong.append(f"{name}({argument}={word}): {said}")
                    print(wrong[-1], flush=True)
    total = sum(counts.values())
    print(f"{total} inputs: {dict(counts)}; not tried: {', '.join(untried)}")
    if asked.out:
        asked.out.write_text(json.dumps({"inputs": total, **counts, "wrong": wrong}, indent=1))


if __name__ == "__main__":
    main()
