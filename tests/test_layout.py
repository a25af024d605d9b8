"""Imports run one way: data, models <- guides <- inference <- cli."""

import ast
import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("data", "models", "guides", "inference", "cli", "testing")
MAY_IMPORT = {
    "data": set(),
    "models": set(),
    "guides": {"models"},
    "inference": {"models", "guides"},
    "testing": {"data", "models", "guides", "inference"},
}
BELOW_ALL = {"cards", "door", "errors", "limits", "ranges"}  # of data: for all rooms


def handed_on_from(modules):
    """The names that the door of data hands on from some of its modules."""
    for node in ast.walk(ast.parse((ROOT / "data" / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            yield from (alias.name for alias in node.names)


def imports(path, package):
    """``(room, line, only for type checking)`` of every import of a room in one file."""
    tree, below_all = ast.parse(path.read_text()), {*handed_on_from(BELOW_ALL)}
    for_types = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for_types |= {id(inner) for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = list(package[: len(package) - node.level + 1]) if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[1:2] == ["data"] and {*parts[2:3]} & below_all:
                continue
            if parts[0] == "pyroccam" and len(parts) > 1 and parts[1] in ROOMS:
                yield parts[1], node.lineno, id(node) in for_types


def files(room):
    for path in sorted((ROOT / room).rglob("*.py")):
        yield path, ("pyroccam", *path.relative_to(ROOT).parent.parts)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_run_one_way(room):
    found = 0
    for path, package in files(room):
        for target, line, for_types in imports(path, package):
            found += 1
            allowed = MAY_IMPORT[room] | {room}
            if room == "inference" and for_types:
                allowed |= {"data"}
            assert target in allowed, f"{path.relative_to(ROOT)}:{line} imports {target}"
    assert found


def test_the_reader_of_imports_sees_every_form(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nimport pyroccam.data.sets.toys\nfrom .. import guides\n"
        "from ..guides.depth import x\nfrom pyroccam import cli\nfrom . import b\n"
        "def f():\n    from ..inference import fit\nif TYPE_CHECKING:\n    from ..data import D\n"
        "import torch\nfrom ..data import PyroccamError\n"
    )
    seen = list(imports(path, ("pyroccam", "models")))
    assert sorted(seen) == [
        ("cli", 5, False),
        ("data", 2, False),
        ("data", 10, True),
        ("guides", 3, False),
        ("guides", 4, False),
        ("inference", 8, False),
        ("models", 6, False),
    ]


def test_the_wheel_holds_no_experiments_and_no_benchmarks():
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    packages = listed["options"]["packages"].split()
    assert {name.split(".")[1] for name in packages} == set(ROOMS)


def test_no_python_file_and_no_package_at_the_root():
    assert not list(ROOT.glob("*.py"))
    assert not (ROOT / "__init__.py").exists()
