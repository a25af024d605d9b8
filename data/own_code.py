"""A function of a person's own, by the name that a command is given."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def split_name(name: str) -> tuple[str, str]:
    """Module and function of `package.module:function`, or file and function of
    `path/file.py:function`; two empty texts for what is neither."""
    module, _, function = name.rpartition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    if function.isidentifier() and (dotted or module.endswith(".py")):
        return module, function
    return "", ""


def is_code(name: str) -> bool:
    """True for the name of a function, which code of somebody's own is: to call it is to run
    that."""
    return bool(split_name(name)[1])


def absolute_name(name: str) -> str:
    """The same name, with a file where it is seen from everywhere."""
    module, function = split_name(name)
    if not module.endswith(".py"):
        return name
    return f"{Path(module).expanduser().resolve()}:{function}"


def attribute(module: str, function: str) -> Any:
    """What a module, or a file that ends in .py, has of this name; None for nothing.

    A module is looked for in the present folder, too. A file is read once, with its folder among
    those of modules. What code of a person's own raises is passed on.
    """
    if not module.endswith(".py"):
        with looked_for_beside(module):
            return getattr(importlib.import_module(module), function, None)
    path = Path(module).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # Files of one name in several folders are several modules.
    name = f"{path.stem}_{hashlib.blake2b(bytes(path), digest_size=4).hexdigest()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"{path} is no module")
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        try:
            with looked_for_beside(module):
                spec.loader.exec_module(made)
        except BaseException:
            del sys.modules[name]
            raise
        _files.append(str(path))
    return getattr(sys.modules[name], function, None)


_files: list[str] = []
"""Those that are imported in this process."""


class OwnFiles:
    """The files that are imported. A process to which it is sent imports them, too, before it looks
    at what comes behind: of their classes, which no name of a module leads to."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _imported, ([*_files],)


def _imported(files: list[str]) -> OwnFiles:
    for file in files:
        attribute(file, "")
    return OwnFiles()


@contextmanager
def looked_for_beside(module: str) -> Iterator[None]:
    """Within it, modules are looked for in the folder of a file, or in the present one."""
    folder = str(Path(module).expanduser().resolve().parent) if module.endswith(".py") else ""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
