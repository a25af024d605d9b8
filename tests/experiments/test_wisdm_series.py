"""WISDM 2019: windows of a series, on small files in the format of the published ones."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from pyroccam import data
from strange_files import reloaded

from experiments.sets import watch

SERIES = "WISDM_2019_raw_watch_accel_A-E.txt.gz"


def recording(
    subject: int, activity: str, count: int = 230, steps: Sequence[tuple[int, float]] = ()
) -> list[str]:
    """Lines of one recording; `steps` are (record, milliseconds before it) unlike 50.

    The axes say where a record comes from: x is its number within the recording, y the
    subject (from 0), z the activity, both small enough to leave the numbers their digits.
    """
    wait = np.full(count, 50.0)
    for record, milliseconds in steps:
        wait[record] = milliseconds
    # half a millisecond of jitter, as watches have
    jitter = np.random.default_rng(subject).uniform(-0.4, 0.4, count)
    time = (10**14 + (wait.cumsum() + jitter) * 1e6).astype(np.int64)
    place = "ABCDEFGH".index(activity)
    axes = f"{subject - 1600},{place / 10:E};"
    return [f"{subject},{activity},{time[k]},{k / 1000},{axes}" for k in range(count)]


def write_series(root: Path, lines: Sequence[str]) -> Path:
    """The file, packed, where it is looked for."""
    path = root / "WISDM" / SERIES
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten subjects, five activities, 31 windows each."""
    folder = tmp_path_factory.mktemp("data")
    people = range(1600, 1610)
    write_series(folder, [line for s in people for a in "ABCDE" for line in recording(s, a)])
    return folder


def load_series(root: Path, **options: object) -> data.Dataset:
    """A few windows on their own scale."""
    chosen = {"n_train": 100, "n_test": 50, "standardise": False, "data_root": root, **options}
    return data.load("experiments.sets:wisdm_series", **chosen)


