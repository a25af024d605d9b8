"""Files of networks that earlier versions wrote are read as they were."""

import json
import shutil
from pathlib import Path

import pytest
from pyroccam import data, inference
from pyroccam.inference.files.packed import read

OLD = Path(__file__).parents[1] / "support" / "old_networks"


@pytest.fixture
def old(tmp_path):
    def copied(name):
        return Path(shutil.copytree(OLD / name, tmp_path / name))

    return copied


def test_old_files_of_networks_are_read(old):
    spirals, digits = data.load("spirals", seed=0), data.load("digits", seed=0)
    pruned = inference.load(old("depth") / "pruned")
    assert pruned(spirals.x_test).shape == (1800, 2)
    small = read(old("weights") / "compressed.pocc")
    right = (small(digits.x_test).argmax(-1) == digits.y_test).float().mean()
    kept = json.loads((OLD / "weights" / "metrics.json").read_text())
    assert float(right) == pytest.approx(kept["compressed"]["test"]["accuracy"], abs=0.01)
