"""Streams where something small went wrong: what is read, what is refused and in which words."""

import os
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pyroccam import data
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.data.formats.image_folders import is_image_folder
from pyroccam.data.limits import allowing
from pyroccam.data.streaming import making
from pyroccam.data.streaming.placed import _Reading
from pyroccam.data.streaming.summary import summarise
from pyroccam.inference.training.replicate import fingerprint


def arrays(folder, n=120, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    x = rng.normal(3, 2, (n, 3)).astype(np.float32)
    y = np.arange(n) % 3
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return folder


def images(folder, classes=("a", "b"), count=6, size=(8, 8)):
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            pixels = rng.integers(0, 256, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return folder


def items(n=60, count=3, **more):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(n, count, generator=noise)
    return [{"x": x[i], "y": i % 2} | {k: v[i] for k, v in more.items()} for i in range(n)]


@pytest.mark.parametrize(
    ("kind", "mode"), [(np.uint16, "I;16"), (np.int32, "I"), (np.float32, "F")]
)
def test_images_of_more_than_bytes_are_refused(tmp_path, kind, mode):
    folder = images(tmp_path / "pictures")
    pixels = np.arange(64).reshape(8, 8).astype(kind) * 100
    file = folder / "a" / "deep.tif"
    Image.fromarray(pixels).save(file)
    with pytest.raises(PyroccamError):
        data.load(folder, workers=0)


def test_a_long_strip_asks_for_what_it_becomes(tmp_path):
    images(tmp_path / "strips", size=(1, 4000), count=4)
    with allowing("8MB"), pytest.raises(TooLarge):
        data.load(tmp_path / "strips", size=64, workers=0)


def test_hidden_folders_are_no_classes_and_a_class_may_be_called_train(tmp_path):
    folder = images(tmp_path / "traffic", classes=("bus", "train"))
    (folder / ".ipynb_checkpoints").mkdir()
    one = data.load(folder, workers=0)
    assert one.class_names == ("bus", "train")
    images(tmp_path / "hidden", classes=(".a", ".b"))
    with pytest.raises(PyroccamError):
        data.load(tmp_path / "hidden")


def test_other_sets_beside_train_are_not_passed_over(tmp_path):
    arrays(tmp_path / "rows" / "train")
    arrays(tmp_path / "rows" / "validation")
    (tmp_path / "rows" / "notes").mkdir()
    with pytest.raises(PyroccamError):
        data.load(tmp_path / "rows")


def test_new_rows_of_a_folder_of_splits_are_its_tests(tmp_path):
    like = data.load(arrays(tmp_path / "like"))
    arrays(tmp_path / "new" / "train", seed=1)
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "new", like=like)
    arrays(tmp_path / "new" / "test", 7, seed=2)
    new = data.new_rows(tmp_path / "new", like=like)
    expected = torch.from_numpy(np.load(tmp_path / "new" / "test" / "x.npy"))
    torch.testing.assert_close(new.x_test * like.x_std + like.x_mean, expected)


def test_pictures_beside_rows_are_no_rows(tmp_path):
    folder = images(arrays(tmp_path / "rows"), classes=("plots",))
    like = data.load(folder)
    assert data.new_rows(folder, like=like).x_test.shape == (120, 3)
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    tables = images(tmp_path / "tables", classes=("plots",))
    parquet.write_table(
        pa.table({"a": np.arange(40.0), "y": np.arange(40.0)}), tables / "a.parquet"
    )
    like = data.load(tables, target="y")
    assert like.columns == ("a",)
    assert data.new_rows(tables, like=like).x_test.shape == (40, 1)


def test_one_new_row_is_enough(tmp_path):
    like = data.load(arrays(tmp_path / "like"))
    assert len(data.new_rows(arrays(tmp_path / "new", 1), like=like).x_test) == 1


def test_a_missing_target_is_named_by_its_row_and_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    y = [1.5] * 100
    y[73] = y[90] = None
    parquet.write_table(pa.table({"a": np.arange(100.0), "y": y}), path, row_group_size=50)
    with pytest.raises(PyroccamError):
        data.load(path, target="y")


# -- fingerprints ---------------------------------------------------------------------------------


def test_what_a_fit_knows_its_rows_by():
    """Rows of another scale, of other weights or transformed ones are no data to go on with."""

    def mark(one):
        return fingerprint(*one.marks)

    how = {"target": "y", "val": 0, "test": 0, "workers": 0}
    one = data.stream(items(), **how)
    marks = {
        mark(one),
        mark(data.stream(items(), **how, standardise=False)),
        mark(data.stream(items(), **how, batch_transform=lambda x: x + 0.01)),
        mark(one.with_class_weights([1, 2])),
        mark(one.with_class_weights([1, 3])),
    }
    assert len(marks) == 5
    assert mark(data.stream(items(), **how)) == mark(one)


def test_what_is_held_is_no_part_of_the_digest(tmp_path, monkeypatch):
    passes = []
    monkeypatch.setattr(making, "summarise", lambda *a, **k: passes.append(1) or summarise(*a, **k))
    folder = arrays(tmp_path / "rows")
    found = [data.load(folder, held=held) for held in (1, 7, 40, 100, 40)]
    assert len({one.digest for one in found}) == 1
    assert len({one.summary.first for one in found}) == 1
    assert len(passes) == 4  # each held rows' moments are summed in another order
    again = data.stream(folder, held=3, summary=found[-1].summary)
    assert again.digest == found[0].digest


# -- rows and their names -------------------------------------------------------------------------


def test_weights_of_a_sample_have_a_mean_of_one():
    weights = torch.cat([torch.full((30,), 1.0), torch.full((30,), 5.0)])
    weights[::7] += 3
    one = data.stream(items(w=weights), target="y", weights="w", test=0, val=10, workers=0)
    some = one.sample(7)
    assert float(some.weights.mean()) == pytest.approx(1)
    x, own = one.take("train", torch.tensor([0, one.N - 1]))[0], some.weights
    ratio = [weights[int((torch.stack([i["x"] for i in items()]) - r).abs().sum(1).argmin())]
             for r in x * one.x_std + one.x_mean]  # fmt: skip
    assert float(own[0] / own[-1]) == pytest.approx(float(ratio[0] / ratio[1]))


def test_a_row_that_is_a_list_is_one_input():
    rows = [([0.1 * i, 0.2, float(i % 5)], i % 2) for i in range(40)]
    one = data.stream(rows, workers=0)
    assert one.fields is None
    assert one.input_shape == (3,)
    assert one.sample(5).x_train.shape == (5, 3)


def test_a_text_with_commas_is_a_list_of_names(tmp_path):
    x, y = torch.randn(9, 2), torch.arange(9) % 3
    made = data.Dataset.from_tensors(x, y, x, y, class_names="a, b,c")
    assert made.class_names == ("a", "b", "c")
    rows = data.load(arrays(tmp_path / "rows"), class_names="a,b,c")
    assert rows.class_names == ("a", "b", "c")
    with pytest.raises(PyroccamError):
        data.Dataset.from_tensors(x, y, x, y, class_names="abc")


def test_no_rows_of_whole_numbers_are_packed():
    fields = data.fields.Fields.of("x", {"a": torch.arange(4), "b": torch.ones(4)})
    empty = fields.pack("x", {"a": torch.arange(0), "b": torch.ones(0)})
    assert empty.shape == (0, 2)


# -- code of one's own ----------------------------------------------------------------------------

OWN = """
import functools
import torch
from pyroccam import data

def late(*, seed=0):
    from helper_of_late import N
    x = torch.arange(3.0 * N).reshape(N, 3)
    return data.stream([(x[i], i % 2) for i in range(N)], seed=seed, workers=0)

def second(*, seed=0):
    first = late(seed=seed)
    data.Dataset.from_tensors(*[torch.randn(20, 3), torch.arange(20) % 2] * 2)
    return first

class Rows:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.tensor([1.0 * i, i % 3]), i % 2

def of_class():
    return data.stream(Rows(), workers=0)

@functools.cache
def kept():
    return late()
"""


def test_a_function_finds_what_lies_beside_it_and_its_rows_are_its_own(tmp_path):
    (tmp_path / "late_rows.py").write_text(OWN)
    (tmp_path / "helper_of_late.py").write_text("N = 50")
    before = [*sys.path]
    one = data.load(f"{tmp_path}/late_rows.py:late")
    assert sys.path == before
    new = data.new_rows(f"{tmp_path}/late_rows.py:second", like=one)
    assert torch.equal(new.x_test, one.x_test)
    assert torch.equal(new.y_test, one.y_test)
    for _ in range(2):  # made the first time alone
        new = data.new_rows(f"{tmp_path}/late_rows.py:kept", like=one)
        torch.testing.assert_close(new.x_test, one.x_test)
        assert torch.equal(new.y_test, one.y_test)


def test_rows_of_a_class_in_a_file_are_read_in_another_process(tmp_path):
    """One that is not forked knows the file by nothing but what it is sent."""
    (tmp_path / "rows_of_class.py").write_text(OWN)
    one = data.load(f"{tmp_path}/rows_of_class.py:of_class")
    kind = type(one.reader.source.dataset)
    sent = pickle.dumps(_Reading(one.reader.source))
    del sys.modules[kind.__module__]
    found = pickle.loads(sent).source
    assert type(found.dataset) is not kind
    x, y = found.read(np.array([5, 4]))
    assert x.tolist() == [[5, 2], [4, 1]]
    assert y.tolist() == [1, 0]


def test_a_picture_in_one_of_many_folders_makes_no_set(tmp_path):
    """A whole disk would be read for it."""
    images(tmp_path, classes=("a",))
    assert is_image_folder(tmp_path)
    for name in ("bin", "etc", "lib"):
        (tmp_path / name).mkdir()
    assert not is_image_folder(tmp_path)


@pytest.mark.parametrize("kind", ["npy", "png", "parquet"])
def test_a_pipe_among_the_files_of_a_stream_is_refused(kind, tmp_path):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    made = {"npy": arrays, "png": images, "parquet": lambda folder: folder}[kind](tmp_path / "set")
    made.mkdir(exist_ok=True)
    path = made / {"npy": "x.npy", "png": "a/0.png", "parquet": "a.parquet"}[kind]
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(PyroccamError):
        data.load(made, workers=0)


@pytest.mark.parametrize(
    "header", ["{", "[" * 999, "{'descr': '<f4', 'fortran_order': False, 'shape': (-9, 3), }"]
)
def test_a_header_that_is_broken_is_said(header, tmp_path):
    folder = arrays(tmp_path)
    content = (folder / "x.npy").read_bytes()
    (folder / "x.npy").write_bytes(content[:10] + header.encode().ljust(118) + content[128:])
    with pytest.raises(PyroccamError):
        data.load(folder)


def test_a_row_asks_before_it_is_read(tmp_path):
    for name in "xy":
        np.save(tmp_path / f"{name}.npy", np.zeros((3, 2**17)))
    with allowing("1MB"), pytest.raises(TooLarge):
        data.load(tmp_path)


@pytest.mark.parametrize("kind", [np.complex64, ">f4"])
def test_items_of_types_that_torch_takes_for_others_are_refused(kind):
    rows = [(np.ones(3).astype(kind), k % 2) for k in range(30)]
    with pytest.raises(data.DataError):
        data.stream(rows, workers=0)
    with pytest.raises(PyroccamError):
        data.stream([(np.ma.masked_equal(x, 1), y) for x, y in rows], workers=0)


def test_rows_are_written_through_no_link(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x.part").symlink_to(tmp_path / "theirs")
    data.write_rows(arrays(tmp_path / "from", 60), tmp_path / "set")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert len(np.load(tmp_path / "set" / "x.npy")) == 60


@pytest.mark.parametrize(("numbers", "ok"), [
    (["00", "02"], False), (["1", "2", "4"], False), (["0", "1"], True),
    (["20240131", "20240201"], True),
])  # fmt: skip
def test_a_shard_that_is_missing_is_noticed(tmp_path, numbers, ok):
    for number in numbers:
        np.save(tmp_path / f"x-{number}.npy", np.random.default_rng(0).normal(size=(20, 3)))
        np.save(tmp_path / f"y-{number}.npy", np.arange(20) % 2)
    if ok:
        assert sum(data.load(tmp_path).counts.values()) == 20 * len(numbers)
        return
    with pytest.raises(PyroccamError):
        data.load(tmp_path)
