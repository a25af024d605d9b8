"""Sets that are streamed, by a path or a function, and files where something small went wrong."""

import json
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pyroccam import data
from pyroccam.data import PyroccamError, TooLarge, allowing, is_code, is_own, options_of
from pyroccam.data.formats import is_image_folder
from pyroccam.data.registry import absolute
from pyroccam.data.streaming.placed import _Reading

N = 120


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 2, (N, 3)).astype(np.float32)
    return x, rng.integers(0, 3, N)


def shards(folder, x, y, count=2):
    folder.mkdir(parents=True, exist_ok=True)
    for k, part in enumerate(np.array_split(np.arange(len(x)), count)):
        np.save(folder / f"x-{k:02}.npy", x[part])
        np.save(folder / f"y-{k:02}.npy", y[part])
    return folder


def table(path, x, y, **more):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {f"f{k}": x[:, k] for k in range(x.shape[1])} | {"label": y} | more
    parquet.write_table(pa.table(columns), path, row_group_size=50)
    return path


def images(folder, sizes=((8, 8),), classes=("b", "a")):
    rng = np.random.default_rng(0)
    for k in range(20):
        for name in classes:
            (folder / name).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (*sizes[k % len(sizes)], 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return folder


def test_a_folder_of_arrays_is_loaded_by_its_path_and_again_by_its_source(tmp_path):
    x, y = arrays()
    folder = shards(tmp_path / "rows", x, y)
    one = data.load(folder, seed=3, val=30, test=0.25)
    assert one.streamed
    assert one.counts == {"train": 60, "val": 30, "test": 30}
    assert one.name == "rows"
    assert json.loads(json.dumps(one.source)) == one.source
    again = data.load(**one.source)
    assert again.digest == one.digest
    assert again.differences(one.record()) == []
    assert data.load(folder, seed=4, val=30, test=0.25).digest != one.digest
    assert one.differences(data.load(folder, seed=3, val=31, test=0.25).record())
    for wrong in ({"noise": 1}, {"val": "a"}, {"size": 8}, {"weights": "w"}):
        with pytest.raises(PyroccamError):
            data.load(folder, **wrong)
    named = data.load(folder, class_names="a, b,c")
    assert named.class_names == ("a", "b", "c")
    assert data.new_rows(folder, like=named).y_test.tolist() == y.tolist()


def test_a_table_has_names_by_which_new_rows_are_read(tmp_path):
    x, y = arrays()
    one = data.load(table(tmp_path / "t.parquet", x, y), target="label")
    assert one.columns == ("f0", "f1", "f2")
    assert one.target == "label"
    turned = x[:, ::-1].astype(float)
    for new in (
        table(tmp_path / "new.parquet", x[:40], y[:40]),
        tmp_path / "new.csv",
    ):
        if new.suffix == ".csv":
            lines = [",".join(map(str, [*a, b])) for a, b in zip(turned[:40], y[:40], strict=True)]
            new.write_text("\n".join(["f2,f1,f0,label", *lines]))
        rows = data.new_rows(new, like=one)
        assert rows.streamed
        torch.testing.assert_close(
            rows.x_test, ((torch.from_numpy(x[:40]) - one.x_mean) / one.x_std).float()
        )
        assert rows.y_test.tolist() == y[:40].tolist()
        assert 20 < int(one.seen(rows.x_test).sum()) <= 40
        assert data.far_off(rows) == []
    far = data.new_rows(table(tmp_path / "far.parquet", x + 1000, y), like=one)
    assert len(data.far_off(far)) == 3
    with pytest.raises(PyroccamError):
        data.new_rows(table(tmp_path / "less.parquet", x[:, :2], y), like=one)


def test_images_are_rows_of_bytes_with_the_classes_of_their_folders(tmp_path):
    folder = images(tmp_path / "pictures")
    one = data.load(folder, val=8, test=8, workers=0)
    assert one.class_names == ("a", "b")
    assert one.input_shape == (3, 8, 8)
    assert one.counts["train"] == 24
    pixels = np.array(Image.open(folder / "b" / "19.png"))
    image = torch.from_numpy(pixels).permute(2, 0, 1).float()
    every = torch.cat([one.x_val, one.x_test, *(x for x, _ in one.parts("train"))])
    labels = torch.cat([one.y_val, one.y_test, *(y for _, y in one.parts("train"))])
    back = every * one.x_std[:, None, None] + one.x_mean[:, None, None]
    found = (back - image).abs().flatten(1).amax(1) < 1e-3
    assert labels[found].tolist() == [1]
    odd = images(tmp_path / "odd", sizes=((8, 8), (9, 12)))
    for workers in (0, 1):
        with pytest.raises(PyroccamError):
            data.load(odd, workers=workers)
    same = data.load(odd, size=6, workers=0)
    assert same.input_shape == (3, 6, 6)
    assert same.source["size"] == 6
    new = data.new_rows(images(tmp_path / "new", classes=("b",)), like=one)
    assert new.y_test.tolist() == [1] * 20
    with pytest.raises(PyroccamError):
        data.new_rows(images(tmp_path / "other", classes=("c",)), like=one)


def test_folders_of_splits(tmp_path):
    x, y = arrays()
    for part, rows in (("train", slice(0, 80)), ("test", slice(80, N))):
        shards(tmp_path / "whole" / part, x[rows], y[rows])
    one = data.load(tmp_path / "whole", val=10)
    assert one.counts == {"train": 70, "val": 10, "test": 40}
    torch.testing.assert_close(
        one.x_test, ((torch.from_numpy(x[80:]) - one.x_mean) / one.x_std).float()
    )
    with pytest.raises(PyroccamError):
        data.load(tmp_path / "whole", test=0.5)
    new = data.new_rows(tmp_path / "whole", like=one)  # its tests
    assert torch.equal(new.x_test, one.x_test)
    shards(tmp_path / "new" / "train", x, y)
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "new", like=one)
    shards(tmp_path / "whole" / "validation", x, y)  # which is not passed over
    with pytest.raises(PyroccamError):
        data.load(tmp_path / "whole")


