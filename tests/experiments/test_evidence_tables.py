"""The table of estimators: its script on two small models, and what it counts."""

import json
from pathlib import Path

from pyroccam.inference.marginal_likelihood import Bound, Exact

from experiments.published.evidence import estimators
from experiments.published.evidence.tables import evidence


def test_the_script_goes_on_and_the_table_is_of_its_file(monkeypatch, tmp_path: Path) -> None:
    own = {"exact": (Exact, {}), "bound": (Bound, {"passes": 2})}
    monkeypatch.setattr(estimators, "ESTIMATORS", own)
    monkeypatch.setattr(estimators, "SETTINGS", {"steps": 20, "compile": False})
    monkeypatch.setattr(estimators, "LADDERS", {"degree": estimators.LADDERS["degree"]})
    estimators.main(out=tmp_path, ladders="degree", seeds=1, threads=1)
    content = json.loads((tmp_path / "degree.json").read_text())
    assert [run["member"] for run in content["runs"]] == list("1234567")
    for run in content["runs"]:  # of a fit that has hardly begun
        exact, bound = run["estimates"]["exact"], run["estimates"]["bound"]
        assert bound["value"] < exact["value"]
    before = (tmp_path / "degree.json").read_text()
    estimators.main(out=tmp_path, ladders="degree", seeds=1, threads=1)
    assert (tmp_path / "degree.json").read_text() == before
    lines = list(evidence(tmp_path))
    assert any(line.startswith("| exact | +0.00 | +0.00 |") for line in lines)


def estimate(value: float, error: float = 0.0) -> dict[str, float]:
    return {"value": value, "error": error, "seconds": 2.0}


def test_what_is_counted(tmp_path: Path) -> None:
    """Of two models the second predicts better; one estimate of a bound is far above."""
    rows = [
        ("a", 0.5, estimate(-10.0), estimate(-12.0, 0.1), {"refused": "no"}),
        ("b", 0.4, estimate(-9.0), estimate(-8.0, 0.1), {"refused": "no"}),
    ]
    names = "exact", "bound", "other"
    runs = [
        {"seed": 0, "member": m, "held_out": loss, "estimates": dict(zip(names, e, strict=True))}
        for m, loss, *e in rows
    ]
    content = {"says": "a ladder", "estimators": {n: {} for n in names}, "runs": runs}
    (tmp_path / "one.json").write_text(json.dumps(content))
    title, _, _, _, exact, bound, _ = evidence(tmp_path)
    assert title == "**one** (a ladder):"
    assert exact == "| exact | +0.00 | +0.00 |  | 2 | 1 of 1 | 2 |"
    assert bound == "| bound | -0.50 | -2.00 | 1 | 2 | 1 of 1 | 2 |"
