"""Files of strangers: JSON that is only JSON, and errors of other libraries in plain words."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from safetensors import SafetensorError

from ...data import PyroccamError, ask, shown

_TAKES = 32  # bytes that a byte of JSON can become: "[[],[]]" is lists of 56 bytes and pointers
_DIGITS = 40  # of a whole number; reading one takes the square of its digits


class NotJSON(PyroccamError):
    """A text that is no JSON, or more than JSON."""


def parsed(text: bytes, what: str, paths: bool = False) -> Any:
    """The data of a JSON text in UTF-8: no NaN, no number beyond what a float holds, no name twice,
    no half of a character, no deeper than Python can walk.

    Names of files, for ``paths``, may hold bytes that are no text, which Python reads as halves of
    characters. ``what`` begins the message.
    """
    ask(_TAKES * len(text), what)
    try:
        found = json.loads(
            text.decode(),
            parse_constant=_no_number,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_once,
        )
        # Fails for half a character.
        json.dumps(found, ensure_ascii=False).encode(
            errors="surrogateescape" if paths else "strict"
        )
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotJSON(f"{what} is no sound JSON: {plain_words(error)}", "UTF-8 text") from error
    return found


def plain_words(error: BaseException) -> str:
    """An error of Python, torch or NumPy in words for a person, without its class or internals."""
    if isinstance(error, PyroccamError):
        return str(error)
    if isinstance(error, KeyError):
        return f"{shown(error.args[0] if error.args else '')} is missing"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, OverflowError):
        return "a number in it is too large"
    if isinstance(error, UnicodeError):
        return "it holds bytes that are no text"
    if isinstance(error, OSError):
        return error.strerror or "the system refuses"
    theirs = isinstance(error, json.JSONDecodeError | RuntimeError | SafetensorError)
    if theirs and str(error).strip():
        line = str(error).strip().splitlines()[0].rstrip(".")
        return line if len(line) <= 200 else line[:200] + "..."
    return "a part of it is of another kind than it must be"


def _no_number(word: str) -> NoReturn:
    raise PyroccamError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise PyroccamError("a number in it is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise PyroccamError("a number in it is too large")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise PyroccamError(f"{shown(name)} stands twice in one object")
        found[name] = value
    return found
