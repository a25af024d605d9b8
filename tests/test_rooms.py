"""The house: rooms without circles, each with one sentence, and one place that asks for types."""

import ast
import functools
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data", "models", "guides", "inference", "cli", "testing")


@functools.cache
def modules(package):
    """``{name: tree}`` of every module of a package."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def is_package(name):
    return (ROOT / Path(*name.split("."))).is_dir()


def run_time(node):
    """The nodes of a tree but for what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from run_time(child)


def imports(name, nodes):
    """``(module, name)`` of all that one module imports relatively."""
    package = name.split(".") if is_package(name) else name.split(".")[:-1]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            for alias in node.names:
                yield ".".join([*above, *([node.module] if node.module else [])]), alias.name


def through(doors, module, name):
    """The module that a name is of, through doors that hand it on."""
    while (module, name) in doors and module != doors[module, name]:
        module = doors[module, name]
    return module


def doors_of(found):
    """``{(room, name): module}`` of all that doors hand on."""
    return {
        (room, name): f"{module}.{name}" if f"{module}.{name}" in found else module
        for room in filter(is_package, found)
        for module, name in imports(room, ast.walk(found[room]))
        if name != "lazy_names"
    }


def room(name):
    """The part of a package that a module is in: a folder, or the module itself."""
    return ".".join(name.split(".")[:2])


def arrows(package):
    """``{room: rooms that it imports}`` inside one package, for type checkers, too; but modules
    that are in no folder may name each other for them."""
    found = modules(package)
    doors, out = doors_of(found), {}
    for name, tree in found.items():
        if not is_package(name):
            used = {through(doors, *one) for one in imports(name, ast.walk(tree))}
            used = {one for one in used if one.startswith(f"{package}.")}
            runs = {through(doors, *one) for one in imports(name, run_time(tree))}
            free = set() if is_package(room(name)) else {t for t in used if not is_package(room(t))}
            near = {room(one) for one in used - (free - runs)}
            out.setdefault(room(name), set()).update(near - {room(name)})
    return out


def circle(graph):
    """Rooms that import each other in the end, sorted; none where every import leads down."""
    left = {name: set(targets) for name, targets in graph.items()}
    while free := [name for name, targets in left.items() if not targets & {*left}]:
        for name in free:
            del left[name]
    return sorted(left)


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_import_each_other_one_way(package):
    found = arrows(package)
    assert len(found) >= 3
    assert circle(found) == []


def test_rooms_are_entered_by_their_doors():
    """Who is in another folder imports from its door, which hands on what is asked for alone."""
    found = {name: tree for package in PACKAGES for name, tree in modules(package).items()}
    asked = set()
    for name, tree in found.items():
        own = name if is_package(name) else name.rpartition(".")[0]
        for module, what in imports(name, ast.walk(tree)):
            inside = f"{module}.{what}" if f"{module}.{what}" in found else module
            assert is_package(inside) or inside.rpartition(".")[0] == own, f"{name}: {inside}"
            asked.add((module, what)) if module != name else None
    for (door, name), module in doors_of(found).items():
        public = getattr(importlib.import_module(f"pyroccam.{door}"), "__all__", ())
        kept = name in public or (door, name) in asked or door == "cli.commands"
        assert kept, f"nobody asks {door} for {name} of {module}"


def test_circles_are_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_say_what_they_are_for(package):
    for folder in [ROOT / package, *(p.parent for p in (ROOT / package).rglob("__init__.py"))]:
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert 3 < len(said.split("\n\n")[0].split()) < 30, folder


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_what_its_package_hands_on(package):
    found = modules(package)
    for (door, name), module in doors_of(found).items():
        path = ROOT / Path(*door.split(".")) / f"{name}.py"
        assert module == f"{door}.{name}" or not path.exists(), f"{path} hides {name}"


def own_classes():
    """Models, guides, priors and Bayesian layers, by name; not the plain networks inside of them,
    which whoever cuts or describes a network has to tell apart."""
    found = set()
    for name, tree in (modules("models") | modules("guides")).items():
        plain = ("models.plain", "models.unpacked", "models.networks", "models.distributions")
        if not name.startswith(plain):
            found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return found


def questions(tree, classes):
    """Lines that ask by ``isinstance`` for one of the classes, not for another of its name."""
    others = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
        for alias in node.names
    }
    classes = classes - others
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            parts = [*ast.walk(node.args[1])]
            names = {n.id for n in parts if isinstance(n, ast.Name)}
            of = [n for n in parts if isinstance(n, ast.Attribute)]
            names |= {n.attr for n in of if ast.unparse(n.value) in ("guides", "models", "priors")}
            if names & classes:
                yield node.lineno


def test_one_place_asks_what_a_model_or_a_guide_is():
    classes = own_classes()
    assert {"BayesianNetwork", "CategoricalDepth", "Latent", "NormalFactor"} <= classes
    found = {}
    for package in ("inference", "cli"):
        for name, tree in modules(package).items():
            if lines := [*questions(tree, classes)]:
                found[name] = lines
    elsewhere = found.keys() - {"inference.posterior.posteriors"}
    assert sum(map(len, found.values())) < 15, found
    assert not elsewhere, elsewhere
