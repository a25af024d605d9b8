"""Sets by name: toys, digits, images and UCI folders; and sources that give the same data again."""

import gzip
import math
import struct
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision.datasets
from downloads import downloaded
from pyroccam import data
from pyroccam.data import PyroccamError
from pyroccam.data.sets.toys import wiggle
from strange_files import in_little_memory, reloaded

RANDOM = np.random.default_rng(0)

IMAGES = {"train": RANDOM.integers(0, 256, (60, 4, 5), np.uint8)}

IMAGES["test"] = RANDOM.integers(0, 256, (20, 4, 5), np.uint8)

LABELS = {s: np.arange(len(x), dtype=np.uint8) % 10 for s, x in IMAGES.items()}


def same(a, b):
    """Whether two data sets agree in every split."""
    return all(
        torch.equal(s, t)
        for split in ("train", "val", "test")
        for s, t in zip(a.split(split), b.split(split), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("spirals", {"n": 300, "noise": 0.1, "train_fraction": 0.5}),
        ("wiggle", {"n": 50}),
        ("digits", {"flatten": True, "test_fraction": 0.5}),
    ],
)
def test_same_seed_same_data_and_source_goes_round(name, options):
    a = data.load(name, seed=5, **options)
    assert same(a, data.load(name, seed=5, **options))
    assert not same(a, data.load(name, seed=6, **options))
    again = reloaded(a)
    assert same(a, again)
    assert again.source == a.source
    assert a.source["name"] == name
    assert a.source["val_fraction"] == 0.1  # a default, written down


def test_digits():
    d = data.load("digits", seed=0)
    assert (d.input_shape, d.classes) == ((1, 8, 8), 10)
    assert (d.N, len(d.x_val), len(d.x_test)) == (1294, 144, 359)
    share = torch.cat([d.y_train, d.y_val, d.y_test]).bincount() / 1797
    assert (d.y_test.bincount() - 359 * share).abs().max() < 1
    # 16 grey levels that come back after standardising
    raw = (d.x_test * d.x_std + d.x_mean) * 16
    assert (raw - raw.round()).abs().max() < 1e-4
    assert (raw.min().round(), raw.max().round()) == (0, 16)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("spiral", {}),
        ("table.parquet", {}),
        ("mien.csv", {}),
        ("spirals", {"size": 3}),
        ("spirals", {"n": 10**12}),
        ("wiggle", {"n": 10**5000}),
        ("spirals", {"arms": 10**12}),
        ("tensors", {}),
    ],
)
def test_names_and_options_that_are_refused(name, options):
    with in_little_memory(), pytest.raises(PyroccamError):
        data.load(name, **options)


# -- toys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arms", "turns", "start"), [(2, 720.0, 0.0), (3, 360.0, 90.0)])
def test_spiral_without_noise_turned_back_is_t_cos_t_sin_t(arms, turns, start):
    x, y = data.spirals(n=600, noise=0.0, turns=turns, start=start, arms=arms)
    point = x.double().numpy()
    t = np.hypot(point[:, 0], point[:, 1])  # the radius is the angle
    assert math.radians(start) - 1e-5 <= t.min()
    assert t.max() <= math.radians(start + turns) + 1e-5
    angle = np.arctan2(point[:, 1], point[:, 0]) - 2 * np.pi * y.numpy() / arms
    np.testing.assert_allclose(np.cos(angle - t), 1, atol=1e-5)


def test_spiral_radius_is_the_root_of_a_uniform_number():
    x, _ = data.spirals(n=4000, noise=0.0, turns=720.0)
    v = (x.double().norm(dim=1) / math.radians(720)).square().sort().values
    gap = (v - torch.arange(0.5, 4000).double() / 4000).abs().max()
    # Kolmogorov: P(sqrt(n) gap > 2.23) < 1e-4, of a fixed seed
    assert gap < 2.23 / math.sqrt(4000)


