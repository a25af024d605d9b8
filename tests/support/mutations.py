"""Change one expression of the code at a time, in a copy of the tree, and see if a test notices.

    python tests/support/mutations.py elbo priors guides pruning --each 5 --out mutations.json
    python tests/support/mutations.py --again mutations.json    # the survivors, after more tests

The tests of a room first run as they are, traced, so that a mutant meets only those that execute
its lines, the quickest first, until one fails. Each mutant has a process of its own, forked from
one that has loaded the libraries. What takes far longer than it should counts as killed.

A mutant that survives is equivalent, or a test is missing. Which are drawn depends on the seed and
the module alone. (mutmut takes a module's name from its folder, which this package's is not.)
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
INF, MOD = "tests/inference/test_", "tests/models/test_"
ROOMS = {  # modules, and the tests that are for them
    "elbo": ("inference/elbo", f"{INF}e[lvx]*.py {INF}depth.py {INF}inputs.py {INF}non*.py "
             f"{MOD}local.py"),
    "priors": ("models/priors", f"{MOD}*prior*.py {MOD}weight*.py {MOD}gauss*.py {MOD}[dsn]*.py"),
    "guides": ("guides", f"tests/guides/*.py {MOD}l*.py {INF}rounding.py {INF}pairs.py"),
    "shrinking": ("inference/shrinking", f"{INF}weight_s*.py {INF}com*.py {INF}dis*.py "
                  f"{INF}int*.py {INF}ma*.py {INF}narrow.py {INF}prune.py {INF}rele*.py "
                  f"{INF}thres*.py tests/guides/test_zero*.py"),
}  # fmt: skip
PYTEST = ["-q", "-p", "no:cacheprovider", "--assert=plain"]


class Watch:
    """A plugin of pytest: which tests execute which lines; or the chosen tests alone."""

    def __init__(self, folder: str = "", chosen: list[str] | None = None) -> None:
        self.folder, self.chosen, self.now = folder, chosen, ""
        self.lines: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        self.lines[f"{frame.f_code.co_filename}:{frame.f_lineno}"].add(self.now)
        return self.trace

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.chosen is not None:
            named = {item.nodeid: item for item in items}
            items[:] = [named[name] for name in self.chosen if name in named]

    def pytest_runtest_setup(self, item: Any) -> None:
        self.now = item.nodeid.split("::")[0]  # the tests of a file may have it in common
        if self.folder:
            sys.settrace(self.trace)  # some of what is tested ends it

    def pytest_runtest_call(self, item: Any) -> None:
        self.now = item.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        self.failed |= {report.nodeid} if report.failed else set()


def traced(folder: str, tests: list[str]) -> dict[str, Any]:
    """Tests that pass by line, the quickest first; a line of an import is of all of them."""
    watch, before = Watch(folder), {*sys.modules}
    sys.settrace(watch.trace)
    pytest.main([*PYTEST, *tests], plugins=[watch])
    sys.settrace(None)
    order = sorted({*watch.seconds} - watch.failed, key=watch.seconds.__getitem__)
    lines = {
        line: [t for t in order if {t, t.split("::")[0], ""} & who]
        for line, who in watch.lines.items()
    }
    new = {name: getattr(sys.modules[name], "__file__", None) for name in {*sys.modules} - before}
    # Of what is in the copied tree everything is loaded anew for each mutant.
    loaded = [name for name, file in new.items() if file and str(Path.cwd()) not in file]
    return {"lines": lines, "seconds": watch.seconds, "loaded": loaded, "failed": [*watch.failed]}


def killer(chosen: list[str]) -> str:
    """The first test that fails; nothing if none does."""
    watch, files = Watch("", chosen), sorted({name.split("::")[0] for name in chosen})
    code = pytest.main([*PYTEST, "-x", *files], plugins=[watch])
    return next(iter(watch.failed), f"pytest ends with {code}" if code else "")


def forked(limit: float, call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives in a process of its own; ``None`` if it is late, or dies."""
    answer = Path("../answer.json")
    answer.unlink(missing_ok=True)
    if not (child := os.fork()):
        try:
            os.setsid()
            log = os.open("../log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1), os.dup2(log, 2)
            answer.absolute().write_text(json.dumps(call(*arguments)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    end = time.monotonic() + limit
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
    return json.loads(answer.read_text()) if answer.exists() else None


def trial(folder: str, tests: str, drawn: Callable[..., list[Mutant]], most: float) -> list[Any]:
    """Every mutant that is drawn, and the test that kills it; in a copied tree, where we are."""
    files = [str(f) for pattern in tests.split() for f in sorted(Path().glob(pattern))]
    known, found = forked(3600.0, traced, str(Path(folder).absolute()), files), []
    seconds = known["seconds"]
    print(f"{folder}: {len(seconds)} tests, failed as it is: {known['failed']}", flush=True)
    warnings.simplefilter("ignore")  # pytest has filters of its own
    for name in known["loaded"]:
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    if early := [name for name in sys.modules if name.startswith("pyroccam.")]:
        raise SystemExit(f"{folder}: {early[0]} is loaded already, no mutant would be seen.")

    def killed_by(names: set[str]) -> str | None:
        chosen, total = [], 0.0
        for name in sorted(names, key=seconds.get):
            if (total := total + seconds[name]) < most or not chosen:
                chosen.append(name)
        return forked(20.0 + 5.0 * most, killer, chosen) if chosen else ""

    if (wrong := killed_by({*seconds} - {*known["failed"]})) != "":
        raise SystemExit(f"{folder}: nothing was changed, and {wrong} fails.")
    for path in sorted(Path(folder).glob("*.py")):
        source = path.read_text()
        for one in drawn(str(path), mutants(source)):
            names = {t for n in one.lines for t in known["lines"].get(f"{path.absolute()}:{n}", [])}
            path.write_text(one.text)
            by = killed_by(names)
            path.write_text(source)
            row = {"module": str(path), "line": one.lines[0], "change": one.change}
            how = f"killed by {by or 'time'}" if by != "" else f"survived {len(names)} tests"
            print(*row.values(), how, sep=" | ", flush=True)
            found.append(row | {"tests": len(names), "survived": by == ""})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rooms", nargs="*", help=", ".join(ROOMS) + ", or FOLDER=TESTS")
    parser.add_argument("--each", type=int, default=5, help="mutants of a module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=20.0, help="seconds of tests for a mutant")
    parser.add_argument("--out", type=Path, default=Path("mutations.json"))
    parser.add_argument("--again", type=Path, help="try what survived, and write the file anew")
    parser.add_argument("--root", type=Path, default=ROOT)
    asked = parser.parse_args()
    out = (asked.again or asked.out).absolute()
    rooms = json.loads(out.read_text())["rooms"] if asked.again else {}

    def drawn(module: str, all_of: list[Mutant]) -> list[Mutant]:
        if asked.again:
            rows = [row for room in rooms.values() for row in room["survived"]]
            left = {(row["module"], row["line"], row["change"]) for row in rows}
            return [one for one in all_of if (module, one.lines[0], one.change) in left]
        return random.Random(f"{asked.seed} {module}").sample(all_of, min(asked.each, len(all_of)))

    with tempfile.TemporaryDirectory() as work:
        copied = Path(work).resolve() / "pyroccam"  # the name of the package
        shutil.copytree(asked.root, copied, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        os.chdir(copied)
        os.environ["PYTHONPATH"] = str(copied.parent)
        sys.path.insert(0, str(copied.parent))
        sys.dont_write_bytecode = True
        for room in asked.rooms or [*rooms]:
            found = trial(*(ROOMS.get(room) or room.split("=")), drawn, asked.most)
            alive = [row for row in found if row.pop("survived")]
            count = rooms[room]["mutants"] if asked.again else len(found)
            score = round(1.0 - len(alive) / max(count, 1), 3)
            rooms[room] = {"mutants": count, "score": score, "survived": alive}
            out.write_text(json.dumps({"seed": asked.seed, "rooms": rooms}, indent=1) + "\n")


if __name__ == "__main__":
    main()
