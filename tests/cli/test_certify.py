"""``pyroccam certify``: of a run by each way that it has, of a file by its data."""

import json

from command_line import SMALL, WHOLE, call
from pyroccam import data, inference
from pyroccam.inference.certificates import ByTest


def test_runs_and_files_are_certified(tmp_path):
    run = tmp_path / "run"
    call("fit", "gnj", "--out", run, *SMALL, *WHOLE)
    said = call("certify", run, "--out", tmp_path / "found.json")
    assert "posterior: none" in said  # the prior is improper
    found = json.loads((tmp_path / "found.json").read_text())
    file = run / "compressed.pocc"
    by_test = inference.certify(file, data.load("digits"), by=ByTest())
    assert found["compressed.pocc, test rows"]["error"] == by_test.error
    assert found["compressed.pocc"]["vacuous"]
    assert str(by_test) in call("certify", file, "--data", "digits")
    assert "--data" in call("certify", file, code=2)
    assert "confidence" in call("certify", file, "--data", "digits", "--confidence", 2, code=2)
