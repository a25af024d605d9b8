"""Printing of the command line: text as it is, in which no name of a person's is markup."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

Part = str | tuple[str, str]
"""A text, or a text and its style."""


def printable(text: str) -> str:
    """A text without what a terminal would obey or an encoding refuses: control characters and
    halves of surrogate pairs become escapes."""
    if text.isascii() and text.isprintable():
        return text
    kept = (c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)
    return "".join(kept)


def _escaped(character: str) -> str:
    # str.isprintable refuses non-breaking blanks, too, which nobody has to be kept from.
    if character.isspace() and ord(character) >= 0xA0:
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def styled(*parts: Part) -> Text:
    """A text of several parts, some of them with a style, such as ``("done", "bold")``."""
    shown = (part if isinstance(part, tuple) else (part, "") for part in parts)
    return Text.assemble(*((printable(text), style) for text, style in shown))


class PlainConsole(Console):
    """A console for which ``[red]`` is six characters; styles are asked for by :func:`styled`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Print as rich does it, but only what is printable."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Say no more where nobody reads, as after ``| head``, but go on: a run is not lost."""
        self.quiet = True
        # Or Python would fail as it flushes what is left, at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def say(self, *parts: Part) -> None:
        """One message; in a file or a pipe it is one line, however long."""
        self.print(styled(*parts), soft_wrap=not self.is_terminal)
