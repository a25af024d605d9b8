"""Sets that are streamed, by a path or a function; their weights, several inputs, and messages."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pyroccam import data
from pyroccam.data.errors import PyroccamError
from pyroccam.data.registry import absolute, is_code, is_own, options_of
from torchvision.transforms import v2

N = 120


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 2, (N, 3)).astype(np.float32)
    return x, rng.integers(0, 3, N)


def shards(folder, x, y, count=2):
    folder.mkdir(parents=True)
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


def whole(parts):
    return tuple(torch.cat(t) for t in zip(*parts, strict=True))


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
    with pytest.raises(PyroccamError):
        data.load(folder, noise=1)
    with pytest.raises(PyroccamError):
        data.load(folder, val="a")
    with pytest.raises(PyroccamError):
        data.load(folder, size=8)


def test_what_was_set_aside_is_part_of_the_digest(tmp_path):
    """A row for tests may not change unseen, though nothing was trained on it."""
    x, y = arrays()
    one = data.stream(shards(tmp_path / "a", x, y), val=30, test=30)
    changed = x.copy()
    where = int(
        (torch.from_numpy(x) - one.x_test[0] * one.x_std - one.x_mean).abs().sum(1).argmin()
    )
    changed[where, 0] += 1
    other = data.stream(shards(tmp_path / "b", changed, y), val=30, test=30)
    assert other.summary.digest == one.summary.digest
    assert other.digest != one.digest


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


OWN = """
import torch
from pyroccam import data
from helpers_of_rows import rows

def made(*, seed=0, n=50, scale=1.0, wrap=dict):
    x, y = rows(n, seed)
    return data.stream([(x[i] * scale, int(y[i])) for i in range(n)], seed=seed, workers=0)

def held(n: int):
    x, y = rows(n, 0)
    return data.Dataset.from_tensors(x, y, x, y)

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


def test_a_function_makes_a_set_from_a_module_or_a_file(tmp_path, monkeypatch):
    (tmp_path / "sets_of_mine.py").write_text(OWN)
    (tmp_path / "helpers_of_rows.py").write_text(HELPERS)
    before = [*sys.path]
    file = f"{tmp_path}/sets_of_mine.py:made"
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
    mine = (f"sets_of_mine:{name}" for name in ("held", "none", "nothing", "number", "by_place"))
    for name in (*mine, "nowhere_at_all:made", f"{tmp_path}/nowhere.py:made"):
        with pytest.raises(PyroccamError):
            data.load(name)
    with pytest.raises(ValueError, match="of one's own"):
        data.load("sets_of_mine:broken")


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


# -- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "balanced"), [(True, False), (False, True), (True, True)])
def test_weights_are_those_of_rows_in_memory(tmp_path, own, balanced):
    x, y = arrays()
    weights = np.random.default_rng(1).random(N).astype(np.float32) + 0.1
    path = table(tmp_path / "t.parquet", x, y, w=weights)
    named = {"weights": "w"} if own else {"inputs": ["f0", "f1", "f2"]}
    asked = {"class_weights": "balanced"} if balanced else {}
    one = data.load(path, target="label", val=0, test=20, **named, **asked)
    assert one.weighted
    assert one.classes == 3
    alone, labels = whole(one.parts("train", weighted=False))
    _, targets = whole(one.parts("train"))
    back = alone * one.x_std + one.x_mean
    which = torch.cdist(back.double(), torch.from_numpy(x).double()).argmin(1).numpy()
    memory = data.Dataset.from_tensors(
        x[which], y[which], x[:9], y[:9], val_fraction=0, weights=weights[which] if own else None
    )
    memory = memory.with_class_weights("balanced") if balanced else memory
    torch.testing.assert_close(targets, memory.targets, rtol=1e-5, atol=1e-6)
    assert labels.tolist() == y[which].tolist()
    assert float(targets[:, 1].mean()) == pytest.approx(1, abs=1e-5)
    rows, _, of_batch = whole(one.batches(0, 1, [(0, 50), (50, 100)]))
    assert torch.equal(of_batch, targets[rows])
    for got, expected in zip(one.parted(of_batch), (labels[rows], targets[rows, 1]), strict=True):
        assert torch.equal(got, expected)
    assert one.take("train", torch.arange(5))[1].tolist() == labels[:5].tolist()
    some = one.sample(50)
    assert some.weights.shape == (50,)
    with pytest.raises(PyroccamError):
        _ = one.weights
    with pytest.raises(PyroccamError):
        one.refuse_weights("Something")


