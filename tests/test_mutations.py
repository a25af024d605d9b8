"""The mutations are changes, and the trial of them sees which a test notices."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import mutants

SMALL = '''
def larger(a: int, b: int = 2) -> int:
    if not b:
        raise ValueError(f"{a + b}")
    return a if a > b else max(a, b)


def twice(a: int) -> int:
    """Of 1 and 2."""
    return 2 * a.clamp(0).detach()
'''


def test_each_is_one_change_of_the_tree():
    found = mutants.mutants(SMALL)
    trees = {ast.dump(ast.parse(one.text)) for one in found}
    assert len(trees | {ast.dump(ast.parse(SMALL))}) == len(found) + 1
    assert [one.change for one in found] == [
        "2  ->  4",
        "not b  ->  b",
        "a > b  ->  a >= b",
        "max(a, b)  ->  min(a, b)",
        "max(a, b)  ->  max(b, a)",
        "2 * a.clamp(0).detach()  ->  2 / a.clamp(0).detach()",
        "2  ->  4",
        "a.clamp(0).detach()  ->  a.clamp(0)",
        "a.clamp(0)  ->  a",
        "0  ->  1",
    ]
    for one in found:
        pairs = zip(SMALL.splitlines(), one.text.splitlines(), strict=True)
        assert [k for k, (a, b) in enumerate(pairs, 1) if a != b] == [one.lines[0]]


def test_what_a_test_notices_is_killed(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room/small.py").write_text("def twice(a):\n    return 2 * a\n")
    (tmp_path / "test_small.py").write_text(
        "from pyroccam.room.small import twice\ndef test_zero():\n    assert twice(0) == 0\n"
    )
    script, out = Path(mutants.__file__).with_name("mutations.py"), tmp_path / "found.json"
    command = [sys.executable, script, "room=test_small.py", "--root", tmp_path, "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    (room,) = json.loads(out.read_text())["rooms"].values()
    assert (room["mutants"], room["score"]) == (2, 0.5)
    (alive,) = room["survived"]
    assert (alive["line"], alive["change"], alive["tests"]) == (2, "2  ->  4", 1)
