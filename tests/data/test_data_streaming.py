"""Streamed data: the same rows as in memory, each once an epoch, in little memory."""

import itertools

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data.errors import PyroccamError
from pyroccam.data.streaming.arrays import Arrays
from pyroccam.data.streaming.shuffle import Shuffle, cut, edges_of
from pyroccam.data.streaming.summary import Moments
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

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


def parquet(path, x, y, groups):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    columns = {f"f{k}": x[:, k] for k in range(x.shape[1])}
    pq.write_table(pa.table({**columns, "label": y}), path, row_group_size=groups)
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


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return zip(torch.from_numpy(self.x), self.y.tolist(), strict=True)


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
    if kind == "workers":
        return data.stream(Rows(x, y), **{**small, "workers": 1})
    given = {"val": (x[:60], y[:60]), "test": (x[60:100], y[60:100]), "held": 64}
    x, y = x[100:], y[100:]
    if kind == "iterable":
        return data.stream(Stream(x, y), rows=len(x), **given)
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return data.stream(DataLoader(dataset, 33, shuffle=kind == "shuffled"), **given)


KINDS = ["npy", "shards", "parquet", "items", "workers", "iterable", "loader", "shuffled"]


def bounds(size=64):
    edges = [*range(0, 600, size), 600]
    return list(itertools.pairwise(edges))


