"""Image files: idx, and what torchvision hands over. Nothing is downloaded."""

import gzip
import pickle
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import scipy.io
import torch
import torchvision.datasets
from pyroccam import data
from pyroccam.data.errors import PyroccamError
from strange_files import reloaded

RANDOM = np.random.default_rng(0)
IMAGES = {"train": RANDOM.integers(0, 256, (60, 4, 5), np.uint8)}
IMAGES["test"] = RANDOM.integers(0, 256, (20, 4, 5), np.uint8)
LABELS = {s: np.arange(len(x), dtype=np.uint8) % 10 for s, x in IMAGES.items()}


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return header + array.tobytes()


def write(folder: Path, packed: bool = True) -> None:
    folder.mkdir(parents=True)
    for split, stem in (("train", "train"), ("test", "t10k")):
        for what, array in (("images-idx3", IMAGES[split]), ("labels-idx1", LABELS[split])):
            path = folder / f"{stem}-{what}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "MNIST/raw")
    return tmp_path


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise URLError("no network in tests")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


def state(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p): (p.stat().st_mtime_ns, p.stat().st_size if p.is_file() else 0)
        for p in root.rglob("*")
    }


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files_are_read_and_left_alone(
    tmp_path: Path, name: str, kind: str, packed: bool
) -> None:
    write(tmp_path / kind / "raw", packed)
    before = state(tmp_path)
    d = data.load(name, data_root=tmp_path)
    assert state(tmp_path) == before
    assert (d.name, d.classes, d.input_shape) == (name, 10, (1, 4, 5))
    assert (d.N, len(d.x_val), len(d.x_test)) == (54, 6, 20)
    pixels = (d.x_test * d.x_std + d.x_mean) * 255
    np.testing.assert_allclose(pixels[:, 0], IMAGES["test"], atol=1e-3)
    assert d.y_test.tolist() == LABELS["test"].tolist()


def test_channel_statistics_are_computed_from_training_images(root: Path) -> None:
    d = data.load("mnist", data_root=root, val_fraction=0)
    np.testing.assert_allclose(d.x_mean, [IMAGES["train"].mean() / 255], rtol=1e-5)
    np.testing.assert_allclose(d.x_std, [IMAGES["train"].std() / 255], rtol=1e-5)


def test_subsets_are_seeded_and_stratified(root: Path) -> None:
    options: dict[str, Any] = {"data_root": root, "n_train": 20, "n_test": 10, "val_fraction": 0.5}
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


def test_pixels_as_they_are(root: Path) -> None:
    plain = data.load("mnist", data_root=root, standardise=False)
    scaled = data.load("mnist", data_root=root)
    assert plain.x_train.min() == 0
    assert plain.x_train.max() <= 1
    pixels = torch.stack([plain.x_train.flatten(), scaled.x_train.flatten()])
    assert torch.corrcoef(pixels)[0, 1] > 0.99999


def test_flatten(root: Path) -> None:
    d = data.load("mnist", data_root=root, flatten=True)
    assert d.input_shape == (20,)
    assert d.x_mean.shape == (1,)
    assert torch.equal(d.x_train, data.load("mnist", data_root=root).x_train.flatten(1))


TRAIN = "MNIST/raw/train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(idx(IMAGES["train"]))[:-300],
        b"<html>not found</html>",
        gzip.compress(idx(IMAGES["train"]))[:20] + bytes(500),
        gzip.compress(idx(LABELS["train"])),
        gzip.compress(idx(IMAGES["train"])[:-7]),
        gzip.compress(idx(IMAGES["train"]) + b"x"),
        gzip.compress(b"\0\0\x08"),
        b"",
    ],
    # a gzip holds the second it was made in: as ids the contents differ between test workers
    ids=["cut", "html", "garbled", "labels", "short", "long", "no header", "empty"],
)
def test_broken_idx_files(root: Path, content: bytes) -> None:
    (root / TRAIN).write_bytes(content)
    with pytest.raises(PyroccamError):
        data.load("mnist", data_root=root)


def test_labels_of_an_image_set(root: Path) -> None:
    path = root / "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(LABELS["test"] + np.uint8(3))))
    with pytest.raises(PyroccamError):
        data.load("mnist", data_root=root)
    path.write_bytes(gzip.compress(idx(LABELS["test"][:-1])))
    with pytest.raises(PyroccamError):
        data.load("mnist", data_root=root)


