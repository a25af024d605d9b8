"""A part of CIFAR-10 in webp pictures."""

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image
from pyroccam import data

PART = "experiments.sets:cifar10_part"
RANDOM = np.random.default_rng(0)
TILES = RANDOM.integers(0, 256, (18, 32, 32, 3), np.uint8)
TILE_LABELS = np.arange(50, dtype=np.uint8) % 3


def _idx(labels: np.ndarray) -> bytes:
    return struct.pack(">2I", 0x801, len(labels)) + labels.tobytes()


def write_mosaics(folder: Path) -> None:
    """Two pictures of 2 x 3 for training, one for testing; labels of more images than that."""
    folder.mkdir()
    for name, first in (("train_00", 0), ("train_01", 6), ("test_00", 12)):
        rows = [np.concatenate(list(TILES[first + r : first + r + 3]), axis=1) for r in (0, 3)]
        Image.fromarray(np.concatenate(rows)).save(folder / f"{name}.webp", lossless=True)
    for split in ("train", "test"):
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(TILE_LABELS)))


def test_part_of_cifar10(tmp_path: Path) -> None:
    write_mosaics(tmp_path / "CIFAR10")
    d = data.load(PART, data_root=tmp_path, val_fraction=0)
    assert d.name == "cifar10 (part: 12/6)"
    assert d.class_names[:3] == ("airplane", "automobile", "bird")
    for x, tiles in ((d.x_train, TILES[:12]), (d.x_test, TILES[12:])):
        back = (x.permute(0, 2, 3, 1) * d.x_std + d.x_mean) * 255
        np.testing.assert_allclose(back, tiles, atol=1e-3)
    assert d.y_train.tolist() == TILE_LABELS[:12].tolist()
    assert d.classes == 10


TEST, TESTS = "test_00.webp", "test-labels-idx1-ubyte.gz"