def whole(parts):
    return tuple(torch.cat(t) for t in zip(*parts, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_memory_each_once(tmp_path, kind):
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
        if kind == "shuffled":  # by its own loader, in every pass anew
            assert torch.equal(batch[:, 0].sort().values, trained[:, 0].sort().values)
            continue
        assert rows.tolist() != list(range(600))
        assert torch.equal(batch, trained[rows])
        assert torch.equal(targets, labels[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_taken_up_where_it_stood(tmp_path, kind):
    streamed = sources(tmp_path, kind, *arrays())
    all_of_it = list(streamed.batches(5, 2, bounds()))
    again = list(sources(tmp_path, kind, *arrays()).batches(5, 2, bounds()[4:]))
    for one, other in zip(all_of_it[4:], again, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)
    other = next(streamed.batches(6, 2, bounds()))
    assert not torch.equal(all_of_it[0][0], other[0]) or kind == "shuffled"


@pytest.mark.parametrize("kind", ["npy", "shards", "parquet", "items"])
def test_some_rows_are_taken_by_their_numbers(tmp_path, kind):
    streamed = sources(tmp_path, kind, *arrays())
    x, y = whole(streamed.parts("train"))
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


def test_training_reads_no_row_twice_and_no_row_that_was_set_aside():
    rows = Rows(*arrays())
    streamed = data.stream(rows, val=60, test=40, workers=0)
    apart = set(range(N)) - set(streamed.reader.places(np.arange(600)).tolist())
    assert len(apart) == 100
    rows.asked.clear()
    list(streamed.batches(0, 0, bounds()))
    assert sorted(rows.asked) == sorted(set(range(N)) - apart)


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


def test_blocks_are_shuffled_and_rows_within_what_is_held():
    shuffle = Shuffle(edges_of(10_000, 100), 1_000)
    pieces = list(shuffle.pieces(0, 0))
    assert all(len(one.rows) == 1_000 for one in pieces)
    for one in pieces:  # ten whole blocks, in an order that is not theirs
        assert len({*(one.rows // 100).tolist()}) == 10
        assert sorted(one.order.tolist()) == list(range(1_000))
        assert one.order.tolist() != list(range(1_000))
    assert pieces[3].first == 3_000
    again = next(shuffle.pieces(0, 0, 3_999))
    assert np.array_equal(again.rows, pieces[3].rows)
    assert np.array_equal(again.order, pieces[3].order)


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


def test_there_are_no_more_blocks_for_more_rows():
    assert len(edges_of(100, 1)) == 101
    assert len(edges_of(10**9, 1)) <= 2**18 + 2


def test_batches_are_cut_across_chunks():
    chunks = ((torch.arange(a, b),) for a, b in ((10, 13), (13, 14), (14, 30)))
    found = [part.tolist() for (part,) in cut(chunks, 10, [(12, 15), (15, 16), (16, 30)])]
    assert found == [[12, 13, 14], [15], list(range(16, 30))]


@pytest.mark.parametrize("dtype", [">f4", "<f8", "u2", "u1", "?", "f2"])
def test_files_of_any_kind_of_numbers(tmp_path, dtype):
    x = (np.arange(60).reshape(20, 3) % 2).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(20))
    got, y = Arrays(tmp_path).read(np.array([7, 8, 2]))
    assert np.array_equal(got.numpy().astype(float), x[[7, 8, 2]].astype(float))
    assert y.tolist() == [7, 8, 2]


def test_what_a_pass_found_can_be_given():
    rows = Rows(*arrays())
    first = data.stream(rows, val=60, test=40, workers=0)
    rows.asked.clear()
    again = data.stream(rows, val=60, test=40, workers=0, summary=first.summary)
    assert len(rows.asked) < N + 101 + 1  # examples, validation and tests, and one to look at
    assert again.digest == first.digest
    with pytest.raises(PyroccamError):
        data.stream(rows, val=20, test=40, workers=0, summary=first.summary)


def test_the_digest_is_of_every_row():
    x, y = arrays()
    one = data.stream(Rows(x, y), workers=0)
    again = data.stream(Rows(x.copy(), y), workers=0)
    x[int(one.reader.places(np.array([N // 2]))[0]), 0] += 1
    other = data.stream(Rows(x, y), workers=0)
    assert one.digest == again.digest != other.digest
    assert one.differences(again.record()) == []


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


def test_what_needs_all_rows_at_once_is_refused_with_a_way_out():
    streamed = data.stream(Rows(*arrays()), workers=0)
    with pytest.raises(PyroccamError):
        streamed.split("train")
    for refused in (streamed.all_rows, lambda: streamed.targets):
        with pytest.raises(PyroccamError):
            refused()


def test_streams_without_places_are_refused_what_they_cannot_give():
    x, y = arrays()
    stream = Stream(x, y)
    none = {"val": 0, "test": 0}
    with pytest.raises(PyroccamError):
        data.stream(stream, **none)
    with pytest.raises(PyroccamError):
        data.stream(stream, rows=N)
    with pytest.raises(PyroccamError):
        data.stream(stream, rows=N + 1, **none)
    with pytest.raises(PyroccamError):
        data.stream(stream, rows=N - 1, **none)
    with pytest.raises(PyroccamError):
        data.stream(iter(stream), rows=N, **none)
    streamed = data.stream(stream, rows=N, **none)
    all_of_it, labels = whole(streamed.parts("train"))
    places = torch.tensor([N - 1, 3, 300, 3, 0])  # for which a pass is gone through
    got, of_them = streamed.take("train", places)
    assert torch.equal(got, all_of_it[places])
    assert torch.equal(of_them, labels[places])
    assert torch.equal(streamed.sample(N).x_train, all_of_it)


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
    ],
)
def test_rows_that_cannot_be_used_are_named_before_a_training(tmp_path, change):
    x, y = change(*arrays())
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(PyroccamError):
        data.stream(tmp_path, held=64)


def test_files_that_are_missing_cut_short_or_none_are_refused(tmp_path):
    with pytest.raises(PyroccamError):
        data.stream(tmp_path / "nowhere")
    np.save(tmp_path / "x.npy", np.zeros((50, 3)))
    with pytest.raises(PyroccamError):
        data.stream(tmp_path)
    np.save(tmp_path / "y.npy", np.arange(50) % 2)
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-8])
    with pytest.raises(PyroccamError):
        data.stream(tmp_path)
    (tmp_path / "x.npy").write_bytes(b"no array")
    with pytest.raises(PyroccamError):
        data.stream(tmp_path)


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


def test_dicts_and_items_that_make_no_batch():
    x, y = arrays()
    items = [{"a": x[i, 0], "b": x[i, 1], "label": int(y[i])} for i in range(N)]
    streamed = data.stream(items, target="label", workers=0)
    assert streamed.input_shape == (2,)
    with pytest.raises(PyroccamError):
        data.stream(items, target="c", workers=0)
    with pytest.raises(PyroccamError):
        data.stream([(object(), 0)] * 30, workers=0)
    with pytest.raises(PyroccamError):
        data.stream([])
    with pytest.raises(PyroccamError):
        data.stream(items, target="label", held=0)
    with pytest.raises(PyroccamError):
        data.stream(items, target="label", rows=9)
    with pytest.raises(PyroccamError):
        data.stream(items, target="label", val=650, test=49)
    with pytest.raises(PyroccamError):
        data.stream(type("Endless", (), {"__getitem__": lambda self, i: (x[i], 0)})())


def test_batches_of_rows_in_memory_are_words_of_the_same_contract():
    x, y = arrays()
    memory = data.Dataset.from_tensors(x, y, x[:9], y[:9])
    order = memory.order(4, 1)
    assert torch.equal(order.sort().values, torch.arange(memory.N))
    places = [(0, 50), (50, 120)]
    for (rows, inputs, targets), (start, end) in zip(
        memory.batches(4, 1, places), places, strict=True
    ):
        assert torch.equal(rows, order[start:end])
        assert torch.equal(inputs, memory.x_train[rows])
        assert torch.equal(targets, memory.y_train[rows])
    weighted = memory.with_class_weights()
    for got, expected in zip(weighted.head(7), (weighted.x_train, weighted.targets), strict=True):
        assert torch.equal(got, expected[:7])
    ((inputs, targets),) = weighted.parts("train")
    assert targets.shape == (memory.N, 2)
    assert memory.edges is None
    assert not memory.streamed


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("kind", ["items", "iterable", "parquet"])
def test_rows_are_written_to_files_once(tmp_path, kind, shuffled):
    x, y = arrays()
    options = {}
    if kind == "items":
        source = Rows(x, y)
    elif kind == "iterable":
        source, options = Stream(x, y), {"rows": N}
    else:
        source, options = parquet(tmp_path / "t.parquet", x, y, 50), {"target": "label"}
    folder = data.write_rows(source, tmp_path / "new" / "rows", shuffled=shuffled, **options)
    assert sorted(p.name for p in folder.iterdir()) == ["x.npy", "y.npy"]
    written, labels = (np.load(folder / f"{name}.npy") for name in "xy")
    which = written[:, 0].astype(int) - 1000
    assert (which.tolist() == list(range(N))) is not shuffled
    assert np.array_equal(written, x[which])
    assert np.array_equal(labels, y[which])
    assert data.stream(folder).counts["train"] == 560
    with pytest.raises(PyroccamError):
        data.write_rows(source, folder, **options)


def set_of(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(1, 2, (n, 3)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy((np.arange(n) % 3).astype(np.int64))


def test_a_transformation_keeps_the_rows_of_its_batch():
    dataset = TensorDataset(*set_of())
    for wrong in (lambda b: b[1:], lambda b: None, lambda b: b / 0.0):
        with pytest.raises(PyroccamError):
            data.stream(dataset, batch_transform=wrong, workers=0)
    sneaky = data.stream(dataset, batch_transform=lambda b: b[1:] if len(b) == 32 else b, workers=0)
    with pytest.raises(PyroccamError):
        list(sneaky.batches(0, 0, [(0, 32)]))


def test_labels_beyond_the_names_are_found_in_the_pass():
    x, y = set_of()
    y[300] = 3
    named = {"class_names": ["a", "b", "c"], "val": 0, "test": 0, "workers": 0}
    with pytest.raises(PyroccamError):
        data.stream(TensorDataset(x, y), **named)


def test_a_loader_with_a_generator_of_its_own_repeats_an_epoch():
    dataset = TensorDataset(*set_of())
    loader = DataLoader(dataset, 50, shuffle=True, generator=torch.Generator().manual_seed(0))
    rows = data.stream(loader, rows=400, val=0, test=0, task="classification", classes=3)
    bounds = [(k, k + 100) for k in range(0, 400, 100)]
    whole = [x for _, x, _ in rows.batches(0, 2, bounds)]
    again = [x for _, x, _ in rows.batches(0, 2, bounds[:2])]
    again += [x for _, x, _ in rows.batches(0, 2, bounds[2:])]
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    assert len(torch.cat(whole).unique(dim=0)) == 400
    other = torch.cat([x for _, x, _ in rows.batches(0, 3, bounds)])
    assert not torch.equal(torch.cat(whole), other)
    assert rows.edges.tolist() == [0, 400]


def test_truth_values_are_numbers(tmp_path):
    x, y = set_of()
    np.save(tmp_path / "x.npy", (x > 1).numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    rows = data.stream(tmp_path, val=0.1, test=0.1)
    ((_, batch, _),) = rows.batches(0, 0, [(0, rows.N)])
    assert batch.mean().abs() < 1e-5
    with pytest.raises(PyroccamError):
        data.stream(tmp_path, inputs=["a"], val=0.1, test=0.1)


def test_a_loader_is_no_set_of_validation_rows():
    dataset = TensorDataset(*set_of())
    with pytest.raises(PyroccamError):
        data.stream(dataset, val=DataLoader(dataset), test=0, workers=0)
    with pytest.raises(PyroccamError):
        data.stream(dataset, val=None, workers=0)