def test_spiral_noise_is_one_sided_uniform_and_turned_with_its_arm():
    # at turns = 0 a point is its noise alone
    x, y = data.spirals(n=4000, noise=0.2, turns=0.0)
    u = torch.where(y[:, None] == 1, -x, x).double() / 0.2
    assert u.min() > -1e-6
    assert u.max() < 1 + 1e-6
    # four standard errors of the moments of a uniform number
    assert (u.mean(0) - 1 / 2).abs().max() < 4 * math.sqrt(1 / 12 / 4000)
    assert (u.square().mean(0) - 1 / 3).abs().max() < 4 * math.sqrt(4 / 45 / 4000)
    assert abs((u[:, 0] * u[:, 1]).mean() - 1 / 4) < 4 * math.sqrt(7 / 144 / 4000)


def test_wiggle_follows_its_formula():
    x, y = wiggle(n=3000, noise=0.25, seed=4)
    clean = torch.sin(math.pi * x) + 0.2 * torch.cos(4 * math.pi * x) - 0.3 * x
    noise = (y - clean) / 0.25
    z = (x - 5) / 2.5
    for sample in (noise, z):  # standard normal, to four standard errors
        assert abs(sample.mean()) < 4 / math.sqrt(3000)
        assert abs(sample.square().mean() - 1) < 4 * math.sqrt(2 / 3000)
    torch.testing.assert_close(wiggle(50, 0.0)[0], wiggle(50, 1.0)[0])


# -- images ---------------------------------------------------------------------------------------


def idx(array):
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return header + array.tobytes()


def write(folder, packed=True):
    folder.mkdir(parents=True)
    for split, stem in (("train", "train"), ("test", "t10k")):
        for what, array in (("images-idx3", IMAGES[split]), ("labels-idx1", LABELS[split])):
            path = folder / f"{stem}-{what}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "MNIST/raw")
    return tmp_path


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **options):
        raise URLError("no network in tests")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


def state(root):
    return {
        str(p): (p.stat().st_mtime_ns, p.stat().st_size if p.is_file() else 0)
        for p in root.rglob("*")
    }


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files_are_read_and_left_alone(tmp_path, name, kind, packed):
    write(tmp_path / kind / "raw", packed)
    before = state(tmp_path)
    d = data.load(name, data_root=tmp_path, val_fraction=0)
    assert state(tmp_path) == before
    assert (d.name, d.classes, d.input_shape, d.N) == (name, 10, (1, 4, 5), 60)
    pixels = (d.x_test * d.x_std + d.x_mean) * 255
    np.testing.assert_allclose(pixels[:, 0], IMAGES["test"], atol=1e-3)
    assert d.y_test.tolist() == LABELS["test"].tolist()
    np.testing.assert_allclose(d.x_mean, [IMAGES["train"].mean() / 255], rtol=1e-5)
    np.testing.assert_allclose(d.x_std, [IMAGES["train"].std() / 255], rtol=1e-5)
    plain = data.load(name, data_root=tmp_path, val_fraction=0, standardise=False)
    np.testing.assert_allclose(plain.x_train[:, 0] * 255, IMAGES["train"], atol=1e-3)
    flat = data.load(name, data_root=tmp_path, val_fraction=0, flatten=True)
    assert torch.equal(flat.x_train, d.x_train.flatten(1))


def test_subsets_are_seeded_and_stratified(root):
    options = {"data_root": root, "n_train": 20, "n_test": 10, "val_fraction": 0.5}
    a = data.load("mnist", seed=1, **options)
    assert (a.N, len(a.x_val)) == (10, 10)
    for y in (a.y_train, a.y_val, a.y_test):
        assert y.bincount().tolist() == [1] * 10
    assert torch.equal(a.x_train, data.load("mnist", seed=1, **options).x_train)
    assert not torch.equal(a.x_train, data.load("mnist", seed=2, **options).x_train)
    again = reloaded(a)
    assert torch.equal(a.x_train, again.x_train)
    with pytest.raises(PyroccamError):
        data.load("mnist", data_root=root, n_train=61)


TRAIN = "MNIST/raw/train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(idx(IMAGES["train"]))[:-300],
        b"<html>not found</html>",
        gzip.compress(idx(LABELS["train"])),
        gzip.compress(idx(IMAGES["train"])[:-7]),
        gzip.compress(b"\0\0\x08"),
    ],
    # a gzip holds the second it was made in: as ids the contents differ between test workers
    ids=["cut", "html", "labels", "short", "no header"],
)
def test_broken_idx_files(root, content):
    (root / TRAIN).write_bytes(content)
    with pytest.raises(PyroccamError):
        data.load("mnist", data_root=root)


