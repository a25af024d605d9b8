"""What a reader meets, in numbers that neither merging, splitting nor renaming changes.

python tests/support/house.py            # as they are
python tests/support/house.py --write    # into tests/house.json
"""

import ast
import inspect
import json
import sys
import types
from pathlib import Path

from pyroccam import data, guides, inference, models
from torch import nn

ROOT = Path(__file__).parents[2]
HELD = ROOT / "tests" / "house.json"
PACKAGES = ("data", "models", "guides", "inference", "cli", "testing")


def trees(*folders):
    """The syntax trees of all files below some folders."""
    return [ast.parse(p.read_text()) for f in folders for p in sorted((ROOT / f).rglob("*.py"))]


def nodes(tree):
    """Nodes of a tree, without docstrings: neither formatting nor borders of files count."""
    count = 0
    for node in ast.walk(tree):
        count += not isinstance(node, ast.Load | ast.Store | ast.Del)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            count -= 2 * (ast.get_docstring(node, clean=False) is not None)
    return count


def public():
    """What the doors of the library hand to everybody, by its path."""
    found = {}

    def walk(module):
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                found[f"{module.__name__}.{name}"] = value
            elif value.__name__.startswith("pyroccam."):
                walk(value)

    for module in (data, guides, inference, models):
        walk(module)
    return found


def parameters(value):
    """How many parameters a function or a class has."""
    try:
        return len(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return 0


def lines_of(call):
    """Own lines of functions that run in a call, and what it gives."""
    seen = set()

    def look(frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(str(ROOT)):
            return None
        if code.co_name != "<module>":  # which is imported once
            seen.add((code.co_filename, frame.f_lineno))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        given = call()
    finally:
        sys.settrace(before)
    return len(seen), given


def walks():
    """Lines that the usual calls run, on digits."""
    digits = data.load("digits", seed=0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    model = models.BayesianNetwork(net, digits, prior=models.priors.GroupNormalJeffreys())
    guide = guides.MeanField(model)
    how = {"progress": False, "device": "cpu", "compile": False, "weight_decay": 0.0, "epochs": 3}
    fitted, fit = lines_of(lambda: inference.fit(model, guide, digits, **how))
    cut = inference.Thresholds(0.0)
    shrunk, _ = lines_of(lambda: inference.shrink(fit, cut=cut))
    drawn, _ = lines_of(lambda: fit.to_arviz(20))
    return {"fit of 3 epochs": fitted, "shrink": shrunk, "to_arviz": drawn}


def numbers():
    """All of them, by name."""
    wheel, tests = sum(map(nodes, trees(*PACKAGES))), sum(map(nodes, trees("tests")))
    rest = sum(map(nodes, trees("experiments", "benchmarks", "docs")))
    names = public()
    return {
        "nodes of the wheel": wheel,
        "nodes of tests, % of the rest": round(100 * tests / (wheel + rest)),
        "public names": len(names),
        "their parameters": sum(map(parameters, names.values())),
        **{f"own lines that run: {name}": count for name, count in walks().items()},
    }


if __name__ == "__main__":
    walks()  # what is imported or made once
    text = json.dumps(numbers(), indent=2) + "\n"
    HELD.write_text(text) if "--write" in sys.argv else print(text)
