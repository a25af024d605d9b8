"""The boundary between commands and a person: whatever is raised becomes a message.

Three kinds of errors pass it. Those that say what to mend are printed. Those of a person's own code
are printed with the place in it. All others are defects of this package: their traceback goes to a
file, of which one line tells.
"""

from __future__ import annotations

import signal
import sys
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import typer

from ..data import PyroccamError
from .console import Part, PlainConsole
from .signatures import as_command

REFUSED, BROKEN, BUSY, STOPPED = 2, 70, 75, 130
"""Exit codes: of bad input, of a defect (EX_SOFTWARE of sysexits.h), of a folder that another
process has (EX_TEMPFAIL), of Ctrl-C."""

_LONGEST = 1500  # characters of a message
_AGAIN = 0.05  # seconds until a Ctrl-C that waits looks again
_waits = False  # a Ctrl-C, for the end of an import
_INFERENCE = f"{__name__.rsplit('.', 2)[0]}.inference"

_ROOT = Path(__file__).resolve().parents[1]
_OURS = [_ROOT / room for room in ("data", "models", "guides", "inference", "cli")]
_NOBODYS = [Path(sysconfig.get_path("stdlib")).resolve()]
_INSTALLED = {"site-packages", "dist-packages"}  # folders of packages, of which there may be many
_COMPILED = "torchinductor_"  # begins the name of the folder in which torch's compiler writes


class App(typer.Typer):
    """A typer application, every command of which is a typed function and ends at the boundary."""

    def command(self, *names: Any, **options: Any) -> Callable[[Any], Any]:
        """A command as typer has it, by the signature and the docstring of its function."""
        register = super().command(*names, **options)
        return lambda function: register(_bounded(as_command(function)))


def _bounded(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            with _between_imports():
                command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except BaseException as error:
            message, code = told(error)
            if _speaks():
                PlainConsole(stderr=True).say(*message)
            raise typer.Exit(code) from None

    return wrapped


@contextmanager
def _between_imports() -> Iterator[None]:
    """Ctrl-C as it is, but for the middle of an import of a package, whose end it waits for: a
    compiled module that is interrupted while it is made may abort the process."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    # It is sent once more, to whoever handles it by then.
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, _when_imported)
    try:
        yield
        hear_ctrl_c()
    finally:
        _no_longer_waits()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)


def _when_imported(number: int, frame: FrameType | None) -> None:
    global _waits
    if _importing(frame):
        _waits = True
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        signal.default_int_handler(number, frame)


def hear_ctrl_c() -> None:
    """Raise a Ctrl-C that waits for the end of an import, where none is made."""
    if _no_longer_waits():
        raise KeyboardInterrupt


def _no_longer_waits() -> bool:
    """Whether a Ctrl-C waited; the timer of somebody else stays."""
    global _waits
    waited, _waits = _waits, False
    if waited:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return waited


def _importing(frame: FrameType | None) -> bool:
    """True while a package is imported, even by a module of a person's own, which as such is
    interrupted: it may do anything, and for any time."""
    while frame is not None and not _own(frame.f_code):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _speaks() -> bool:
    """True unless another process of the same run has said already why it ends."""
    joining = sys.modules.get(f"{_INFERENCE}.distributed.joining")  # not joined, if not imported
    return joining is None or bool(joining.says())


def told(error: BaseException) -> tuple[list[Part], int]:
    """The message for an error, and the exit code."""
    if type(error) is KeyboardInterrupt:
        how = " What is in the folder of the run goes on with --resume."
        return [("Stopped.", "yellow"), how], STOPPED
    if type(error) is PyroccamError:
        return [("Error: ", "red"), _words(error)], REFUSED
    from ..inference.storage import FolderInUse  # with it comes torch
    from ..inference.training import Interrupted

    if isinstance(error, Interrupted):
        how = " Go on by the same command with --resume, and --out with the folder of the run."
        return [(str(error), "yellow"), how], STOPPED
    place = place_in_own_code(error)
    if isinstance(error, MemoryError):
        return [("Error: ", "red"), "there is not enough memory for this; try: fewer rows, a "
                "smaller --set batch_size, or a smaller network."], REFUSED  # fmt: skip
    if isinstance(error, PyroccamError) or (place is None and isinstance(error, OSError)):
        return [("Error: ", "red"), _words(error)], BUSY if type(error) is FolderInUse else REFUSED
    notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    if place is not None or notes:
        failed = "the network failed" if place is None else f"your code failed, {place}"
        named = f"{_named(error).rstrip('.')}.{notes}" if notes else _named(error)
        return [("Error: ", "red"), f"{failed}: {named}"], REFUSED
    where = _keep_traceback(error)
    return [("Unexpected error: ", "red"), f"{_named(error).rstrip('.')}. This is a defect of "
            f"pyroccam; please report it with {where}."], BROKEN  # fmt: skip


def _words(error: BaseException) -> str:
    """The message of an error; of a key that is missing, or where there is none, in a sentence."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    said = str(error).strip() or type(error).__name__
    # What was given may be of any length, and is quoted.
    return (
        said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]} ... {said[-_LONGEST // 2 :]}"
    )


def _named(error: BaseException) -> str:
    kind, said = type(error).__name__, _words(error)
    return kind if said == kind else f"{kind}: {said}"


def place_in_own_code(error: BaseException) -> str | None:
    """The place in a person's own code where an error began, if it passed through any.

    Own is what belongs neither to this package, nor to Python, nor to an installed package.
    """
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if _own(code):
            found = f"{Path(code.co_filename).name}, line {line}, in {code.co_name}"
    return found


def _own(code: CodeType) -> bool:
    path = Path(code.co_filename)
    if not path.is_file():  # <string>, <frozen importlib>, code that a compiler made
        return False
    resolved = path.resolve()
    theirs = any(part in _INSTALLED or part.startswith(_COMPILED) for part in resolved.parts)
    return not theirs and not any(map(resolved.is_relative_to, (*_OURS, *_NOBODYS)))


def _keep_traceback(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    text = f"{' '.join(sys.argv)}\n\n{text}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="pyroccam-error-", suffix=".txt", delete=False,
            encoding="utf-8", errors="backslashreplace",
        ) as file:  # fmt: skip
            file.write(text)
    except OSError:  # a full disk, say
        return "the traceback, which could not be written to a file"
    return file.name