@pytest.mark.parametrize("targets", [1, 2])
def test_rows_that_are_given_beside_weighted_ones_count_as_one(targets):
    """Arrays have no weights; what names them has its own."""
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(50, 3))), torch.from_numpy(rng.normal(size=(50, 2)))
    y = y[:, 0] if targets == 1 else y
    items = [{"x": x[i], "y": y[i], "w": float(1 + i % 4)} for i in range(50)]
    how = {"target": "y", "weights": "w", "test": 0, "workers": 0}
    for val, expected in (
        ((x[:8], y[:8]), torch.ones(8)),
        (items[:8], torch.tensor([1.0, 2.0, 3.0, 4.0] * 2)),
    ):
        one = data.stream(items, val=val, **how)
        assert one.outputs == targets
        assert one.y_val.shape == (8, targets)
        mean = float(np.mean([item["w"] for item in items]))
        torch.testing.assert_close(one.val_weights, expected / mean)


def test_weights_by_class_twice_and_wrong_ones(tmp_path):
    x, y = arrays()
    folder = shards(tmp_path / "rows", x, y)
    one = data.load(folder)
    twice = one.with_class_weights([1, 2, 4]).with_class_weights("balanced")
    _, targets = whole(twice.parts("train"))
    totals = torch.zeros(3).index_add_(0, targets[:, 0].long(), targets[:, 1])
    torch.testing.assert_close(totals, torch.full((3,), one.N / 3), rtol=1e-5, atol=1e-4)
    assert twice.val_weights.shape == (len(one.x_val),)
    with pytest.raises(PyroccamError):
        one.with_class_weights("even")
    with pytest.raises(PyroccamError):
        one.with_class_weights([1, 2])
    with pytest.raises(PyroccamError):
        data.load(folder, weights="w")
    bad = np.ones(N)
    bad[57] = -1
    path = table(tmp_path / "t.parquet", x, y, w=bad)
    with pytest.raises(PyroccamError):
        data.load(path, target="label", weights="w")
    with pytest.raises(PyroccamError):
        data.load(path, target="label", weights="v")
    with pytest.raises(PyroccamError):
        data.stream([(torch.zeros(2), 0)] * 9, weights="w", workers=0)


# -- several inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_several_inputs_are_those_of_rows_in_memory(named):
    rng = np.random.default_rng(0)
    words = torch.from_numpy(rng.integers(0, 9, (N, 4)))
    mask = torch.from_numpy(rng.random((N, 4)) > 0.3)
    sound = torch.from_numpy(rng.normal(3, 2, (N, 2, 5)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 2, N))

    def inputs(i):
        parts = {"words": words[i], "mask": mask[i], "sound": sound[i]}
        return parts if named else tuple(parts.values())

    items = [(inputs(i), int(y[i])) for i in range(N)]
    one = data.stream(items, val=(inputs(slice(0, 10)), y[:10]), test=0, workers=0)
    memory = data.Dataset.from_tensors(inputs(slice(None)), y, inputs(slice(0, 10)), y[:10],
                                       val_fraction=0)  # fmt: skip
    assert one.fields == memory.fields
    assert one.shapes == memory.shapes
    x, _ = whole(one.parts("train"))
    torch.testing.assert_close(x, memory.x_train, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one.x_val, memory.x_test, rtol=1e-5, atol=1e-5)
    for got, expected in zip(one.scaling, memory.scaling, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)
    assert one.record()["fields"] == memory.record()["fields"]

    def louder(given):
        parts = dict(given) if named else dict(enumerate(given))
        key = "sound" if named else 2
        parts[key] = parts[key] * 2
        return parts if named else tuple(parts.values())

    loud = data.stream(items, val=0, test=0, workers=0, batch_transform=louder)
    ((rows, batch, _),) = loud.batches(0, 0, [(0, N)])
    mean, std = (s.float() for s in loud.scaling[:2])
    expected = memory.x_train[rows] * std + mean
    expected[:, 8:] *= 2
    torch.testing.assert_close(batch * std + mean, expected, rtol=1e-4, atol=1e-4)


