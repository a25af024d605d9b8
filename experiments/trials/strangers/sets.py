"""The data sets, as files that anybody could bring, and the networks that suit each.

Sets of the half ``tuned`` are those on which defaults were chosen; on those of the half ``kept``
they are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sklearn.datasets
from pyroccam import data as datasets

__all__ = ["SETS", "Stranger"]

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Inputs and targets, for training and for testing."""

ROWS, TESTED = 7000, 3000
"""At most, of any set: so that all of them train in one night."""

_TABLE, _IMAGES = ("mlp", "norm"), ("lenet", "norm", "conv")
_SEQUENCE, _WORDS = ("conv1d", "gru", "transformer"), ("embedding",)


@dataclass(frozen=True)
class Stranger:
    """A set, and what is trained on it.

    Attributes:
        half: ``tuned``, or ``kept`` aside.
        networks: names in :mod:`~experiments.trials.strangers.networks`.
        arrays: from a folder of data files to the arrays.
        options: of the data set, beside those.
    """

    half: Literal["tuned", "kept"]
    networks: tuple[str, ...]
    arrays: Callable[[str | None], Arrays]
    options: dict[str, Any]

    def write(self, path: Path, data_root: str | None) -> Path:
        """Write the arrays to a file, if it is not there yet."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            x_train, y_train, x_test, y_test = self.arrays(data_root)
            draft = path.with_name(f".{path.name}.draft.npz")
            parts = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
            np.savez_compressed(draft, allow_pickle=False, **parts)
            draft.replace(path)
        return path


def _split(x: np.ndarray, y: np.ndarray) -> Arrays:
    """A fifth of the rows, in random order, is for testing."""
    order = np.random.default_rng(0).permutation(len(x))
    kept, test = order[: int(0.8 * len(x))], order[int(0.8 * len(x)) :]
    return x[kept][:ROWS], y[kept][:ROWS], x[test][:TESTED], y[test][:TESTED]


def _shipped(name: str) -> Callable[[str | None], Arrays]:
    """A set that comes with scikit-learn; labels by their names."""

    def arrays(_: str | None) -> Arrays:
        found = getattr(sklearn.datasets, f"load_{name}")()
        names = getattr(found, "target_names", None)
        y = found.target if name == "diabetes" else np.asarray(names)[found.target].astype(str)
        return _split(found.data.astype(np.float32), y)

    return arrays


def _known(name: str, **options: Any) -> Callable[[str | None], Arrays]:
    """Rows of a set that this package knows, in its own split."""

    def arrays(root: str | None) -> Arrays:
        one = datasets.load(name, data_root=root, val_fraction=0, **options)
        x, y = one.x_train[:ROWS], one.y_train[:ROWS]
        return x.numpy(), y.numpy(), one.x_test[:TESTED].numpy(), one.y_test[:TESTED].numpy()

    return arrays


def _digit_rows(_: str | None) -> Arrays:
    """Digits as sequences: eight rows, one after the other."""
    found = sklearn.datasets.load_digits()
    return _split(found.images.transpose(0, 2, 1).astype(np.float32), found.target)


def _friedman(_: str | None) -> Arrays:
    """A smooth function of five of ten inputs, and little data."""
    x, y = sklearn.datasets.make_friedman1(400, noise=1.0, random_state=0)
    return _split(x, y)


def _waves(_: str | None) -> Arrays:
    """Three shapes of waves, at any phase, in two noisy channels."""
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 2500)
    t = np.linspace(0, 4, 48) + random.uniform(0, 1, (2500, 1))
    shapes = np.stack([np.sin(2 * np.pi * t), 2 * (t % 1) - 1, np.sign(np.sin(2 * np.pi * t))])
    clean = shapes[y, np.arange(2500)]
    x = np.stack([clean, np.roll(clean, 6, 1)], 1) + random.normal(0, 1.0, (2500, 2, 48))
    return _split(x.astype(np.float32), y)


def _more_small_words(_: str | None) -> Arrays:
    """Are there more words below 10 in a row of 20 than at or above 40?"""
    x = np.random.default_rng(0).integers(0, 50, (3000, 20))
    return _split(x, ((x < 10).sum(1) > (x >= 40).sum(1)).astype(np.int64))


def _a_pair_of_words(_: str | None) -> Arrays:
    """Is there a 3 and a 7 in the row?"""
    random = np.random.default_rng(1)
    x = random.integers(0, 50, (3000, 20))
    for word, chance in ((3, 0.5), (7, 0.5)):
        rows = np.flatnonzero(random.random(3000) < chance)
        x[rows, random.integers(0, 20, len(rows))] = word
    return _split(x, ((x == 3).any(1) & (x == 7).any(1)).astype(np.int64))


def _stranger(half: Any, networks: tuple[str, ...], arrays: Any, **options: Any) -> Stranger:
    return Stranger(half, networks, arrays, options)


SETS: dict[str, Stranger] = {
    "digits": _stranger("tuned", ("mlp", "norm"), _shipped("digits")),
    "breast-cancer": _stranger("tuned", _TABLE, _shipped("breast_cancer")),
    "boston": _stranger("tuned", _TABLE, _known("uci/boston")),
    "energy": _stranger("tuned", _TABLE, _known("uci/energy")),
    "kin8nm": _stranger("tuned", _TABLE, _known("uci/kin8nm")),
    "power": _stranger("tuned", _TABLE, _known("uci/power-plant")),
    "concrete": _stranger("tuned", _TABLE, _known("uci/concrete")),
    "yacht": _stranger("tuned", _TABLE, _known("uci/yacht")),
    "wisdm": _stranger("tuned", _TABLE, _known("experiments.sets:wisdm_windows")),
    "spirals": _stranger("tuned", ("mlp",), _known("spirals")),
    "fashion": _stranger("tuned", _IMAGES, _known("fashion-mnist")),
    "digit-rows": _stranger("tuned", _SEQUENCE, _digit_rows),
    "small-words": _stranger("tuned", _WORDS, _more_small_words, ids=True),
    "iris": _stranger("kept", _TABLE, _shipped("iris")),
    "wines": _stranger("kept", _TABLE, _shipped("wine")),
    "diabetes": _stranger("kept", _TABLE, _shipped("diabetes")),
    "friedman": _stranger("kept", _TABLE, _friedman),
    "red-wine": _stranger("kept", _TABLE, _known("uci/wine"), task="regression"),
    "naval": _stranger("kept", _TABLE, _known("uci/naval")),
    "protein": _stranger("kept", _TABLE, _known("uci/protein")),
    "mnist": _stranger("kept", _IMAGES, _known("mnist")),
    "cifar": _stranger("kept", ("norm", "conv"), _known("experiments.sets:cifar10_part")),
    "waves": _stranger("kept", _SEQUENCE, _waves),
    "word-pairs": _stranger("kept", _WORDS, _a_pair_of_words, ids=True),
}
