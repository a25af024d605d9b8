"""`load`: every data set by its name, a person's own by its path."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .dataset import Dataset
from .errors import DataError, listed
from .own_code import absolute_name, attribute, is_code, looked_for_beside, split_name
from .ranges import Seed, checked
from .roots import refuse_no_file
from .sets import UCI_ALIASES, load_digits, load_images, load_spirals, load_uci, load_wiggle
from .streaming import FORMS, is_streamable, load_stream
from .tables import load_csv, load_npz
from .tasks import Task

Loader = Callable[..., Dataset]


class Entry(NamedTuple):
    """One line of the list of data sets."""

    name: str
    task: Task
    origin: str
    description: str


def _rows() -> dict[str, tuple[Entry, Loader]]:
    """All data sets that have a name: adding one is adding a line here."""
    spirals = Entry("spirals", "classification", "made", "two spirals in the plane")
    wiggle = Entry("wiggle", "regression", "made", "a wavy line seen through noise")
    digits = Entry("digits", "classification", "scikit-learn", "8 x 8 grey digits")
    rows: list[tuple[Entry, Loader]] = [
        (spirals, load_spirals),
        (wiggle, load_wiggle),
        (digits, load_digits),
    ]
    for name, kind, what in (
        ("mnist", "MNIST", "28 x 28 grey digits"),
        ("fashion-mnist", "FashionMNIST", "28 x 28 grey clothes"),
        ("kmnist", "KMNIST", "28 x 28 grey cursive Japanese"),
        ("svhn", "SVHN", "32 x 32 colour house numbers"),
        ("cifar10", "CIFAR10", "32 x 32 colour photographs, 10 classes"),
        ("cifar100", "CIFAR100", "32 x 32 colour photographs, 100 classes"),
    ):
        entry = Entry(name, "classification", "data_root, or download", what)
        rows.append((entry, functools.partial(load_images, kind, name)))
    for short, folder in UCI_ALIASES.items():
        entry = Entry(f"uci/{short}", "regression", "data_root", f"UCI table {folder}")
        rows.append((entry, functools.partial(load_uci, short)))
    return {entry.name: (entry, loader) for entry, loader in rows}


_ROWS = _rows()
_FILES: dict[str, Loader] = {".npz": load_npz, ".csv": load_csv}

_HOW = ("download", "workers")
"""Options that say how rows are come by, and not which."""


def available() -> list[Entry]:
    """The data sets that have a name: (name, task, where it comes from, description)."""
    return [entry for entry, _ in _ROWS.values()]


@checked
def load(
    name: str | os.PathLike[str],
    *,
    seed: Seed = 0,
    download: bool = True,
    class_weights: Any = None,
    **options: Any,
) -> Dataset:
    """Loads a data set, checked, split and standardised.

    Arguments:
        name: A name out of :func:`available`, `uci/<folder>`, or a person's own: the path of a
            `.npz` or `.csv` file, which is held in memory; a folder of `.npy` files or of images,
            or Parquet files, which are streamed
            (:func:`~pyroccam.data.streaming.named.load_stream`); or `package.module:function` or
            `path/file.py:function`, which gives a :class:`Dataset`, that of
            :func:`~pyroccam.data.stream` among them, for the options that it is given by name, and
            for `seed=` if it takes one.
        seed: Everything random: generated points, splits, subsets.
        download: Whether files that are missing may be fetched from the net; it is no part of
            `source`. Without it a missing file is an error that says where it belongs.
        class_weights: How much the rows of each class count: "balanced", or a number for each; see
            :meth:`Dataset.with_class_weights`.
        options: What the data set takes, `val_fraction=` for one. `data_root=` may be given
            to any of them, and is dropped by those that need no files from it (toys,
            digits, own files), so that a program can pass it on without asking.

    Returns:
        The data set; `load(**dataset.source)` gives the same one again.

    Raises:
        DataError: if there is no such name, file or option, or the data cannot be used.
        TooLarge: if a file, or a number of points, asks for more memory than may be taken.

    Example:
        >>> load("spirals", seed=0)
        Dataset('spirals', classification: 2 classes, 2 inputs, rows: 180 train, 20 val, 1800 test)
    """
    key, loader = find(name)
    parameters = inspect.signature(loader).parameters
    usual = _options(parameters)
    if "data_root" not in usual:
        options.pop("data_root", None)
    unknown = [option for option in options if option not in parameters]
    if unknown:
        raise DataError(f"{key} has no option {listed(unknown)}", ", ".join(usual) or "none")
    if lacking := [o for o, v in usual.items() if v is _MUST and o not in ("seed", *options)]:
        raise DataError(f"{key} is not told {listed(lacking)}", f"{lacking[0]}=")
    asked = {**options, "download": download} if "download" in parameters else options
    for option in ("test", "tokenizer"):
        if isinstance(file := options.get(option), str | os.PathLike) and not is_code(key):
            options[option] = absolute(os.fspath(file))
    try:
        dataset = loader(**({"seed": seed} if "seed" in parameters else {}), **asked)
        if class_weights is not None:
            dataset = dataset.with_class_weights(class_weights)
    except DataError as error:
        if key in error.found:
            raise
        raise DataError(f"{key}: {error.found}", error.expected, error.hint) from error
    except OSError as error:  # while files are looked for: a folder that may not be entered
        raise DataError(f"{key}: {error}") from error

    source: dict[str, Any] = {"name": key}
    for option in usual:
        # Defaults are written down, too: they may change in a later version
        value = {"seed": seed, **options}.get(option, usual[option])
        value = value.item() if isinstance(value, np.generic) else value
        value = [*value] if isinstance(value, tuple) else value  # as which it is read back
        if option in options or _is_plain(value):
            source[option] = value
    if class_weights is not None:
        source["class_weights"] = class_weights
    root = source.pop("data_root", None)
    if root is not None:
        source["data_root"] = str(Path(root).expanduser().resolve())
    return dataset.but(source=source)


def find(name: str | os.PathLike[str]) -> tuple[str, Loader]:
    """The name to write down, and the function that loads it."""
    name = os.fspath(name)
    suffix = Path(name).suffix.lower()
    if suffix in _FILES:
        path = _there(name)
        if path is None:
            raise DataError(f"no file {name}")
        refuse_no_file(path)
        return str(path), functools.partial(_FILES[suffix], path)
    if is_code(name):
        return absolute_name(name), _own(name)
    if name.lower() in _ROWS:
        return name.lower(), _ROWS[name.lower()][1]
    if name.startswith("uci/") and len(Path(name).parts) == 2:
        return name, functools.partial(load_uci, Path(name).parts[1])
    if (there := _there(name)) is not None:
        if not is_streamable(there):
            raise DataError(f"{there} is a {'folder' if there.is_dir() else 'file'}", _OWN)
        return str(there), functools.partial(load_stream, there)
    near = difflib.get_close_matches(name.lower(), _ROWS, n=3)
    near += [known for known in _ROWS if known.endswith(f"/{name.lower()}")]
    raise DataError(
        f"no data set is called {name!r}", f"one of {', '.join(_ROWS)}, or {_OWN}", listed(near)
    )


_OWN = f"the path of a .npz or .csv file; {FORMS}; or module:function"

_MUST = inspect.Parameter.empty


@checked
def options_of(name: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of the options that :func:`load` takes for a data set. Code of a person's own is
    imported for that."""
    return tuple(_options(inspect.signature(find(name)[1]).parameters))


