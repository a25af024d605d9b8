"""The pages of the API, made of ``__all__``: what a package offers is what they hold."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from . import pages

__all__ = ["ROOMS", "children", "modules", "names", "page", "write"]

ROOMS = ("models", "guides", "inference", "data")
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
    for directive, found in offered.items():
        if found:
            lines += [_HEADINGS[directive], "-" * len(_HEADINGS[directive]), ""]
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
