"""Verdicts on an input: taken, refused in words that help, or a defect."""

from __future__ import annotations

import contextlib
import io
import re
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroccam.data import PyroccamError

__all__ = ["BAD", "Case", "Verdict", "command", "judge"]

SLOW_SECONDS = 20.0  # of the processor: a machine may have other work
MUCH_MEMORY = 3.5 * 2**30  # bytes above what was taken before: the limit on files is 2 GiB
BAD = ("traceback", "silent", "internals", "unnamed", "slow", "memory", "died")
"""Verdicts that are defects; the others are ``fine`` and ``refused``."""

# Python's and C's words in a message are for whoever wrote the program.
_INTERNALS = re.compile(
    r"NoneType|object is not|unsupported operand|KeyError|TypeError|ValueError|AttributeError"
    r"|Traceback|has no attribute|unhashable|positional argument|not subscriptable|<class '"
    r"|object at 0x|invalid literal|to unpack|out of range|std::|RuntimeError"
)
_KEPT = re.compile(r"\S*pyroccam-error-\S+\.txt")


@dataclass(frozen=True)
class Verdict:
    """How an input ended: one word, and what was said."""

    word: str
    said: str = ""


@dataclass(frozen=True)
class Case:
    """An input and what it is given to.

    Arguments:
        kind: of specimen and way in.
        what: was done to the specimen.
        run: gives the input to a way in.
        must: ``refuse`` where anything else would be silent damage; ``pass`` for sound input;
            ``any`` where nothing can be said.
        names: what the message must hold: the file, say.
    """

    kind: str
    what: str
    run: Callable[[], Any]
    must: str = "any"
    names: str = ""


class Failed(Exception):
    """A command ended with an exit code other than 0; the message is what it printed."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


def command(arguments: list[str]) -> str:
    """Everything that ``pyroccam`` prints for these arguments, run in this process.

    Raises:
        Failed: for an exit code other than 0.
    """
    from pyroccam.cli.commands import app

    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    code: Any = 0
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        try:
            app(arguments, prog_name="pyroccam")
        except SystemExit as ended:
            code = ended.code
    stream.flush()
    said = stream.buffer.getvalue().decode()
    if code:
        raise Failed(code if isinstance(code, int) else 1, said)
    return said


def judge(case: Case) -> Verdict:
    """Run a case, and say what became of it. Nothing but an interrupt passes."""
    before, began = _peak(reset=True), time.process_time()
    try:
        case.run()
        found = Verdict("silent" if case.must == "refuse" else "fine")
    except KeyboardInterrupt:
        raise
    except Failed as failed:
        found = _of_command(failed)
    except BaseException as error:  # constriction panics in Rust, past Exception
        found = _of_error(error)
    if found.word == "refused":
        if case.must == "pass":
            found = Verdict("traceback", f"sound, but refused: {found.said}")
        elif _INTERNALS.search(found.said):
            found = Verdict("internals", found.said)
        elif case.names not in "".join(found.said.split()):
            found = Verdict("unnamed", found.said)
    if time.process_time() - began > SLOW_SECONDS:
        return Verdict("slow", found.said)
    if _peak() - before > MUCH_MEMORY:
        return Verdict("memory", found.said)
    return found


def _of_command(failed: Failed) -> Verdict:
    said = str(failed)
    if failed.code in (1, 2) and "Traceback (most recent call last)" not in said:
        return Verdict("refused", said)
    for path in map(Path, _KEPT.findall(said)):
        with contextlib.suppress(OSError):
            said += "\n" + path.read_text(errors="replace")[-3000:]
            path.unlink()
    return Verdict("traceback", f"exit code {failed.code}\n{said}")


def _of_error(error: BaseException) -> Verdict:
    if isinstance(error, PyroccamError):
        return Verdict("refused", str(error))
    return Verdict("traceback", "".join(traceback.format_exception(error))[-3000:])


def _peak(*, reset: bool = False) -> float:
    """Most memory of this process so far, in bytes; 0 where the system does not tell."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines: Iterator[str] = iter(Path("/proc/self/status").read_text().splitlines())
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0.0
