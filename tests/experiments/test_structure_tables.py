"""Tables of structure selection say what the result files hold."""

import json
from pathlib import Path

from experiments.published.structure import tables as structure_tables

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def test_regimes() -> None:
    found = json.loads((RESULTS / "regimes" / "toy.json").read_text())
    lines = list(structure_tables.regimes(RESULTS / "regimes"))
    assert len(lines) == 2 + 3
    assert lines[0].endswith("| T = 0.2 | T = 1 | T = 10 |")
    one = next(c for c in found["cells"] if c["regime"] == "equal" and c["temperature"] == 10)
    mean, won = one["spread"]["q_expected"]["mean"], one["winners"]["simple"]
    assert f"| {mean:.2f} ({won}/5) |" in lines[3]
    assert "equal (λ = 1): simple" in lines[3]


def _spread(**means: float) -> dict[str, dict[str, float | int]]:
    return {name.replace("__", " "): {"mean": m, "sd": 0.5, "n": 2} for name, m in means.items()}


def test_hyperparameters(tmp_path: Path) -> None:
    names = ("test", "noise__0.25", "noise__0.5")
    spread = _spread(Q=-41.26, reached=12.0)
    spread |= _spread(**{f"{part}__accuracy": 0.9 - 0.1 * k for k, part in enumerate(names)})
    broken = {"seed": 3, "failed": "FloatingPointError: x"}
    rises = [[-50.0, -45.0, -41.0], [-50.0, -44.0, -43.0], [-60.0, -55.0, -52.0]]
    runs = [{"seed": k, "history": one} for k, one in enumerate(rises)] + [broken]
    tries = [{"seed": k, "Q": q, "history": [q]} for k, q in enumerate([-45.0, -50.0, -51.0])]
    random = {"runs": [*tries, broken], "spread": spread}
    (tmp_path / "mnist-elbo-random.json").write_text(json.dumps(random))
    (tmp_path / "mnist-elbo-greedy.json").write_text(json.dumps({"runs": runs, "spread": spread}))
    broken = {"runs": [{"seed": 0, "failed": "x"}], "spread": {}}
    (tmp_path / "mnist-elbo-drmad.json").write_text(json.dumps(broken))
    head, _, first, line, _ = structure_tables.hyperparameters(tmp_path)
    assert "mnist, elbo" in head
    assert first.startswith("| `random` (3, 1 failed) | -41.3 ± 0.5 | 12 ± 0 |  | 90.0 ± 50.0 |")
    passed = "1.5 ± 0.7 (2 of 3)"  # steps 2 and 1; the third never gets there
    assert line.startswith(f"| `greedy` (3, 1 failed) | -41.3 ± 0.5 | 12 ± 0 | {passed} | 90.0 ±")
    (tmp_path / "mnist-elbo-random.json").unlink()
    *_, line, _ = structure_tables.hyperparameters(tmp_path)
    assert "| 12 ± 0 |  | 90.0" in line


def test_structures(tmp_path: Path) -> None:
    parts = ("mixture", "cut out", "afresh", "random")
    spread = {
        f"{p} {m}": {"mean": 0.5, "sd": None, "n": 1} for p in parts for m in ("accuracy", "nll")
    }
    run = {
        "parameters": 1200, "parameters_before": 9000,
        "random": [{"parameters": 1100}, {"parameters": 1300}],
    }  # fmt: skip
    (tmp_path / "fashion-mnist-cell-graph.json").write_text(
        json.dumps({"runs": [run], "spread": spread})
    )
    lines = list(structure_tables.structures(tmp_path))
    assert "| all alternatives together | 0.5000 | 0.500 | 9,000 |" in lines
    assert "| random structures | 0.5000 | 0.500 | 1,100 to 1,300 |" in lines


def test_nothing_without_results(tmp_path: Path) -> None:
    for table in ("regimes", "hyperparameters", "structures"):
        assert list(getattr(structure_tables, table)(tmp_path)) == []