@pytest.mark.parametrize(
    "name",
    [
        "kmnist",
        "svhn",
        "cifar10",
        "cifar100",
    ],
)
def test_no_network_says_what_to_place_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(PyroccamError):
        data.load(name, data_root=tmp_path)


def test_one_missing_file_is_named(root: Path) -> None:
    (root / TRAIN).unlink()
    with pytest.raises(PyroccamError):
        data.load("mnist", data_root=root)


def test_missing_files_are_downloaded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (root / TRAIN).read_bytes()
    (root / TRAIN).unlink()

    def fetch(where: str, train: bool, download: bool) -> SimpleNamespace:
        assert download
        (Path(where) / TRAIN).write_bytes(content)
        return SimpleNamespace()

    monkeypatch.setattr(torchvision.datasets, "MNIST", fetch)
    assert data.load("mnist", data_root=root).N == 54


def test_cifar_as_torchvision_hands_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = RANDOM.integers(0, 256, (40, 32, 32, 3), np.uint8)
    calls = []

    def cifar(where: str, train: bool, download: bool) -> SimpleNamespace:
        calls.append(download)
        rows = slice(0, 40) if train else slice(0, 10)
        targets = (np.arange(40) % 10)[rows].tolist()
        return SimpleNamespace(data=images[rows], targets=targets, classes=list("abcdefghij"))

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", cifar)
    d = data.load("cifar10", data_root=tmp_path)
    assert calls == [True, True]
    assert (d.name, d.class_names, d.input_shape) == ("cifar10", tuple("abcdefghij"), (3, 32, 32))
    assert d.x_mean.shape == (3,)
    scale = (d.x_test.permute(0, 2, 3, 1) * d.x_std + d.x_mean) * 255
    np.testing.assert_allclose(scale, images[:10], atol=1e-3)


@pytest.mark.parametrize("folder", ["SVHN", "."])
def test_svhn_as_torchvision_hands_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    images = RANDOM.integers(0, 256, (30, 3, 32, 32), np.uint8)

    def svhn(where: str, split: str, download: bool) -> SimpleNamespace:
        assert Path(where) == tmp_path / folder
        if not download and split == "test":
            raise RuntimeError("Dataset not found or corrupted")
        return SimpleNamespace(data=images, labels=np.arange(30) % 10)

    monkeypatch.setattr(torchvision.datasets, "SVHN", svhn)
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "train_32x32.mat").touch()
    d = data.load("svhn", data_root=tmp_path)  # the other file is fetched
    assert d.input_shape == (3, 32, 32)
    scale = (d.x_test.permute(0, 2, 3, 1) * d.x_std + d.x_mean) * 255
    np.testing.assert_allclose(scale, images.transpose(0, 2, 3, 1), atol=1e-3)


def test_files_in_torchvisions_own_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # small files cannot have the right checksums
    for module in (torchvision.datasets.cifar, torchvision.datasets.svhn):
        monkeypatch.setattr(module, "check_integrity", lambda *args: True)
    images = RANDOM.integers(0, 256, (30, 3, 32, 32), np.uint8)
    labels = np.arange(30) % 10
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for split in ("train", "test"):
        batch = {"data": images.reshape(30, -1), "fine_labels": labels.tolist()}
        (folder / split).write_bytes(pickle.dumps(batch))
        mat = {"X": images.transpose(2, 3, 1, 0), "y": np.where(labels == 0, 10, labels)[:, None]}
        (tmp_path / "SVHN").mkdir(exist_ok=True)
        scipy.io.savemat(tmp_path / f"SVHN/{split}_32x32.mat", mat)
    names = [f"thing {i}" for i in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    before = state(tmp_path)
    for name, classes in (("cifar100", 100), ("svhn", 10)):
        d = data.load(name, data_root=tmp_path)
        assert (d.classes, d.N, len(d.x_test)) == (classes, 27, 30)
        assert d.y_test.tolist() == labels.tolist()
        scale = (d.x_test.permute(0, 2, 3, 1) * d.x_std + d.x_mean) * 255
        np.testing.assert_allclose(scale, images.transpose(0, 2, 3, 1), atol=1e-3)
    assert state(tmp_path) == before
