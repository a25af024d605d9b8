"""Rows as a person hands them to Python: arrays, and folders of files that are streamed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyroccam import data

from .mutations import mutated_bytes, replace_by_no_file
from .specimens import Specimens
from .verdicts import Case

__all__ = ["arrays", "stream", "streamed", "wild"]

Array = Callable[[np.ndarray], Any]

_ARRAYS: dict[str, Array] = {
    "masked": lambda a: np.ma.array(a, mask=np.eye(*a.shape) > 0 if a.ndim == 2 else a > a.mean()),
    "masked nowhere": np.ma.array,
    "complex": lambda a: a + 0j,
    "complex indeed": lambda a: a + 1j,
    "half": lambda a: a.astype(np.float16),
    "double": lambda a: a.astype(np.float64),
    "long double": lambda a: a.astype(np.longdouble),
    "whole": lambda a: (10 * a).astype(np.int64),
    "bytes": lambda a: (10 * a).astype(np.uint8),
    "truth": lambda a: a > 0,
    "objects": lambda a: a.astype(object),
    "objects and none": lambda a: np.where(a > 0, a.astype(object), np.array(None)),
    "text": lambda a: a.astype(str),
    "dates": lambda a: a.astype("datetime64[s]"),
    "big endian": lambda a: a.astype(">f4"),
    "NaN": lambda a: np.where(a > 0, a, np.nan),
    "infinite": lambda a: np.where(a > 0, a, np.inf),
    "huge": lambda a: a.astype(float) * 1e300,
    "one": lambda a: a[:1],
    "empty": lambda a: a[:0],
    "no columns": lambda a: a[..., :0],
    "fewer": lambda a: a[:-3],
    "scalar": lambda a: a.flat[0],
    "flat": np.ravel,
    "deep": lambda a: a[..., None, None, None, None],
    "backwards": lambda a: a[::-1, ...],
    "list": np.ndarray.tolist,
    "ragged": lambda a: [a[0].tolist(), [1.0], *a[2:].tolist()],
    "tensor": lambda a: torch.tensor(a, requires_grad=a.dtype.kind == "f"),
    "complex tensor": lambda a: torch.tensor(a).to(torch.complex64),
    "bfloat16": lambda a: torch.tensor(a).bfloat16(),
    "sparse": lambda a: torch.tensor(a).to_sparse(),
    "meta": lambda a: torch.tensor(a).to("meta"),
    "none": lambda a: None,
    "set": lambda a: {1, 2},
    "dict": lambda a: {"a": a},
    "generator": lambda a: (row for row in a),
}  # fmt: skip


def arrays(rng: random.Random, made: Specimens, work: Path) -> Case:
    """Arrays of another kind, for a set in memory or a stream of items."""
    found = dict(np.load(made.tables[1]))
    names = rng.sample(sorted(found), rng.choice([1, 1, 2]))
    said = [(name, rng.choice(sorted(_ARRAYS))) for name in names]
    task: Any = rng.choice([None, "classification", "regression", "counts"])
    for name, kind in said:
        found[name] = _ARRAYS[kind](found[name])
    x, y, x_test, y_test = (found[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    run: Callable[[], Any] = partial(
        data.Dataset.from_tensors, x, y, x_test, y_test, task=task,
        ids=rng.random() < 0.1, weights=y if rng.random() < 0.1 else None,
    )  # fmt: skip
    if rng.random() < 0.3 and isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        items = list(zip(x, y, strict=False)) if x.ndim and y.ndim else [(x, y)] * 9
        run = partial(data.stream, items, test=(x_test, y_test), task=task, workers=0)
    must = "refuse" if any("complex" in kind for _, kind in said) else "any"
    return Case("arrays", f"{said}, {task}", run, must)


def wild(rng: random.Random, made: Specimens, work: Path) -> Case:
    """One cell of a table is far off, which may be said, but is a number."""
    path = Path(shutil.copy(made.tables[0], work))
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row, column = rng.randrange(1, len(rows)), rng.randrange(3)
    rows[row][column] = rng.choice(["9999", "-9999", "999999", "1e9", "-1e12"])
    path.write_text("\n".join(map(",".join, rows)))
    said = f"row {row}, column {column}: {rows[row][column]}"
    return Case("wild", said, lambda: data.load(path, target="label"), "pass")


def streamed(folder: Path) -> data.Dataset:
    """The set of a folder, by its name."""
    options: dict[str, Any] = {"target": "label"} if folder.name == "parquet" else {}
    return data.load(folder, **options, workers=0)


_HEADERS = [
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (60, 3), }", b"{", b"(", b"[" * 999,
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-60, 3), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (60, -3), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (10**99, 3), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': 60, }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (60, 3), }",
    b"{'descr': '|V0', 'fortran_order': False, 'shape': (60, 3), }",
    b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (60, 3), }",
    b"{'descr': '<f4', 'fortran_order': 3, 'shape': (60, 3), }", b"None", b"\xff\xfe", b"",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3), }",
    b"{'descr': 'L', 'fortran_order': False, 'shape': (60L, 3L), }",
]  # fmt: skip


def stream(rng: random.Random, made: Specimens, work: Path) -> Case:
    """A folder of files that are streamed, one of which is damaged, or is no file."""
    source = rng.choice(made.streams)
    folder = shutil.copytree(source, work / source.name)
    path, other = rng.sample(sorted(p for p in folder.rglob("*.*") if p.is_file()), 2)
    chance, content = rng.random(), path.read_bytes()
    if chance < 0.3:
        said = replace_by_no_file(rng, path)
    elif chance < 0.6 and path.suffix == ".npy":
        header = rng.choice(_HEADERS)
        size = rng.choice([len(header), 118, 10, 2**16 - 1])
        start = b"\x93NUMPY" + bytes([rng.choice([1, 1, 1, 2, 9]), 0]) + size.to_bytes(2, "little")
        said, changed = (
            f"header {header[:60]!r}, {size}",
            start + header.ljust(size) + content[128:],
        )
        path.write_bytes(changed)
    else:
        said, changed = mutated_bytes(rng, content, other.read_bytes())
        path.write_bytes(changed)
    said = f"{path.relative_to(folder)}: {said}"
    return Case("stream", said, lambda: streamed(folder))
