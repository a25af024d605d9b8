"""A part of CIFAR-10 in compact form: 32 x 32 images side by side in lossless webp pictures."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import torch
from pyroccam.data import Dataset
from pyroccam.data.errors import DataError
from pyroccam.data.formats.idx import read_idx
from pyroccam.data.limits import ask
from pyroccam.data.ranges import AtLeastTwo, Count, ShareOrZero, Whole, checked
from pyroccam.data.roots import reading, resolve_root
from pyroccam.data.sets.images import Images, image_set
from torch import Tensor

__all__ = ["cifar10_part", "read_mosaic"]

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

_SIDE = 32

_TIMES = 3 * 15
"""Bytes that a data set takes for each pixel, which has three colours: see `idx`; and Pillow's."""


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
    train, test = read_mosaic(folder, "train"), read_mosaic(folder, "test")
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


def read_mosaic(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Reads all pictures `split_00.webp`, `split_01.webp`, ... and their labels.

    The labels may be those of the whole set: the first ones are used.

    Arguments:
        folder: Where the pictures and `split-labels-idx1-ubyte.gz` are.
        split: "train" or "test".

    Returns:
        Images (B, 3, 32, 32) and labels (B,), both uint8.

    Raises:
        DataError: naming the file that is missing or broken.
    """
    paths = sorted(folder.glob(f"{split}_[0-9][0-9].webp"))
    if not paths:
        raise DataError(f"{folder} has no {split}_00.webp", "it beside train_00.webp")
    for number, path in enumerate(paths):
        if path.name != f"{split}_{number:02d}.webp":  # labels would belong to other images
            raise DataError(f"{folder} lacks {split}_{number:02d}.webp", "pictures without a gap")
    images = np.concatenate([_read_picture(path) for path in paths])
    labels = folder / f"{split}-labels-idx1-ubyte.gz"
    if not labels.is_file():
        raise DataError(f"{folder} has no {labels.name}", "the labels of its pictures")
    y = read_idx(labels, 1)
    if len(y) < len(images):
        raise DataError(f"{labels} has {len(y)} labels", f"one for each of {len(images)} images")
    return torch.from_numpy(images), y[: len(images)]


def _read_picture(path: Path) -> np.ndarray:
    """Cuts one picture into its images (B, 3, 32, 32), row by row."""
    from PIL import Image

    with reading(path, "a whole picture"), warnings.catch_warnings():
        # Pillow warns of pictures so large that they may be an attack, and goes on
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path) as picture:
            ask(_TIMES * picture.width * picture.height, str(path))
            pixels = np.asarray(picture.convert("RGB"))
    height, width, _ = pixels.shape
    if height % _SIDE or width % _SIDE:
        raise DataError(f"{path} is {width} x {height}", f"multiples of {_SIDE} pixels")
    tiles = pixels.reshape(height // _SIDE, _SIDE, width // _SIDE, _SIDE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _SIDE, _SIDE)
