"""Sets that are streamed, by a path that a command is given: folders of arrays or images, Parquet
files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from .. import (
    AtLeastTwo,
    Between,
    Count,
    DataError,
    Dataset,
    Seed,
    ShareOrZero,
    Task,
    Whole,
    checked,
    listed,
    shown,
)
from ..formats import MOST, Images, is_image_folder
from .arrays import is_array_folder
from .making import reader_of, stream
from .placed import Placed
from .streamed import Streamed
from .tables import is_table

ASIDE = 0.1
"""The share of the rows that is kept for validation, and that for tests, if nobody says another."""

FORMS = (
    "a folder with x.npy and y.npy, or x-00.npy, ..., or with folders of images, one for each "
    "class; a Parquet file, or a folder of them; or a folder with train, val and test, each of "
    "them such a folder"
)
"""What can be streamed."""


@checked
def load_stream(
    path: Path,
    *,
    seed: Seed = 0,
    val: Whole | ShareOrZero | None = None,
    test: Whole | ShareOrZero | None = None,
    task: Task | None = None,
    classes: AtLeastTwo | None = None,
    class_names: str | Sequence[object] = (),
    inputs: str | Sequence[object] = (),
    target: str = "",
    weights: str = "",
    ids: bool = False,
    standardise: bool = True,
    size: Annotated[int, Between(1, MOST)] | None = None,
    held: Count | None = None,
    workers: Whole | None = None,
) -> Streamed:
    """Rows of files, streamed: see :func:`~pyroccam.data.stream` for what is not said here.

    Arguments:
        path: A folder of `.npy` files, of Parquet files or of images, or a Parquet file; or a
            folder in which `train`, `val` and `test` are such folders.
        val: The share of the rows to keep for validation, or how many; None takes the folder `val`
            beside `train`, or else a tenth.
        test: The same for tests.
        size: Of images, pixels of a side to which they are brought; None if they are of one size.
    """
    names: dict[str, Any] = {"inputs": inputs, "target": target, "weights": weights}
    parts = _parts(path)
    aside: dict[str, Any] = {}
    for what, asked in (("val", val), ("test", test)):
        if what in parts and asked is not None:
            raise DataError(f"{what}={shown(asked)} beside {parts[what]}", "one of them")
        aside[what] = ASIDE if asked is None else asked
    sources = {part: _source(place, size, names) for part, place in parts.items()}
    training = sources.pop("train")
    if isinstance(training, Images):
        for part, one in sources.items():
            if one.classes != training.classes:
                found, expected = (", ".join(o.classes[:8]) for o in (one, training))
                raise DataError(f"{parts[part]} has the classes {found}", f"{expected} of train")
        class_names = class_names or training.classes
    which: dict[str, Any] = {
        **names, "task": task, "classes": classes, "class_names": class_names, "ids": ids,
        "seed": seed,
    }  # fmt: skip
    return stream(
        training,
        **{**aside, **sources},
        **which,
        standardise=standardise,
        name=(path.name if path.is_dir() else path.stem) or "stream",
        workers=workers,
        held=held,
    )


def reader_of_path(path: Path, like: Dataset) -> tuple[Placed, Sequence[str]]:
    """All rows of files, or of the folder `test` of several sets, in their order, to be read as
    those of another set; and the names of their classes, if they have their own."""
    if _form(path / "train"):  # several sets, of which one is to be predicted
        parts = _parts(path)
        if "test" not in parts:
            raise DataError(f"{path} holds {listed(parts)}", "a folder test, or one set of rows")
        path = parts["test"]
    if _form(path) == "images":
        size = like.source.get("size")
        images = Images(path, size if isinstance(size, int) else None)
        return reader_of(images), images.classes
    names: dict[str, Any] = {}
    if _form(path) == "table":
        names = {"inputs": like.columns, "target": like.target, "class_names": like.class_names}
    return reader_of(_source(path, None, names), **names), ()


def is_streamable(path: Path) -> bool:
    """True for a path of :func:`load_stream`."""
    return bool(_form(path / "train") or _form(path))


def _form(path: Path) -> str:
    """What rows of files are, "arrays", "table" or "images": pictures of one's own, of them, may
    lie beside the others. Empty for what is no set."""
    if is_array_folder(path):
        return "arrays"
    if is_table(path):
        return "table"
    return "images" if is_image_folder(path) else ""


def _parts(path: Path) -> dict[str, Path]:
    """The sets that a folder holds, by what they are for: the folder itself, if it is one."""
    if not _form(path / "train"):
        return {"train": path}
    known = ("train", "val", "test")
    if other := sorted(
        one.name for one in path.iterdir()
        if one.name not in known and not one.name.startswith(".") and _form(one)
    ):  # fmt: skip
        raise DataError(f"{path} holds {listed(other)} beside train", "train, val and test")
    return {part: path / part for part in known if (path / part).is_dir()}


def _source(path: Path, size: int | None, names: dict[str, Any]) -> Any:
    """What :func:`~pyroccam.data.stream` takes."""
    form = _form(path)
    if form == "images":
        if given := [name for name, value in names.items() if value]:
            raise DataError(f"{given[0]}= of {path}, a folder of images", f"no {given[0]}=")
        return Images(path, size)
    if size is not None:
        raise DataError(f"size={shown(size)} of {path}, which holds no images", "no size=")
    if not form:
        raise DataError(f"{path} is no set of rows", FORMS)
    return path
