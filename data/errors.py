"""Errors that a person can mend: what was given, what was expected."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

_LONGEST = 800
"""Characters of a part of a message: what a file says of itself may be of any length."""


class PyroccamError(ValueError):
    """The base of all errors of this package that name what to mend; also a `ValueError` or a
    `RuntimeError`, as each subclass says.

    Arguments:
        found: What was given, by name.
        expected: What would have been accepted.
        hint: What to try.

    Example:
        >>> str(PyroccamError("epochs=0", "a whole number of at least 1", "--epochs 10"))
        'epochs=0; expected a whole number of at least 1; try: --epochs 10'
    """

    def __init__(self, found: str, expected: str = "", hint: str = "") -> None:
        self.found, self.expected, self.hint = found, expected, hint
        parts = [found, expected and f"expected {expected}", hint and f"try: {hint}"]
        super().__init__("; ".join(part for part in parts if part))


class TooLarge(PyroccamError):
    """Something asks for more memory than may be taken (:mod:`pyroccam.data.limits`)."""


class NetworkError(PyroccamError, RuntimeError):
    """A person's own network failed, in their code."""


class DataWarning(UserWarning):
    """What somebody should know of data that can be used."""


class DataError(PyroccamError):
    """Data that cannot be used.

    What it quotes may come from anybody's file: line breaks, control characters and halves of
    characters are written as escapes, and what is too long is cut.
    """

    def __init__(self, found: str, expected: str = "", hint: str = "") -> None:
        super().__init__(*map(_printable, (found, expected, hint)))


def _printable(text: str) -> str:
    """`text` in one line that any terminal can show."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python does not write whole numbers of thousands of digits
            return "a number of thousands of digits"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 3


def shown(value: object) -> str:
    """A value as it may stand in a message: cut short, and printable on every terminal."""
    return _printable(_SHORT.repr(value))


def listed(names: Iterable[object], most: int = 8) -> str:
    """The first names of a list, of any length, as part of a message."""
    names = list(names)
    first = [text if len(text := str(name)) <= 60 else f"{text[:57]}..." for name in names[:most]]
    return ", ".join(first) + (f", ... ({len(names)} in all)" if len(names) > most else "")