def test_several_inputs_are_not_written_to_files(tmp_path):
    items = [({"a": torch.zeros(2), "b": torch.ones(3)}, k % 2) for k in range(9)]
    with pytest.raises(PyroccamError):
        data.write_rows(items, tmp_path / "rows", workers=0)


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [3, 77, 118])
def test_rows_in_messages_are_those_of_the_source(tmp_path, row):
    """Whether the row trains, validates or tests, and in whichever file it is."""
    x, y = arrays()
    x[row, 1] = np.nan
    folder = shards(tmp_path / "rows", x, y, 3)
    for how in ({}, {"held": 16}, {"val": 0, "test": 0}, {"val": 60, "test": 50}):
        with pytest.raises(PyroccamError):
            data.stream(folder, seed=1, **how)
    x[row, 1] = 0
    with pytest.raises(PyroccamError):
        data.stream(
            shards(tmp_path / "labels", x, np.where(np.arange(N) == row, -4, y)),
            task="classification",
        )


def test_a_summary_of_other_rows_is_refused(tmp_path):
    x, y = arrays()
    one = data.stream(shards(tmp_path / "a", x, y), val=10, test=10)
    again = data.stream(tmp_path / "a", val=10, test=10, summary=one.summary)
    assert again.digest == one.digest
    for change in (x + 1, x.astype(np.float64), x[:, :2]):
        other = shards(tmp_path / f"{change.dtype}-{change.shape[1]}-{change[0, 0]}", change, y)
        with pytest.raises(PyroccamError):
            data.stream(other, val=10, test=10, summary=one.summary)
    with pytest.raises(PyroccamError):
        data.stream(tmp_path / "a", val=10, test=10, seed=1, summary=one.summary)
    path = table(tmp_path / "t.parquet", x, y)
    named = data.stream(path, target="label", inputs=["f0", "f1"])
    with pytest.raises(PyroccamError):
        data.stream(path, target="label", inputs=["f1", "f0"], summary=named.summary)


def test_transformations_that_leave_the_units_of_bytes_are_refused():
    rng = np.random.default_rng(0)
    items = [(torch.from_numpy(rng.integers(0, 256, (3, 6, 6), np.uint8)), k % 2)
             for k in range(80)]  # fmt: skip
    scale, keep = v2.ToDtype(torch.float32, scale=True), v2.ToDtype(torch.float32)
    normalise = v2.Compose([scale, v2.Normalize([0.5] * 3, [0.25] * 3)])
    for wrong in (scale, normalise, lambda images: images.float() + 1e5):
        for standardise in (True, False):
            with pytest.raises(PyroccamError):
                data.stream(items, batch_transform=wrong, standardise=standardise, workers=0)
    right = data.stream(items, batch_transform=v2.Compose([keep, v2.RandomHorizontalFlip(1.0)]),
                        workers=0)  # fmt: skip
    ((rows, batch, _),) = right.batches(0, 0, [(0, right.N)])
    plain, _ = right.take("train", rows)
    torch.testing.assert_close(batch, plain.flip(-1))