@pytest.mark.parametrize("name", ["kmnist", "svhn", "cifar10", "cifar100"])
def test_nothing_is_fetched_that_may_not_be_or_cannot_be(tmp_path, monkeypatch, name):
    with pytest.raises(PyroccamError):
        data.load(name, data_root=tmp_path)
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **o: pytest.fail("went online"))
    own = data.load("digits")
    for call in (data.load, lambda *a, **o: data.new_rows(*a, own, **o)):
        with pytest.raises(PyroccamError):
            call(name, data_root=tmp_path, download=False)


def test_missing_files_are_downloaded(root, monkeypatch):
    content = (root / TRAIN).read_bytes()
    (root / TRAIN).unlink()

    def fetch(where, train, download):
        assert download
        (Path(where) / TRAIN).write_bytes(content)
        return SimpleNamespace()

    monkeypatch.setattr(torchvision.datasets, "MNIST", fetch)
    assert data.load("mnist", data_root=root).N == 54


def test_files_in_torchvisions_own_formats(tmp_path, monkeypatch):
    images, labels = downloaded(tmp_path, monkeypatch)
    before = state(tmp_path)
    for name, classes in (("cifar100", 100), ("svhn", 10)):
        d = data.load(name, data_root=tmp_path)
        assert (d.classes, d.N, len(d.x_test)) == (classes, 27, 30)
        assert d.y_test.tolist() == labels.tolist()
        scale = (d.x_test.permute(0, 2, 3, 1) * d.x_std + d.x_mean) * 255
        np.testing.assert_allclose(scale, images.transpose(0, 2, 3, 1), atol=1e-3)
    assert state(tmp_path) == before


# -- UCI ------------------------------------------------------------------------------------------


@pytest.fixture
def uci(tmp_path):
    """A set of 30 rows: features 0 and 2, target 1, column 3 unused; two splits."""
    folder = tmp_path / "uci" / "energy"
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).normal(10, 3, (30, 4))
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 2])
    np.savetxt(folder / "index_target.txt", [1])
    for split in range(2):
        order = np.random.default_rng(split).permutation(30)
        np.savetxt(folder / f"index_train_{split}.txt", order[:24])
        np.savetxt(folder / f"index_test_{split}.txt", order[24:])
    return tmp_path


def test_columns_rows_and_split(uci):
    d = data.load("uci/energy", data_root=uci, split=1, seed=0)
    assert (d.name, d.task, d.N, len(d.x_val)) == ("uci/energy", "regression", 22, 2)
    table = np.loadtxt(uci / "uci/energy/data.txt")
    test = table[np.random.default_rng(1).permutation(30)[24:]]
    np.testing.assert_allclose(d.x_test * d.x_std + d.x_mean, test[:, [0, 2]], rtol=1e-5)
    np.testing.assert_allclose(d.y_test * d.y_std + d.y_mean, test[:, [1]], rtol=1e-5)
    other = data.load("uci/energy", data_root=uci, split=0)
    assert not torch.equal(d.x_test, other.x_test)
    again = reloaded(d)
    assert torch.equal(d.x_train, again.x_train)
    assert again.source == d.source


def test_ways_to_name_the_folder(uci, monkeypatch):
    expected = data.load("uci/energy", data_root=uci).x_train
    assert torch.equal(data.load("uci/energy", data_root=str(uci / "uci")).x_train, expected)
    monkeypatch.setenv("PYROCCAM_DATA", str(uci))
    d = data.load("uci/energy")
    assert torch.equal(d.x_train, expected)
    assert "data_root" not in d.source
    (uci / "uci/energy").rename(uci / "uci/wine-quality-red")
    assert data.load("uci/wine").N == data.load("uci/wine-quality-red").N == 22


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("index_train_0.txt", "3\n3\n"),
        ("index_test_0.txt", "\n".join(map(str, range(10)))),
        ("data.txt", "1 2 3 4\n1 2 3\n"),
        ("data.txt", ""),
        ("data.txt", "1 2 3 4\n1 2 nan 4\n"),
        ("index_test_0.txt", None),
    ],
)
def test_broken_files(uci, file, text):
    path = uci / "uci/energy" / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(PyroccamError):
        data.load("uci/energy", data_root=uci)
