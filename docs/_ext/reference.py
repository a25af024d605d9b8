"""The pages of the API, made of ``__all__``: what a package offers is what they hold."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from . import pages

__all__ = ["ROOMS", "children", "given_back", "modules", "names", "page", "write"]

ROOMS = ("models", "guides", "inference", "data", "testing")
"""The packages that a person imports, in the order in which a fit needs them."""

_HEADINGS = {
    "autoclass": "Classes",
    "autofunction": "Functions",
    "autoexception": "Errors and warnings",
    "autodata": "Names",
}


def modules() -> Iterator[ModuleType]:
    """The packages, and after each one what is below it."""
    for room in ROOMS:
        yield from _from(importlib.import_module(f"pyroccam.{room}"))


def _from(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for child in children(module):
        yield from _from(child)


def children(module: ModuleType) -> list[ModuleType]:
    """The modules in its ``__all__``, and those of its packages that offer something."""
    found = [getattr(module, name) for name in module.__all__]
    found = [child for child in found if inspect.ismodule(child)]
    for folder in getattr(module, "__path__", ()):
        packages = (marker.parent.name for marker in Path(folder).glob("*/__init__.py"))
        found += [importlib.import_module(f"{module.__name__}.{name}") for name in packages]
    offering = {child.__name__: child for child in found if hasattr(child, "__all__")}
    return [offering[name] for name in sorted(offering)]


def names(module: ModuleType) -> list[str]:
    """Names that a module offers, less other modules, which have pages of their own."""
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]


@cache
def given_back() -> dict[str, list[type]]:
    """Classes that calls, properties and fields of what the doors name give back, and that no door
    names, by the module on whose page they stand."""
    rooms = [*modules()]
    queue = [getattr(module, name) for module in rooms for name in names(module)]
    found: dict[str, list[type]] = {}
    known = {id(value) for value in queue}
    for value in queue:
        for cls in _returned(value):
            own = cls.__module__.startswith("pyroccam.") and not cls.__name__.startswith("_")
            if own and id(cls) not in known:
                known.add(id(cls))
                queue.append(cls)
                above = [m.__name__ for m in rooms if cls.__module__.startswith(f"{m.__name__}.")]
                found.setdefault(max(above, key=len), []).append(cls)
    return {room: sorted(classes, key=lambda cls: cls.__name__) for room, classes in found.items()}


def _returned(value: Any) -> Iterator[type]:
    """Classes in the annotations of what a function returns, or public members of a class do."""
    if inspect.isfunction(value):
        yield from _named(value.__annotations__.get("return"), value.__module__)
    elif isinstance(value, type):
        for base in [b for b in value.__mro__ if b.__module__.startswith("pyroccam.")]:
            members = {n: m for n, m in vars(base).items() if not n.startswith("_")}
            for member in members.values():
                member = getattr(member, "fget", None) or getattr(member, "func", member)
                yield from _returned(inspect.unwrap(getattr(member, "__func__", member)))
            for name, annotation in vars(base).get("__annotations__", {}).items():
                if not name.startswith("_"):
                    yield from _named(annotation, base.__module__)
            for path in re.findall(r":class:`~(pyroccam\.[\w.]+)`", base.__doc__ or ""):
                module, _, name = path.rpartition(".")
                yield getattr(importlib.import_module(module), name)
            for parent in vars(base).get("__orig_bases__", ()):
                yield from filter(inspect.isclass, get_args(parent))


def _named(annotation: Any, module: str) -> Iterator[type]:
    """Classes of this package that an annotation names, if only for type checkers."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", "")
    nodes = [*ast.walk(ast.parse(text or "None", mode="eval"))]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]  # ranges of a type
    for node in nodes:
        if isinstance(node, ast.Name) and node not in called:
            value = _imported(module).get(node.id)
            if isinstance(value, type):
                yield value


@cache
def _imported(module: str) -> dict[str, Any]:
    """Names of a module, with those that it imports for type checkers alone."""
    found = importlib.import_module(module)
    values = dict(vars(found))
    for node in ast.walk(ast.parse(inspect.getsource(found))):
        if isinstance(node, ast.ImportFrom) and node.level:
            source = importlib.util.resolve_name(
                "." * node.level + (node.module or ""), found.__package__
            )
            for alias in node.names:
                value = getattr(importlib.import_module(source), alias.name, None)
                values.setdefault(alias.asname or alias.name, value)
    return values


def _directive(value: object) -> str:
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def page(module: ModuleType) -> str:
    """A page in reStructuredText: a docstring, a table of what a module offers, and all of that."""
    title = module.__name__.removeprefix("pyroccam.")
    lines = [title, "=" * len(title), ""]
    lines += [f".. automodule:: {module.__name__}", "   :no-members:", ""]
    if below := children(module):
        lines += [".. toctree::", "   :maxdepth: 1", "", *(f"   {m.__name__}" for m in below), ""]
    offered: dict[str, list[str]] = {directive: [] for directive in _HEADINGS}
    for name in names(module):
        offered[_directive(getattr(module, name))].append(name)
    lines += [".. autosummary::", "   :nosignatures:", ""]
    lines += [f"   {name}" for found in offered.values() for name in found] + [""]
    sections = [(_HEADINGS[directive], directive, found) for directive, found in offered.items()]
    back = [f"{c.__module__}.{c.__name__}" for c in given_back().get(module.__name__, ())]
    for heading, directive, found in [*sections, ("What calls give back", "autoclass", back)]:
        if found:
            lines += [heading, "-" * len(heading), ""]
        for name in found:
            lines += [f".. {directive}:: {name}", ""]
            if directive in ("autoclass", "autoexception"):
                lines[-1:] = ["   :members:", "   :show-inheritance:", ""]
    return "\n".join(lines)


def write(folder: Path) -> None:
    """All pages of the API into ``folder``, and none of a module that is gone."""
    made = {folder / f"{module.__name__}.rst": page(module) for module in modules()}
    for old in set(folder.glob("*.rst")) - set(made):
        old.unlink()
    for path, text in made.items():
        pages.write(path, text)