OWN = """
import functools
import torch
from pyroccam import data
from helpers_of_rows import rows

def made(*, seed=0, n=50, scale=1.0, wrap=dict):
    x, y = rows(n, seed)
    return data.stream([(x[i] * scale, int(y[i])) for i in range(n)], seed=seed, workers=0)

def held(n: int):
    x, y = rows(n, 0)
    return data.Dataset.from_tensors(x, y, x, y)

def second(*, seed=0):
    first = late(seed=seed)
    held(20)
    return first

def late(*, seed=0):
    from helper_of_late import N
    return made(seed=seed, n=N)

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

def none():
    return 3

def broken():
    raise ValueError("of one's own")

by_place = lambda n, /: None
number = 3
"""


HELPERS = """
import torch

def rows(n, seed):
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=noise), torch.arange(n) % 2
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "sets_of_mine.py").write_text(OWN)
    (tmp_path / "helpers_of_rows.py").write_text(HELPERS)
    (tmp_path / "helper_of_late.py").write_text("N = 50")
    return f"{tmp_path}/sets_of_mine.py"


def test_a_function_makes_a_set_from_a_module_or_a_file(mine, tmp_path, monkeypatch):
    before = [*sys.path]
    file = f"{mine}:made"
    one = data.load(file, seed=2, n=60)
    assert sys.path == before
    assert one.source == {"name": file, "seed": 2, "n": 60, "scale": 1.0}  # what JSON can hold
    assert data.load(**one.source).digest == one.digest
    assert data.load(file, seed=3, n=60).digest != one.digest
    new = data.new_rows(file, like=one)  # the very test rows
    assert torch.equal(new.x_test, one.x_test)
    monkeypatch.chdir(tmp_path)
    module = data.load("sets_of_mine:made", seed=2, n=60)
    assert module.digest == one.digest
    assert absolute("sets_of_mine.py:made") == file
    assert options_of("sets_of_mine:made") == ("seed", "n", "scale", "wrap")
    assert data.load("sets_of_mine:held", n=30, seed=1).source == {"name": "sets_of_mine:held",
                                                                   "n": 30}  # fmt: skip
    odd = (f"sets_of_mine:{name}" for name in ("held", "none", "nothing", "number", "by_place"))
    for name in (*odd, "nowhere_at_all:made", f"{tmp_path}/nowhere.py:made"):
        with pytest.raises(PyroccamError):
            data.load(name)
    with pytest.raises(ValueError, match="of one's own"):
        data.load("sets_of_mine:broken")


def test_a_function_finds_what_lies_beside_it_and_its_rows_are_its_own(mine):
    before = [*sys.path]
    one = data.load(f"{mine}:late")
    assert sys.path == before
    new = data.new_rows(f"{mine}:second", like=one)
    assert torch.equal(new.x_test, one.x_test)
    for _ in range(2):  # made the first time alone
        new = data.new_rows(f"{mine}:kept", like=one)
        torch.testing.assert_close(new.x_test, one.x_test)
        assert torch.equal(new.y_test, one.y_test)


def test_rows_of_a_class_in_a_file_are_read_in_another_process(mine):
    """One that is not forked knows the file by nothing but what it is sent."""
    one = data.load(f"{mine}:of_class")
    kind = type(one.reader.source.dataset)
    sent = pickle.dumps(_Reading(one.reader.source))
    del sys.modules[kind.__module__]
    found = pickle.loads(sent).source
    assert type(found.dataset) is not kind
    x, y = found.read(np.array([5, 4]))
    assert x.tolist() == [[5, 2], [4, 1]]
    assert y.tolist() == [1, 0]


def test_what_is_a_persons_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shards(tmp_path / "digits", *arrays())
    assert is_code("a.b:c")
    assert is_code("/x/a.py:c")
    assert not any(map(is_code, ("digits", "uci/boston", "a:b:c:", "a-b:c", "C:\\rows", "x.csv")))
    assert not is_own("digits")  # the name comes before a folder
    assert is_own("./digits")
    assert absolute("./digits") == str(tmp_path / "digits")
    assert absolute("uci/boston") == "uci/boston"
    assert data.load("digits").name == "digits"
    assert data.load("./digits").streamed
    (tmp_path / "empty").mkdir()
    with pytest.raises(PyroccamError):
        data.load("empty")
    with pytest.raises(PyroccamError):
        data.load("nowhere")


@pytest.mark.parametrize("row", [3, 77, 118])
def test_rows_in_messages_are_those_of_the_source(tmp_path, row):
    """Whether the row trains, validates or tests, and in whichever file it is."""
    x, y = arrays()
    x[row, 1] = np.nan
    folder = shards(tmp_path / "rows", x, y, 3)
    for how in ({}, {"held": 16}, {"val": 0, "test": 0}, {"val": 60, "test": 50}):
        with pytest.raises(PyroccamError, match=rf"row {row}\b"):
            data.stream(folder, seed=1, **how)


# -- where something small went wrong -------------------------------------------------------------


def test_images_that_cannot_be_used(tmp_path):
    for kind in (np.uint16, np.int32, np.float32):
        folder = images(tmp_path / kind.__name__)
        Image.fromarray(np.arange(64).reshape(8, 8).astype(kind) * 100).save(folder / "a/deep.tif")
        with pytest.raises(PyroccamError):
            data.load(folder, workers=0)
    images(tmp_path / "strips", sizes=((1, 4000),))
    with allowing("8MB"), pytest.raises(TooLarge):
        data.load(tmp_path / "strips", size=64, workers=0)


def test_hidden_folders_are_no_classes_and_a_class_may_be_called_train(tmp_path):
    folder = images(tmp_path / "traffic", classes=("bus", "train"))
    (folder / ".ipynb_checkpoints").mkdir()
    assert data.load(folder, workers=0).class_names == ("bus", "train")
    images(tmp_path / "hidden", classes=(".a", ".b"))
    with pytest.raises(PyroccamError):
        data.load(tmp_path / "hidden")


def test_pictures_beside_rows_are_no_rows_and_one_in_many_folders_makes_no_set(tmp_path):
    x, y = arrays()
    folder = images(shards(tmp_path / "rows", x, y), classes=("plots",))
    like = data.load(folder)
    assert data.new_rows(folder, like=like).x_test.shape == (N, 3)
    images(tmp_path / "disk", classes=("a",))
    assert is_image_folder(tmp_path / "disk")
    for name in ("bin", "etc", "lib"):
        (tmp_path / "disk" / name).mkdir()
    assert not is_image_folder(tmp_path / "disk")
    folder = images(tmp_path / "tables", classes=("plots",))
    table(folder / "a.parquet", x, y)
    assert data.new_rows(folder, like=data.load(folder, target="label")).x_test.shape == (N, 3)


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
