"""Image sets: read from files that are there, fetched by torchvision if they are not."""

from __future__ import annotations

import contextlib
import os
import warnings
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import (
    AtLeastTwo,
    Count,
    DataError,
    Dataset,
    Seed,
    ShareOrZero,
    check_labels,
    check_pair,
    checked,
    generator,
    pick,
    reading,
    resolve_root,
)
from ..formats import find_idx, read_idx

_DIGITS = tuple(map(str, range(10)))
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")

_FAMILY = {"MNIST": _DIGITS, "FashionMNIST": _CLOTHES, "KMNIST": _KANA}
"""Sets in idx format, in a folder named as their torchvision class."""

_PLACES = {
    "CIFAR10": "cifar-10-batches-py",
    "CIFAR100": "cifar-100-python",
    "SVHN": "SVHN/train_32x32.mat",
}
"""What torchvision leaves in the data root for the others."""

_STEMS = {"train": "train", "test": "t10k"}


class Images(NamedTuple):
    """Images (B, C, H, W) and labels (B,) as stored, and what the classes are called."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    class_names: tuple[str, ...]


@checked
def load_images(
    kind: str,
    name: str,
    *,
    seed: Seed = 0,
    data_root: str | os.PathLike[str] | None = None,
    n_train: AtLeastTwo | None = None,
    n_test: Count | None = None,
    val_fraction: ShareOrZero = 0.1,
    flatten: bool = False,
    standardise: bool = True,
    download: bool = True,
) -> Dataset:
    """An image set, pixels scaled to [0, 1] and then standardised channel by channel.

    Files in `data_root` are only read; it may be read-only as long as none is missing.

    Arguments:
        kind: The name of the torchvision class.
        name: What to call the data.
        seed: Which rows form the subsets and the validation rows.
        data_root: See :func:`resolve_root`.
        n_train: Size of a subset of the training images (validation included), class by
            class; None for all.
        n_test: The same for test images.
        val_fraction: Share of the training images kept aside for validation.
        flatten: Whether each image becomes one vector; the statistics stay per channel.
        standardise: Without it pixels stay in [0, 1], and a black background stays zero.
        download: Whether torchvision may fetch what is missing.
    """
    read = _read_family if kind in _FAMILY else _read_others
    images = read(kind, resolve_root(data_root), download)
    return image_set(
        name,
        images,
        seed=seed,
        n_train=n_train,
        n_test=n_test,
        val_fraction=val_fraction,
        flatten=flatten,
        standardise=standardise,
    )


def image_set(
    name: str,
    images: Images,
    *,
    seed: int,
    n_train: int | None,
    n_test: int | None,
    val_fraction: float,
    flatten: bool,
    standardise: bool,
) -> Dataset:
    """A data set of images as they are stored: see :func:`load_images`."""
    parts: list[Tensor] = []
    for split, (x, y), count in (("train", images.train, n_train), ("test", images.test, n_test)):
        check_pair(f"{name} {split} images", x, f"{name} {split} labels", y)
        y = check_labels(f"{name} {split} labels", y, len(images.class_names))
        if count is not None:
            if count > len(x):
                raise DataError(f"n_{split}={count} of {name}", f"at most {len(x)}")
            chosen, _ = pick(len(x), count, generator(seed, f"n_{split}"), y)
            x, y = x[chosen], y[chosen]
        parts += [x.float().div_(255), y]
    dataset = Dataset.from_tensors(
        *parts,
        val_fraction=val_fraction,
        standardise=standardise,
        seed=seed,
        name=name,
        class_names=images.class_names,
    )
    return dataset.flattened() if flatten else dataset


def _read_family(kind: str, root: Path, download: bool) -> Images:
    """MNIST and sets made in its likeness, from `<root>/<kind>/raw`."""
    folder = root / kind / "raw"
    stems = [
        f"{stem}-{what}" for stem in _STEMS.values() for what in ("images-idx3", "labels-idx1")
    ]
    stems = [f"{stem}-ubyte" for stem in stems]
    missing = [f"{stem}.gz" for stem in stems if find_idx(folder, stem) is None]
    if missing:
        _fetch(kind, root, f"{', '.join(missing)} in {folder}", download)
    files = [find_idx(folder, stem) or folder / f"{stem}.gz" for stem in stems]
    x_train, y_train, x_test, y_test = (read_idx(path, 3 if "idx3" in path.name else 1)
                                        for path in files)  # fmt: skip
    return Images((x_train[:, None], y_train), (x_test[:, None], y_test), _FAMILY[kind])


def _read_others(kind: str, root: Path, download: bool) -> Images:
    """CIFAR and SVHN as torchvision reads them."""
    place = root / _PLACES[kind]
    if kind == "SVHN" and not place.exists() and (root / place.name).exists():
        place = root / place.name  # put straight into the root, as torchvision's examples do
    folder = place.parent
    sets: list[Any] = []
    if place.exists():
        # a RuntimeError says that a file is broken or missing: fetch that
        with reading(place, f"{kind} as torchvision reads it"), contextlib.suppress(RuntimeError):
            sets = [_construct(kind, folder, split, download=False) for split in _STEMS]
    if not sets:
        what = "train_32x32.mat and test_32x32.mat" if kind == "SVHN" else place.name
        sets = _fetch(kind, folder, f"{what} in {folder}", download)
    names = _DIGITS if kind == "SVHN" else tuple(sets[0].classes)
    train, test = map(_extract, sets)
    return Images(train, test, names)


def _extract(source: Any) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) and labels (B,) of a torchvision set of colour images."""
    labels = source.labels if hasattr(source, "labels") else source.targets
    images = torch.from_numpy(np.asarray(source.data))
    # SVHN stores channels first, CIFAR last
    x = images if images.shape[1] == 3 else images.permute(0, 3, 1, 2)
    return x.contiguous(), torch.as_tensor(np.asarray(labels))


def _construct(kind: str, root: Path, split: str, download: bool) -> Any:
    """Makes the torchvision data set."""
    from torchvision import datasets

    which: dict[str, Any] = {"split": split} if kind == "SVHN" else {"train": split == "train"}
    with warnings.catch_warnings():
        # old pickles of CIFAR make newer numpy warn, about nothing a person could change
        warnings.simplefilter("ignore")
        return getattr(datasets, kind)(str(root), download=download, **which)


def _fetch(kind: str, root: Path, files: str, download: bool) -> list[Any]:
    """Lets torchvision download into `root`."""
    if not download:
        raise DataError(
            f"{kind} is not in {root}, and nothing may be downloaded here",
            f"download=True, or {files}",
        )
    try:
        return [_construct(kind, root, split, download=True) for split in _STEMS]
    except (RuntimeError, OSError, HTTPException) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{kind} is not in {root} and cannot be downloaded ({reason})", files
        ) from error
