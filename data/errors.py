"""Errors that a person can mend: what was given, what was expected, what to try."""

from __future__ import annotations

__all__ = ["NetworkError", "PyroccamError", "TooLarge"]


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
