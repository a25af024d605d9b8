"""How much memory a file, or a size, may ask for, which is asked before any is taken.

A short file can ask for any amount: 180 bytes for a layer of 10^9 units, 3 MB of zipped zeros for
6 GB. The sizes of a ready network are asked, too, whoever says them. Arrays that a person passes
are not: they are there.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import PyroccamError, TooLarge

VARIABLE = "PYROCCAM_MAX_MEMORY"
"""The environment variable that sets the limit, in bytes or as 8GB."""

DEFAULT = 2 * 2**30
"""Bytes that one file may ask for."""

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_asked: ContextVar[int | None] = ContextVar("allowed_bytes", default=None)


class NoSize(PyroccamError):
    """A limit, of the environment for one, that is no amount of memory."""


def allowed_bytes() -> int:
    """The limit in force: of :func:`allowing`, of the environment, or the default."""
    found = _asked.get()
    return found if found is not None else _size(os.environ.get(VARIABLE) or DEFAULT)


@contextmanager
def allowing(most: int | str) -> Iterator[None]:
    """Another limit for a while, for files that are known and large.

    Arguments:
        most: Bytes, or a text such as "8GB".

    Raises:
        NoSize: if it is none.

    Example:
        >>> with allowing("8GB"):
        ...     allowed_bytes()
        8589934592
    """
    token = _asked.set(_size(most))
    try:
        yield
    finally:
        _asked.reset(token)


def ask(count: float, what: str) -> None:
    """Refuse to take `count` bytes, which may be infinity, for `what` where that is too many."""
    most = allowed_bytes()
    if count > most:
        enough = f"{math.ceil(count / 2**30)}GB" if count < 2**60 else "..."
        found = f"{what} asks for {_shown(count)} of memory"
        raise TooLarge(found, f"at most {_shown(most)}", f"{VARIABLE}={enough}")


def _size(text: int | str) -> int:
    match = re.fullmatch(r"\s*(\d{1,18})\s*([kmgt]?)i?b?\s*", str(text).lower())
    if match is None or isinstance(text, bool) or not (size := int(match[1])):
        raise NoSize(f"{text!r} is no amount of memory", "bytes, or a text such as 8GB")
    return size * _UNITS[match[2]]


def _shown(count: float) -> str:
    if not count < 2**60:
        return "more bytes than any machine has"
    for unit, size in (("TB", 2**40), ("GB", 2**30), ("MB", 2**20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f} bytes"
