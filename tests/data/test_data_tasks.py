"""One rule says what is classified and what is regressed, for arrays, archives and tables."""

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import PyroccamError, decide_task, generator, pick

ROWS = 300
X = np.random.default_rng(0).normal(size=(ROWS, 2))
LABELS, TARGETS, ASK = "classification", "regression", None

CASES = {
    "truth values": (np.arange(ROWS) % 2 == 0, LABELS),
    "three classes": (np.arange(ROWS) % 3, LABELS),
    "twenty classes": (np.arange(ROWS) % 20, LABELS),
    "fractions": (np.arange(ROWS) / 7, TARGETS),
    "halves, few": (np.arange(ROWS) % 3 / 2, TARGETS),
    "prices": (np.arange(ROWS) % 100 * 7 + 1000, TARGETS),
    "a number a row": (np.arange(ROWS), TARGETS),
    "a number a row, as floats": (np.arange(ROWS) * 1.0, TARGETS),
    "labels that became floats": (np.arange(ROWS) % 3 * 1.0, ASK),
    "-1 and 1 as floats": (np.arange(ROWS) % 2 * 2.0 - 1, ASK),
    "a hundred classes, or counts": (np.arange(ROWS) % 100, ASK),
    "a hundred classes as floats": (np.arange(ROWS) % 100 * 1.0, ASK),
    "constant": (np.full(ROWS, 2.0), TARGETS),
}


def as_tensors(y, folder, **options):
    return data.Dataset.from_tensors(X[:250], y[:250], X[250:], y[250:], **options)


def as_npz(y, folder, **options):
    np.savez(folder / "a.npz", x_train=X[:250], y_train=y[:250], x_test=X[250:], y_test=y[250:])
    return data.load(folder / "a.npz", **options)


def as_csv(y, folder, **options):
    lines = [f"{a},{b},{v}" for (a, b), v in zip(X, y, strict=True)]
    (folder / "a.csv").write_text("\n".join(["a,b,y", *lines]))
    return data.load(folder / "a.csv", **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("make", [as_tensors, as_npz, as_csv])
def test_all_ways_in_agree(case, make, tmp_path):
    y, expected = CASES[case]
    if expected is None:
        with pytest.raises(PyroccamError):
            make(y, tmp_path)
        assert make(y, tmp_path, task="regression").task == "regression"
    else:
        made = make(y, tmp_path)
        assert made.task == expected
        assert f", {expected}: " in repr(made)
        assert make(y, tmp_path, task="regression").task == "regression"


@pytest.mark.parametrize("values", [[0.0, torch.nan], [0.0, torch.inf], [-(2**63), 2**63 - 1]])
def test_odd_values_are_decided(values):
    y = torch.tensor(values * 30)
    assert decide_task("y", y) == (TARGETS if y.is_floating_point() else LABELS)


@pytest.mark.timeout(10)
def test_many_classes_and_large_labels_are_drawn_in_no_time():
    labels = torch.arange(200_000) % 60_000
    chosen, rest = pick(len(labels), 120_000, generator(0, "t"), labels)
    assert labels[rest].bincount().min() >= 1  # each class keeps a row
    assert labels[chosen].bincount().min() >= 1
    chosen, _ = pick(4, 2, generator(0, "t"), torch.tensor([0, 10**15, 10**15, 0]))
    assert len(chosen) == 2
