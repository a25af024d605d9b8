"""Doors of rooms, whose names are imported when they are asked for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(door: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that gives what its ``if TYPE_CHECKING:``
    imports, each when it is asked for: nobody waits for torch who asks for an error, and nobody for
    matplotlib who draws nothing.

    Arguments:
        door: name of the package.
    """
    package: Any = sys.modules[door]
    source = package.__spec__.loader.get_source(door)
    places: dict[str, str | None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            places |= {alias.name: node.module for alias in node.names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        place = places[name]
        module = import_module(f".{place or name}", door)
        return module if place is None else getattr(module, name)

    return get, lambda: sorted({*vars(package), *places})
