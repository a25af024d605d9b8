"""The 8 x 8 digits that come with scikit-learn: images without a download."""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np
import torch

from .. import Dataset, Seed, Share, ShareOrZero, carve, checked


@checked
def load_digits(
    *,
    seed: Seed = 0,
    test_fraction: Share = 0.2,
    val_fraction: ShareOrZero = 0.1,
    flatten: bool = False,
) -> Dataset:
    """1,797 grey images (1, 8, 8) of handwritten digits.

    Arguments:
        seed: Which rows test and validate.
        test_fraction: Share of the rows for testing, class by class.
        val_fraction: Share of the other rows kept aside for validation.
        flatten: Whether each image becomes one vector (64,).

    References:
        E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI (1998).
    """
    # The file alone: scikit-learn takes a second to import.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))
    x = rows[:, :-1].float().reshape(-1, 1, 8, 8) / 16
    y = rows[:, -1].long()
    test, train = carve(len(x), test_fraction, seed, purpose="test", labels=y)
    dataset = Dataset.from_tensors(
        x[train],
        y[train],
        x[test],
        y[test],
        val_fraction=val_fraction,
        seed=seed,
        name="digits",
        class_names=tuple(map(str, range(10))),
    )
    return dataset.flattened() if flatten else dataset
