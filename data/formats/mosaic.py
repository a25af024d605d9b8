"""A part of CIFAR-10 in compact form: 32 x 32 images side by side in lossless webp pictures."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..limits import ask
from ..roots import reading
from .idx import read_idx

__all__ = ["has_mosaic", "read_mosaic"]

_SIDE = 32

_TIMES = 3 * 15
"""Bytes that a data set takes for each pixel, which has three colours: see `idx`; and Pillow's."""


def has_mosaic(folder: Path) -> bool:
    """True if `folder` holds the compact form."""
    return (folder / "train_00.webp").is_file()


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

    with reading(path, "a whole picture", "copy the file again"), warnings.catch_warnings():
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
