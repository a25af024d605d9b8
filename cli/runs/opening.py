"""The folder of a run is opened with suspicion: nothing in it is believed, and nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...data import DataError, Dataset, PyroccamError, ask
from ...inference.storage import check_digests, refuse_links
from ...models.plain import NotJSON, parsed, plain_words
from ..methods import FILE

_AGAIN = "copy the folder again from where it came, or run `pyroccam fit` again"


class RunError(PyroccamError):
    """A folder that is not a whole run, or not the run that it should be."""


def check_files(folder: Path) -> None:
    """Compare the files of a run, or of a fit of it, with what was written."""
    refuse_links(folder)
    checked = check_digests(folder, may_lack=[FILE])  # which can be made again
    if not checked and (folder / "metrics.json").exists():  # not a fit that was broken off
        raise RunError(f"{folder} has no digests.json, by which its files are checked", hint=_AGAIN)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Say of what does not fit while a file is read that the file is damaged."""
    try:
        yield
    except (FileNotFoundError, Warning):
        raise
    except Exception as error:
        if isinstance(error, PyroccamError) and str(path) in str(error):
            raise
        raise RunError(f"{path} cannot be read: {plain_words(error):.200}", hint=_AGAIN) from error


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file that holds an object."""
    with reading(path):
        ask(path.stat().st_size, str(path))
        text = path.read_bytes()
    try:
        found = parsed(text, str(path), paths=True)
    except NotJSON as error:
        why = error.found.removeprefix(f"{path} ")
        raise RunError(f"{path} cannot be read: it {why}", hint=_AGAIN) from error
    if not isinstance(found, dict):
        raise RunError(f"{path} cannot be read: it holds a {type(found).__name__}", hint=_AGAIN)
    return found


def refuse_other_data(found: Dataset, folder: Path) -> None:
    """Data that is not what a run saw would be split and scaled in another way: its test rows may
    be rows of the training.
    """
    path = folder / "data.json"
    record = read_json(path)
    try:
        differences = found.differences(record)
    except DataError as error:
        raise RunError(f"{path} cannot be read: {error}", hint=_AGAIN) from error
    if differences:
        given = f"{found.name} is not the data of {folder}: {'; '.join(differences)}"
        raise RunError(given, hint="pyroccam evaluate RUN --data FILE, or another --out")
