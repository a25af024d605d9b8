"""A part of CIFAR-10 in compact form: 32 x 32 images side by side in lossless webp pictures."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pyroccam.data import Dataset
from pyroccam.data.errors import DataError
from pyroccam.data.formats.idx import read_idx
from pyroccam.data.ranges import AtLeastTwo, Count, ShareOrZero, Whole, checked
from pyroccam.data.roots import resolve_root
from pyroccam.data.sets.images import Images, image_set
from torch import Tensor

__all__ = ["cifar10_part"]

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

_SIDE = 32


@checked
def cifar10_part(
    *,
    seed: Whole = 0,
    data_root: str | os.PathLike[str] | None = None,
    n_train: AtLeastTwo | None = None,
    n_test: Count | None = None,
    val_fraction: ShareOrZero = 0.1,
    flatten: bool = False,
    standardise: bool = True,
) -> Dataset:
    """As many images of CIFAR-10 as there are pictures in the folder `CIFAR10`.

    Arguments:
        seed, n_train, n_test, val_fraction, flatten, standardise: See
            :func:`~pyroccam.data.sets.images.load_images`.
        data_root: See :func:`~pyroccam.data.roots.resolve_root`.

    Raises:
        DataError: naming the file that is missing or broken.
    """
    folder = resolve_root(data_root) / "CIFAR10"
    train, test = _read(folder, "train"), _read(folder, "test")
    return image_set(
        f"cifar10 (part: {len(train[0])}/{len(test[0])})",
        Images(train, test, CLASSES),
        seed=seed,
        n_train=n_train,
        n_test=n_test,
        val_fraction=val_fraction,
        flatten=flatten,
        standardise=standardise,
    )


def _read(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images ``(B, 3, 32, 32)`` of all pictures `split_00.webp`, `split_01.webp`, ... and labels
    ``(B,)``, both uint8. The labels may be those of the whole set: the first ones are used.
    """
    paths = sorted(folder.glob(f"{split}_[0-9][0-9].webp"))
    if [path.stem for path in paths] != [f"{split}_{k:02d}" for k in range(len(paths) or 1)]:
        raise DataError(f"{folder} has {len(paths)} pictures of {split}", "00, 01, ... in a row")
    images = np.concatenate([_tiles(path) for path in paths])
    y = read_idx(folder / f"{split}-labels-idx1-ubyte.gz", 1)
    return torch.from_numpy(images), y[: len(images)]


def _tiles(path: Path) -> np.ndarray:
    """The images ``(B, 3, 32, 32)`` of a picture, row by row."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    height, width, _ = pixels.shape
    tiles = pixels.reshape(height // _SIDE, _SIDE, width // _SIDE, _SIDE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _SIDE, _SIDE)