def origin(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers (windows, 199), subject and activity (windows,) of windows of three axes."""
    axes = x.reshape(len(x), 199, 3).double().numpy()
    assert (axes[:, :, 1:] == axes[:, :1, 1:]).all()  # one subject, one activity
    return axes[:, :, 0] * 1000, axes[:, 0, 1], np.round(axes[:, 0, 2] * 10)


def test_windows_are_199_records_and_the_norm_of_the_next(root: Path) -> None:
    d = load_series(root)
    assert (d.name, d.task, d.input_shape, d.outputs) == ("wisdm-series", "regression", (597,), 1)
    for split in ("train", "val", "test"):
        x, y = d.split(split)
        numbers, subject, activity = origin(x)
        np.testing.assert_allclose(np.diff(numbers), 1, atol=1e-3)
        last = (numbers[:, -1] + 1) / 1000
        expected = np.sqrt(last**2 + subject**2 + (activity / 10) ** 2)
        np.testing.assert_allclose(y[:, 0], expected, rtol=1e-5)


def test_norms_are_those_of_the_axes(root: Path) -> None:
    axes, norms = load_series(root), load_series(root, channels="norm")
    assert norms.input_shape == (199,)
    torch.testing.assert_close(axes.x_train.reshape(-1, 199, 3).norm(dim=2), norms.x_train)
    assert torch.equal(axes.y_train, norms.y_train)


def test_subjects_are_in_one_split_only_and_activities_even(root: Path) -> None:
    d = load_series(root, n_train=102)
    people = [set(origin(d.split(split)[0])[1]) for split in ("train", "val", "test")]
    assert sum(map(len, people)) == len(set.union(*people)) == 10
    assert [len(p) for p in people] == [6, 1, 3]
    drawn = torch.cat([d.x_train, d.x_val])
    assert np.bincount(origin(drawn)[2].astype(int)).tolist() == [21, 21, 20, 20, 20]
    assert np.bincount(origin(d.x_test)[2].astype(int)).tolist() == [10] * 5
    rows = np.stack((*origin(drawn)[1:], origin(drawn)[0][:, 0].round()), 1)
    assert len(np.unique(rows, axis=0)) == 102  # no window twice


def test_windows_of_everybody(root: Path) -> None:
    d = load_series(root, split_by="window", n_train=1000, n_test=500, val_fraction=0.2)
    assert (d.N, len(d.x_val), len(d.x_test)) == (800, 200, 500)
    assert set(origin(d.x_train)[1]) == set(origin(d.x_test)[1])
    rows = torch.cat([d.x_train, d.x_val, d.x_test])
    assert len(rows.unique(dim=0)) == 1500


def test_same_seed_same_windows_and_source_goes_round(root: Path) -> None:
    d = load_series(root, seed=3)
    again = reloaded(d)
    assert torch.equal(d.x_train, again.x_train)
    assert torch.equal(d.y_test, again.y_test)
    assert again.source == d.source
    assert d.source["channels"] == "axes"
    assert not torch.equal(d.x_train, load_series(root, seed=4).x_train)


def test_standardised_by_training_windows(root: Path) -> None:
    d = load_series(root, standardise=True)
    assert d.x_train.mean(0).abs().max() < 1e-4
    torch.testing.assert_close(d.y_train.std(correction=0), torch.tensor(1.0))
    raw = load_series(root)
    torch.testing.assert_close(d.y_test * d.y_std + d.y_mean, raw.y_test)


def ends(root: Path, lines: Sequence[str]) -> list[int]:
    """Rows of the last records of all windows."""
    series = watch._read([write_series(root, lines)])
    return watch._window_ends(series).tolist()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], [*range(199, 450)]),
        ([(210, 250.0)], [*range(199, 210), *range(409, 450)]),  # a gap
        ([(210, 0.0)], [*range(199, 210), *range(409, 450)]),  # a clock that stands still
        ([(210, -900.0)], [*range(199, 210), *range(409, 450)]),  # and one that runs back
        ([(k, 10.0) for k in range(205, 230)], [*range(199, 205), *range(428, 450)]),  # 100 Hz
        ([(210, 40.0)], [*range(199, 210), *range(409, 450)]),
        ([(210, 53.0)], [*range(199, 450)]),  # no more than uneven
        ([(150, 250.0), (300, 250.0)], []),
    ],
)
def test_no_window_over_a_step_of_another_length(
    tmp_path: Path, steps: list[tuple[int, float]], expected: list[int]
) -> None:
    if not expected:
        assert ends(tmp_path, recording(1600, "A", 450, [*steps, (449, 250.0)])) == []
    else:
        assert ends(tmp_path, recording(1600, "A", 450, steps)) == expected


def test_no_window_over_a_change_of_activity_or_subject(tmp_path: Path) -> None:
    # times go on as if nothing had happened
    whole = recording(1600, "A", 600)
    lines = [line.replace("1600,A", "1600,B") for line in whole[210:415]]
    lines = whole[:210] + lines + [line.replace("1600", "1601") for line in whole[415:]]
    assert ends(tmp_path, lines) == [*range(199, 210), *range(409, 415)]
    assert ends(tmp_path, whole[:199] + recording(1600, "B", 199)) == []
    # an activity that is not looked at parts two records of one that is
    other = [line.replace("A", "F") for line in whole[300:302]]
    assert ends(tmp_path, whole[:300] + other + whole[302:402]) == [*range(199, 300)]


@pytest.mark.parametrize(
    "broken",
    [
        "1600,A,100000000000000,1.0,2.0",
        "1600,A,100000000000000,1.0,,3.0;",
        "1600,A,100000000000000,1.0,nan,3.0;",
        "1600,A,100000000000000,1.0,inf,3.0;",
        "1600,A,1OO000000000000,1.0,2.0,3.0;",
        "x,A,100000000000000,1.0,2.0,3.0;",
        "1600,,100000000000000,1.0,2.0,3.0;",
        "1600,A,100000000000000,1.0,2.0,3.0;1600,A,100000050000000,1.0,2.0,3.0;",
        '"1600,A,100000000000000,1.0,2.0,3.0;',
        ",,;",
        "",
    ],
)
def test_a_line_that_is_no_record_is_left_out_and_ends_windows(tmp_path: Path, broken: str) -> None:
    lines = recording(1600, "A", 450)
    lines[210] = broken
    # one record less from there on
    assert ends(tmp_path, lines) == [*range(199, 210), *range(409, 449)]
    between = recording(1600, "A", 450)
    between.insert(210, broken)
    assert ends(tmp_path, between) == [*range(199, 450)]
