"""The fuzzer finds what it should find, and a short slice of its cases is without fault."""

import os
import random
import time

import pytest
from fuzz import __main__ as fuzz
from fuzz.cases import KINDS, sound_cases
from fuzz.specimens import make
from fuzz.verdicts import Case, Failed, judge
from pictures import unrendered
from pyroccam.data import PyroccamError


@pytest.fixture(scope="module", name="made")
def specimens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with unrendered():
        return make(folder / "specimens")


def test_every_sound_specimen_is_taken(made, tmp_path):
    """Of the commands one: they are tested elsewhere."""
    cases = sound_cases(made, tmp_path)
    quick = [case for case in cases if case.kind != "run" or case.what == "evaluate gnj"]
    assert len(quick) == 11
    for case in quick:
        assert judge(case).word == "fine", case


SLICE = {"network": 200, "packed": 160, "table": 240, "command": 12, "rows": 4, "run": 8,
         "arrays": 60, "stream": 80, "linked": 6}  # fmt: skip


@pytest.mark.filterwarnings("ignore::pyroccam.data.DataWarning")
@pytest.mark.parametrize("kind", SLICE)
def test_a_slice_of_the_cases(kind, made, tmp_path):
    words = []
    for number in range(SLICE[kind]):
        work = tmp_path / str(number)
        work.mkdir()
        case = KINDS[kind][1](random.Random(number), made, work)
        with unrendered():
            verdict = fuzz.one(case, work)
        assert verdict.word in ("fine", "refused"), (number, case.what, verdict)
        words.append(verdict.word)
    assert words.count("refused") >= SLICE[kind] / 2


# -- the judge ------------------------------------------------------------------------------------


def fails(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    ("case", "word"),
    [
        (Case("x", "", lambda: 3), "fine"),
        (Case("x", "", lambda: 3, "refuse"), "silent"),
        (Case("x", "", fails(PyroccamError("a.csv is no table")), names="a.csv"), "refused"),
        (Case("x", "", fails(PyroccamError("no table")), names="a.csv"), "unnamed"),
        (Case("x", "", fails(PyroccamError("sound")), "pass"), "traceback"),
        (Case("x", "", fails(PyroccamError("'NoneType' object is not iterable"))), "internals"),
        (Case("x", "", fails(KeyError("x"))), "traceback"),
        (Case("x", "", fails(type("Panic", (BaseException,), {})())), "traceback"),
        (Case("x", "", fails(Failed(2, "Error: no such file"))), "refused"),
        (Case("x", "", fails(Failed(70, "Unexpected error"))), "traceback"),
        (Case("x", "", fails(Failed(1, "Traceback (most recent call last)"))), "traceback"),
    ],
)
def test_what_becomes_of_an_input_has_a_word(case, word):
    assert judge(case).word == word


def hanging_or_dying(made, work, seed, number):
    work.mkdir(parents=True)
    ends = [lambda: 3, lambda: time.sleep(60), lambda: os._exit(3), fails(KeyError("x"))]
    return Case("x", f"end {number}", ends[number])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_input_that_hangs_or_kills_is_kept_and_the_next_is_judged(monkeypatch, tmp_path):
    monkeypatch.setattr(fuzz, "make_case", hanging_or_dying)
    monkeypatch.setattr(fuzz, "SLOW_SECONDS", 0.2)
    counts, wrong = fuzz.fuzz(tmp_path, 60, most=4)
    assert {word: n for (_, word), n in counts.items()} == {
        "fine": 1, "slow": 1, "died": 1, "traceback": 1,
    }  # fmt: skip
    assert [row["number"] for row in wrong] == [1, 2, 3]
    assert (tmp_path / "kept" / "2-died" / "case.json").is_file()