def is_own(name: str) -> bool:
    """True for what is a person's own: a file or a folder that is there, or a function."""
    known = name.lower() in _ROWS or (name.startswith("uci/") and len(Path(name).parts) == 2)
    return is_code(name) or (not known and _there(name) is not None)


def absolute(name: str) -> str:
    """The same name, with a person's own file or folder where it is seen from every folder."""
    if is_code(name):
        return absolute_name(name)
    path = _there(name) if is_own(name) else None
    return name if path is None else str(path)


def _options(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """What a loader takes by name that says which rows, with the usual value."""
    return {
        name: p.default
        for name, p in parameters.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY and name not in _HOW
    }


def _is_plain(value: Any) -> bool:
    """True for what JSON holds."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _own(name: str) -> Loader:
    """A function of a person's own, which takes its arguments by name."""
    module, function = split_name(name)
    try:
        found = attribute(module, function)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        expected = "a module that is installed or in this folder, or the path of a .py file"
        raise DataError(f"{name}: {module} cannot be imported ({error})", expected) from error
    if not callable(found):
        raise DataError(f"{name}: {module} has no function {function!r}", "the name of one")
    try:
        signature = inspect.signature(found)
    except ValueError as error:
        raise DataError(f"{name} does not say what it takes", "a function of Python's") from error
    kinds = inspect.Parameter
    taken = [p for p in signature.parameters.values() if p.kind not in (kinds.VAR_POSITIONAL,
             kinds.VAR_KEYWORD)]  # fmt: skip
    if odd := [p.name for p in taken if p.kind is kinds.POSITIONAL_ONLY]:
        raise DataError(f"{name} takes {listed(odd)} by place", "arguments by name")

    def load_own(**options: Any) -> Dataset:
        with looked_for_beside(module):  # which it may import only now
            made = found(**options)
        if not isinstance(made, Dataset):
            expected = "what data.stream, data.load or data.Dataset.from_tensors gives"
            raise DataError(f"{name} gives a {type(made).__name__}", expected)
        return made

    by_name = [p.replace(kind=kinds.KEYWORD_ONLY, annotation=kinds.empty) for p in taken]
    load_own.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    return load_own


def _there(name: str) -> Path | None:
    """The whole path of what is there by a name."""
    try:
        path = Path(name).expanduser().resolve()
        return path if path.exists() else None
    except (ValueError, RuntimeError, OSError):  # zero bytes, no such user, a circle
        return None
