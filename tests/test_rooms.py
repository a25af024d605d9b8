"""The house: rooms without circles, each with one sentence, and one place that asks for types."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data", "models", "guides", "inference", "cli")


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


def imported(name, tree, known):
    """Modules that one module imports relatively, whole or in part, while it runs."""
    package = name.split(".") if is_package(name) else name.split(".")[:-1]
    for node in run_time(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if whole in known else base


def room(name):
    """The part of a package that a module is in: a folder, or the module itself."""
    return ".".join(name.split(".")[:2])


def arrows(package):
    """``{room: rooms that it imports}`` inside one package."""
    found = modules(package)
    out = {}
    for name, tree in found.items():
        if name == package:
            continue
        near = {room(t) for t in imported(name, tree, found) if t.startswith(f"{package}.")}
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
    assert circle(arrows(package)) == []


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
    for name in [n for n in modules(package) if is_package(n)]:
        found = importlib.import_module(f"pyroccam.{name}")
        for own in getattr(found, "__all__", ()):
            path = ROOT / Path(*name.split(".")) / f"{own}.py"
            module = type(getattr(found, own)).__name__ == "module"
            assert module or not path.exists(), f"{path} hides {own}, or is hidden by it"


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
