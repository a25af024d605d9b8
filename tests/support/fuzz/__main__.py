"""A fuzzer of everything that a stranger can hand over: files, folders of runs, command lines.

``python -m tests.support.fuzz --seconds 60``. Sound specimens are made once, then mutated
and given to the public ways in. What must never happen is counted: a traceback, damage that passes
in silence, a message in Python's words or without the file, too much time or memory. Each such
input is kept with what was said, and made again by ``--only NUMBER``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import torch
import typer

from .cases import make_case, sound_cases
from .specimens import Specimens, make
from .verdicts import BAD, SLOW_SECONDS, Case, Verdict, judge

__all__ = ["app", "fuzz", "one"]

app = typer.Typer(add_completion=False)
PATIENCE = 4  # times so long on the clock, and it hangs
MORE_MEMORY = 8 * 2**30  # address space beyond what an idle process has


def one(case: Case, work: Path) -> Verdict:
    """Judge a case whose files are in `work`, which is the working directory meanwhile."""
    before = os.getcwd()
    os.chdir(work)
    try:
        return judge(case)
    finally:
        os.chdir(before)


def _work(pipe: Connection, made: Specimens, work: Path, seed: int) -> None:
    """A process that judges the numbers it is sent, until it is stopped, or dies of one."""
    _limit_memory()
    while True:
        number = pipe.recv()
        case = make_case(made, work / str(number), seed, number)
        pipe.send((case.kind, case.what))  # at once: the judge may not come back
        pipe.send(one(case, work / str(number)))


def _limit_memory() -> None:
    try:
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + MORE_MEMORY, hard))
    except (ImportError, OSError, ValueError):  # not everywhere
        pass


class _Worker:
    """A forked process, begun anew after one that hangs or dies; a fork has torch already."""

    def __init__(self, made: Specimens, work: Path, seed: int) -> None:
        self.arguments = made, work, seed
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, *self.arguments), daemon=True)
        self.process.start()
        theirs.close()

    def judge(self, number: int) -> tuple[str, str, Verdict]:
        self.pipe.send(number)
        kind, what = "?", "the case could not be made"
        try:
            kind, what = self.pipe.recv()
            if self.pipe.poll(PATIENCE * SLOW_SECONDS):
                return kind, what, self.pipe.recv()
            found = Verdict("slow")
        except EOFError:
            found = Verdict("died")
        self.stop()
        self.start()
        return kind, what, found

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def fuzz(
    folder: Path, seconds: float, seed: int = 0, first: int = 0, most: int | None = None
) -> tuple[Counter[tuple[str, str]], list[dict[str, Any]]]:
    """Judge one case after the other.

    Arguments:
        folder: of the specimens, and of what is kept.
        seconds: after which no case is begun.
        seed, first: of the cases, and the number to begin with.
        most: cases, if fewer than the time allows.

    Returns:
        How often each verdict came for each kind; what is wrong, in the order of the numbers.
    """
    made, work = Specimens(folder / "specimens"), folder / "work"
    worker = _Worker(made, work, seed)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    until, number = time.monotonic() + seconds, first
    while time.monotonic() < until and (most is None or number < first + most):
        kind, what, verdict = worker.judge(number)
        counts[kind, verdict.word] += 1
        if verdict.word in BAD:
            wrong.append({"number": number, "kind": kind, "what": what, **asdict(verdict)})
            kept = folder / "kept" / f"{number}-{verdict.word}"
            shutil.rmtree(kept, ignore_errors=True)
            with suppress(shutil.Error):  # pipes are not copied
                shutil.copytree(work / str(number), kept, symlinks=True, dirs_exist_ok=True)
            (kept / "case.json").write_text(json.dumps(wrong[-1], indent=2))
        shutil.rmtree(work / str(number), ignore_errors=True)
        number += 1
    worker.stop()
    return counts, wrong


def specimens(folder: Path) -> list[str]:
    """Make the specimens, and what is wrong with them: a sound one that is refused."""
    made = make(folder / "specimens")
    work = folder / "sound"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    found = [(case, one(case, work)) for case in sound_cases(made, work)]
    return [f"{case.kind} {case.what}: {v.word} {v.said}" for case, v in found if v.word != "fine"]


@app.command()
def main(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Of the cases.")] = 0,
    only: Annotated[int | None, typer.Option(help="Judge this case alone, and keep it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; a temporary one if left out.")] = None,
) -> None:
    """Fuzz; exit code 1 if anything is wrong."""
    torch.set_num_threads(1)  # before a fork: threads do not survive it
    folder = (out or Path(mkdtemp(prefix="pyroccam-fuzz-"))).resolve()
    shutil.rmtree(folder / "work", ignore_errors=True)
    maker = multiprocessing.get_context("fork").Process(target=_make, args=(folder,))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise typer.Exit(1)
    counts, wrong = fuzz(folder, seconds, seed, only or 0, None if only is None else 1)
    for (kind, word), count in sorted(counts.items()):
        print(f"{kind:10}{word:12}{count}")
    for row in wrong[:30]:
        print(json.dumps({**row, "said": row["said"][-300:]}))
    print(f"{sum(counts.values())} inputs, {len(wrong)} wrong; kept in {folder / 'kept'}")
    if wrong:
        raise typer.Exit(1)


def _make(folder: Path) -> None:
    if found := specimens(folder):
        print("\n".join(found))
        raise SystemExit(1)


if __name__ == "__main__":
    app()
