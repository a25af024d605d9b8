"""What holds of any file: good ones go round to the bit, and options are in their ranges."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from pyroccam import data
from pyroccam.data import PyroccamError, ranges
from pyroccam.data.sets import load_digits, load_images, load_spirals, load_wiggle
from pyroccam.data.streaming import load_stream
from pyroccam.data.tables import load_csv, load_npz

FIXED = {"deadline": None, "derandomize": True, "database": None,
         "suppress_health_check": list(HealthCheck)}  # fmt: skip
FEW, MANY = settings(max_examples=20, **FIXED), settings(max_examples=60, **FIXED)

VALUES = st.floats(-1e6, 1e6, allow_subnormal=False)

NAMES = st.text("ab,\"' .é\n", max_size=4).map(lambda text: f"n{text}".strip())

LABELS = st.sampled_from(["cat", "dog", "a, b", 'say "x"', "1.0", "é"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("properties")


def tables(rows=8):
    shapes = st.tuples(st.integers(rows, 25), st.integers(2, 4))
    return arrays_of.arrays(np.float64, shapes, elements=VALUES)


def names_of(table, drawn):
    count = table.shape[1]
    return drawn.draw(st.lists(NAMES, min_size=count, max_size=count, unique=True), "names")


def write_csv(path, names, table, target):
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = zip(table.tolist(), target, strict=True)
        csv.writer(file).writerows([[*names, "target"], *([*row, y] for row, y in rows)])
    return path


def targets(rows):
    return [k + 0.25 for k in range(rows)]


def on_scale_of(own, raw):
    """From the means and deviations of the record, in float64."""
    record = own.record()
    with np.errstate(over="ignore"):
        return ((raw - record["x_mean"]) / record["x_std"]).astype(np.float32)


@FEW
@given(tables(), st.data())
def test_a_table_goes_round(folder, table, drawn):
    names = names_of(table, drawn)
    path = write_csv(folder / "a.csv", names, table, targets(len(table)))
    own = data.load(path)
    assert own.columns == tuple(names)
    assert data.load(path).digest == own.digest
    assert own.differences(json.loads(json.dumps(own.record()))) == []
    new = data.new_rows(path, own)
    assert np.array_equal(new.x_test.numpy(), on_scale_of(own, table))
    y = new.y_test[:, 0].numpy() * own.y_std.numpy() + own.y_mean.numpy()
    np.testing.assert_allclose(y, targets(len(table)), rtol=1e-5, atol=1e-5)
    assert int(own.seen(new.x_test).sum()) >= own.N + len(own.x_val)


@FEW
@given(tables(), st.data())
def test_labels_go_round_by_their_names(folder, table, drawn):
    size = len(table)
    labels = drawn.draw(st.lists(LABELS, min_size=size, max_size=size), "labels")
    assume(len({*labels}) > 1)
    assume({*labels} != {"1.0"})
    path = write_csv(folder / "a.csv", names_of(table, drawn), table, labels)
    own = data.load(path)
    new = data.new_rows(path, own)
    assert [own.class_names[k] for k in new.y_test] == labels
    some = labels.index(labels[-1])
    path = write_csv(folder / "b.csv", list(own.columns), table[some : some + 1], labels[-1:])
    assert own.class_names[data.new_rows(path, own).y_test[0]] == labels[-1]


NUMBERS = st.sampled_from(["f8", "f4", "f2", "i8", "i2", "u1", ">f8", ">i4", "u8", "?"])


@FEW
@given(tables(), NUMBERS, st.data())
def test_arrays_go_round_and_no_change_passes_unseen(folder, table, kind, drawn):
    table = np.clip(np.abs(table), 0, 200).astype(kind)
    cut = drawn.draw(st.integers(4, len(table) - 2))
    y = np.arange(len(table)) / 7
    given_ = {"x_train": table[:cut], "y_train": y[:cut], "x_test": table[cut:], "y_test": y[cut:]}

    def loaded(**change):
        save = drawn.draw(st.sampled_from([np.savez, np.savez_compressed]))
        order = drawn.draw(st.sampled_from([np.ascontiguousarray, np.asfortranarray]))
        save(folder / "a.npz", **{k: order(v) for k, v in {**given_, **change}.items()})
        return data.load(folder / "a.npz")

    own = loaded()
    assert own.digest == loaded().digest == data.Dataset.from_tensors(**given_).digest
    raw = table.astype(np.float64)
    assert np.array_equal(own.x_test.numpy(), on_scale_of(own, raw[cut:]))
    new = data.new_rows(folder / "a.npz", own)
    assert np.array_equal(new.x_test.numpy(), own.x_test.numpy())
    np.savez(folder / "b.npz", x=table, y=y)
    assert own.seen(data.new_rows(folder / "b.npz", own).x_test)[:cut].all()

    for part in ("x_train", "x_test", "y_train", "y_test"):
        array = given_[part]
        place = tuple(drawn.draw(st.integers(0, size - 1)) for size in array.shape)
        changed = array.copy()
        changed[place] = not changed[place] if kind == "?" and "x" in part else changed[place] + 1
        assert loaded(**{part: changed}).differences(own.record())
        order = np.roll(np.arange(len(array)), 1)
        if not np.array_equal(array[order], array):
            assert loaded(**{part: array[order]}).differences(own.record())
    if not np.array_equal(table[:, ::-1], table):
        mirrored = {k: given_[k][:, ::-1] for k in ("x_train", "x_test")}
        assert loaded(**mirrored).differences(own.record())


def outcome(call):
    """What it gives, or what it says of what it cannot do; any other error is a failure."""
    try:
        return call(), ""
    except PyroccamError as error:
        return None, str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


OPTIONS = [
    (name, option, kind)
    for name, function in (
        ("spirals", load_spirals), ("wiggle", load_wiggle), ("digits", load_digits),
        ("a.csv", load_csv), ("a.npz", load_npz), ("mnist", load_images), ("rows", load_stream),
    )
    for option, kind in ranges.kinds_of(function.__wrapped__).items()
    if option not in ("name", "kind", "which")
]  # fmt: skip


@MANY
@given(JSON, st.sampled_from(OPTIONS))
def test_an_option_outside_of_its_range_is_refused(folder, value, one):
    name, option, kind = one
    place = folder / "options"
    (place / "rows").mkdir(parents=True, exist_ok=True)
    np.save(place / "rows" / "x.npy", np.ones((9, 2)))
    assume(not ranges.allows(kind, value))
    path = str(place / name) if "." in name or name == "rows" else name
    Path(place / name).touch()
    said = outcome(lambda: data.load(path, **{option: value}))[1]
    assert option in said
    assert said.isprintable()
