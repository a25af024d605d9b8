"""Streamed data: the same rows as in memory, each once an epoch, in little memory."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from pyroccam import data
from pyroccam.data import PyroccamError
from pyroccam.data.streaming.shuffle import Shuffle, edges_of
from pyroccam.data.streaming.summary import Moments
from pyroccam.inference.training.replicate import fingerprint
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

N = 700


def arrays(seed=0, dtype=np.float32):
    """Inputs, of which the first is 1000 and the number of the row, and the last constant; and
    labels."""
    rng = np.random.default_rng(seed)
    x = np.stack([1000 + np.arange(N), rng.normal(size=N), np.full(N, 7.0)], 1).astype(dtype)
    return x, rng.integers(0, 3, N)


def folder(tmp_path, x, y, shards=1):
    for k, (a, b) in enumerate(zip(*(np.array_split(t, shards) for t in (x, y)), strict=True)):
        np.save(tmp_path / f"x-{k:02}.npy", a)
        np.save(tmp_path / f"y-{k:02}.npy", b)
    return tmp_path


def parquet(path, x, y, groups, **more):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    columns = {f"f{k}": x[:, k] for k in range(x.shape[1])}
    pq.write_table(pa.table({**columns, "label": y, **more}), path, row_group_size=groups)
    return path


class Rows:
    """A map-style data set that counts what it is asked for."""

    def __init__(self, x, y):
        self.x, self.y, self.asked = x, y, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.asked.append(i)
        return torch.from_numpy(self.x[i]), int(self.y[i])

    def __getitems__(self, wanted):
        return [self[i] for i in wanted]


def sources(tmp_path, kind, x, y):
    """Each kind of source, in small pieces, with 60 rows for validation and 40 for tests."""
    small = {"held": 64, "val": 60, "test": 40, "seed": 3, "workers": 0}
    if kind == "npy":
        return data.stream(folder(tmp_path, x, y), **small)
    if kind == "shards":
        return data.stream(folder(tmp_path, x, y, 3), **small)
    if kind == "parquet":
        return data.stream(parquet(tmp_path / "t.parquet", x, y, 50), target="label", **small)
    if kind == "items":
        return data.stream(Rows(x, y), **small)
    return data.stream(Rows(x, y), **{**small, "workers": 1})


KINDS = ["workers", "npy", "shards", "parquet", "items"]


def bounds(size=64):
    edges = [*range(0, 600, size), 600]
    return list(itertools.pairwise(edges))


def whole(parts):
    return tuple(torch.cat(t) for t in zip(*parts, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_memory_each_once_an_epoch(tmp_path, kind):
    x, y = arrays()
    streamed = sources(tmp_path, kind, x, y)
    assert streamed.counts == {"train": 600, "val": 60, "test": 40}
    trained, labels = whole(streamed.parts("train"))
    splits = [(trained, labels), streamed.split("val"), streamed.split("test")]
    mean, std = streamed.scaling[:2]
    which = [(part.double() * std + mean)[:, 0].round().long() - 1000 for part, _ in splits]
    assert torch.equal(torch.cat(which).sort().values, torch.arange(N))
    # The set in memory that has the same rows in the same splits.
    memory = data.Dataset.from_tensors(
        x[which[0]], y[which[0]], x[which[2]], y[which[2]], val_fraction=0
    )
    for own, part in zip(streamed.scaling, memory.scaling, strict=True):
        torch.testing.assert_close(own, part, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(trained, memory.x_train, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(splits[2][0], memory.x_test, rtol=1e-6, atol=1e-6)
    for (_, targets), rows in zip(splits, which, strict=True):
        assert torch.equal(targets, torch.from_numpy(y)[rows])
    for epoch in (0, 1):
        rows, batch, targets = whole(streamed.batches(5, epoch, bounds()))
        assert torch.equal(rows.sort().values, torch.arange(600))
        assert rows.tolist() != list(range(600))
        assert torch.equal(batch, trained[rows])
        assert torch.equal(targets, labels[rows])

    all_of_it = list(streamed.batches(5, 2, bounds()))  # which is taken up where it stood
    again = list(sources(tmp_path, kind, *arrays()).batches(5, 2, bounds()[4:]))
    for one, other in zip(all_of_it[4:], again, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)
    other, *_ = streamed.batches(6, 2, bounds())
    assert not torch.equal(all_of_it[0][0], other[0])
    # Some rows by their numbers.
    x, y = trained, labels
    places = torch.tensor([599, 0, 17, 18, 300])
    for split, expected in (("train", (x, y)), ("val", (streamed.x_val, streamed.y_val))):
        own = places % len(expected[0])
        for got, whole_part in zip(streamed.take(split, own), expected, strict=True):
            assert torch.equal(got, whole_part[own])
    some = streamed.sample(50)
    assert some.N == 50
    assert not some.streamed
    assert torch.equal(some.x_train[[0, -1]], x[[0, -1]])
    assert torch.equal(some.x_test, streamed.x_test)


def test_regression_targets_are_scaled_and_counts_are_not():
    x, _ = arrays()
    y = (x[:, :2] * 3 - 5).astype(np.float64)
    streamed = data.stream(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), workers=0)
    assert streamed.task == "regression"
    _, targets = whole(streamed.parts("train"))
    torch.testing.assert_close(targets.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.std(0, correction=0), torch.ones(2))
    known = data.marginal.Marginal.of(targets, None)
    torch.testing.assert_close(streamed.marginal.mean, known.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(streamed.marginal.variance, known.variance, rtol=1e-6, atol=0)
    counts = np.arange(N) % 7
    streamed = data.stream(
        TensorDataset(torch.from_numpy(x), torch.from_numpy(counts)), task="counts", workers=0
    )
    assert {*whole(streamed.parts("train"))[1].unique().tolist()} == {*map(float, range(7))}


def test_moments_of_parts_are_those_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    x = 1e6 + torch.randn(997, 3, 4, generator=generator, dtype=torch.float64)
    found = Moments()
    for part in x.split([1, 500, 3, 493]):
        found.add(part)
    mean, std = found.statistics()
    torch.testing.assert_close(mean, x.mean((0, 2)), rtol=1e-14, atol=0)
    torch.testing.assert_close(std, x.std((0, 2), correction=0), rtol=1e-10, atol=0)


def test_the_variance_of_a_batch_is_what_is_said_of_it():
    """Sorted rows, the worst that there are: beside a permutation of all rows the mean of a batch
    varies more by the share of the variance between blocks, times B / m."""
    values = torch.linspace(-1, 1, 20_000, dtype=torch.float64)
    block, held, size = 100, 2_000, 50
    shuffle = Shuffle(edges_of(len(values), block), held)
    means = []
    for seed in range(300):
        piece = next(shuffle.pieces(seed, 0))
        means.append(values[torch.from_numpy(piece.rows[piece.order[:size]])].mean())
    found = torch.stack(means).var() / (values.var() / size)
    between = values.view(-1, block).mean(1).var(correction=0) / values.var(correction=0)
    expected = 1 + between * size / (held // block)
    assert expected > 3
    # the variance of 300 draws is off by 8 %, the approximation for few blocks by a tenth
    assert abs(float(found / expected) - 1) < 0.35


def test_transformations_of_batches_come_before_scaling_and_in_training_only():
    x = torch.arange(40 * 12, dtype=torch.uint8).view(40, 3, 4) % 100
    dataset = TensorDataset(x, torch.arange(40) % 2)
    seen = []

    def flip(images):
        seen.append(images.dtype)
        return images.flip(-1)

    plain = data.stream(dataset, workers=0)
    flipped = data.stream(dataset, batch_transform=flip, workers=0)
    rows, images, _ = next(flipped.batches(0, 0, [(0, 8)]))
    expected, _ = plain.take("train", rows)
    assert torch.equal(images, expected.flip(-1))
    assert {*seen} == {torch.uint8}
    assert torch.equal(whole(flipped.parts("train"))[0], whole(plain.parts("train"))[0])
    with pytest.raises(PyroccamError):
        data.stream(dataset, batch_transform=lambda images: images[..., :3], workers=0)


def test_the_digest_is_of_every_row_and_files_are_gone_through_once(tmp_path):
    """Those that were set aside too; not of what is held."""
    x, y = arrays()
    rows = Rows(x, y)
    how = {"val": 60, "test": 40, "workers": 0}
    first = data.stream(rows, **how)
    again = data.stream(rows, **how, held=33)
    assert again.digest == first.digest
    assert first.differences(again.record()) == []
    for place in (first.reader.places(np.array([N // 2]))[0], int(first.x_test[0, 0]) % N):
        changed = x.copy()
        changed[int(place), 1] += 1
        assert data.stream(Rows(changed, y), **how).digest != first.digest
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    of_files = data.stream(tmp_path, **how)
    assert data.stream(tmp_path, **how).summary is of_files.summary
    assert data.stream(tmp_path, **how, seed=1).summary is not of_files.summary
    np.save(tmp_path / "x.npy", x[::-1])
    assert data.stream(tmp_path, **how).digest != of_files.digest


def test_streams_are_refused_what_they_cannot_give():
    x, y = arrays()
    streamed = data.stream(Rows(x, y), val=0, test=0, workers=0)
    noise = [(torch.zeros(2), k % 2) for k in range(30)]
    named = [{"a": x[i, 0], "label": int(y[i])} for i in range(N)]
    rows = TensorDataset(*map(torch.from_numpy, (x, y)))
    for ask in (
        lambda: streamed.split("train"),
        lambda: streamed.targets,
        lambda: streamed.order(0, 0),
        lambda: data.stream(DataLoader(rows)),
        lambda: data.stream(iter(named), target="label"),
        lambda: data.stream(named, target="c", workers=0),
        lambda: data.stream(named, target="label", val=650, test=49),
        lambda: data.stream([(object(), 0)] * 30, workers=0),
        lambda: data.stream([(np.ones(3, ">f4"), 0)] * 30, workers=0),
        lambda: data.stream([(np.ma.masked_equal(np.ones(3), 1), 0)] * 30, workers=0),
        lambda: data.stream([]),
        lambda: data.stream(noise, weights="w", workers=0),
        lambda: data.stream(type("Endless", (), {"__getitem__": lambda self, i: (x[i], 0)})()),
        lambda: data.stream(rows, val=DataLoader(rows), test=0, workers=0),
        lambda: data.stream(rows, val=None, workers=0),
        lambda: data.stream(rows, class_names=["a", "b"], val=0, test=0, workers=0),
        lambda: data.stream(rows, batch_transform=lambda b: b[1:], workers=0),
        lambda: data.stream(rows, batch_transform=lambda b: b / 0.0, workers=0),
    ):
        with pytest.raises(PyroccamError):
            ask()
    sneaky = data.stream(rows, batch_transform=lambda b: b[1:] if len(b) == 32 else b, workers=0)
    with pytest.raises(PyroccamError):
        list(sneaky.batches(0, 0, [(0, 32)]))


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (np.where(np.arange(N)[:, None] == 650, np.nan, x), y),
        lambda x, y: (x, np.where(np.arange(N) == 650, 9, y)),
        lambda x, y: (x, y - 1),
        lambda x, y: (x[:0], y[:0]),
        lambda x, y: (x, y[:-1]),
        lambda x, y: (np.asfortranarray(x), y),
        lambda x, y: (x.astype("U5"), y),
        lambda x, y: (x, None),
    ],
)
def test_files_that_cannot_be_used(tmp_path, change):
    for name, array in zip("xy", change(*arrays()), strict=True):
        if array is not None:
            np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(PyroccamError):
        data.stream(tmp_path, held=64)


def test_tables_say_what_they_lack(tmp_path):
    x, y = arrays()
    path = parquet(tmp_path / "t.parquet", x, y, 100)
    with pytest.raises(PyroccamError):
        data.stream(path)
    with pytest.raises(PyroccamError):
        data.stream(path, target="label", inputs="nothing")
    streamed = data.stream(path, target="label", inputs=["f2", "f0"])
    assert streamed.input_shape == (2,)
    path = parquet(tmp_path / "names.parquet", x, np.array(["b", "a", "c"])[y], 100)
    with pytest.raises(PyroccamError):
        data.stream(path, target="label")
    named = data.stream(path, target="label", class_names=["a", "b", "c"])
    assert named.classes == 3
    np.testing.assert_array_equal(
        named.summary.marginal.counts.numpy() + np.bincount(named.y_val, minlength=3)
        + np.bincount(named.y_test, minlength=3),
        np.bincount(y)[[1, 0, 2]],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [">f4", "u2", "?", "f2"])
def test_files_of_any_kind_of_numbers(tmp_path, dtype):
    x = (np.arange(60).reshape(20, 3) % 2).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(20) % 2)
    rows = data.stream(tmp_path)
    ((_, batch, _),) = rows.batches(0, 0, [(0, rows.N)])
    back = (batch * rows.x_std + rows.x_mean).round()
    places = rows.reader.places(np.arange(rows.N))
    assert np.array_equal(back.sum(0), x[places].astype(float).sum(0))
    assert batch.mean().abs() < 1e-5
    with pytest.raises(PyroccamError):
        data.stream(tmp_path, inputs=["a"])


def items(n=60, count=3, **more):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(n, count, generator=noise)
    return [{"x": x[i], "y": i % 2} | {k: v[i] for k, v in more.items()} for i in range(n)]


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


# -- weights and several inputs -------------------------------------------------------------------


@pytest.mark.parametrize(("own", "balanced"), [(True, False), (False, True), (True, True)])
def test_weights_are_those_of_rows_in_memory(tmp_path, own, balanced):
    x, y = (part[:120] for part in arrays())
    weights = np.random.default_rng(1).random(120).astype(np.float32) + 0.1
    path = parquet(tmp_path / "t.parquet", x, y, 50, w=weights)
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
    assert one.take("train", torch.arange(5))[1].tolist() == labels[:5].tolist()
    some = one.sample(50)
    assert some.weights.shape == (50,)
    assert float(some.weights.mean()) == pytest.approx(1)
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
    one = data.stream(Rows(x, y), workers=0)
    twice = one.with_class_weights([1, 2, 4]).with_class_weights("balanced")
    _, targets = whole(twice.parts("train"))
    totals = torch.zeros(3).index_add_(0, targets[:, 0].long(), targets[:, 1])
    torch.testing.assert_close(totals, torch.full((3,), one.N / 3), rtol=1e-5, atol=1e-4)
    assert twice.val_weights.shape == (len(one.x_val),)
    for wrong in ("even", [1, 2]):
        with pytest.raises(PyroccamError):
            one.with_class_weights(wrong)
    bad = np.ones(N)
    bad[57] = -1
    path = parquet(tmp_path / "t.parquet", x, y, 50, w=bad)
    for name in "wv":
        with pytest.raises(PyroccamError):
            data.load(path, target="label", weights=name)


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


# -- other libraries ------------------------------------------------------------------------------


def shades(count=24):
    """Grey images, each of one shade: that of its number."""
    return np.arange(count, dtype=np.uint8)[:, None, None] * np.full((1, 6, 5), 10, np.uint8)


@pytest.fixture
def image_folder(tmp_path):
    for k, image in enumerate(shades()):
        (tmp_path / f"class{k % 2}").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / f"class{k % 2}" / f"{k:02}.png")
    return tmp_path


def test_random_transforms_of_items_do_not_depend_on_who_reads_them(image_folder):
    transform = v2.Compose([v2.ToImage(), v2.Grayscale(), v2.RandomErasing(0.5, value=255)])

    def batches(workers, first=0):
        folder = ImageFolder(image_folder, transform)
        streamed = data.stream(folder, val=4, test=4, classes=2, workers=workers)
        x = [batch for _, batch, _ in streamed.batches(0, 1, [(0, 5), (5, 10), (10, 16)][first:])]
        mean, std = streamed.scaling[:2]
        return [(part.double() * std + mean).round() for part in x]

    before = torch.get_rng_state()
    here, there = batches(0), batches(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert torch.equal(batches(0, 2)[0], here[2])
    assert any(bool((part == 255).any()) for part in here)
