"""Toys on which a rule for choosing a model can be judged, because the truth is simple."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from pyroccam.data.dataset import Dataset
from pyroccam.data.errors import DataWarning
from pyroccam.data.ranges import AtLeastTwo, Count, Finite, ShareOrZero, Whole, checked
from pyroccam.data.sets.toys import first_train, spirals
from torch import Tensor

__all__ = ["polynomial", "polynomial_features", "regimes", "spiral_sides"]

_DEGREE = 9

_WIDTH = 11
"""Inputs of the regimes, of which the first alone matters."""


def polynomial_features(x: Tensor) -> Tensor:
    """The features that compete in :func:`polynomial`.

    Arguments:
        x: Points (B,).

    Returns:
        The powers 0 to 9 of `x`, its sine and its cosine, (B, 12).
    """
    powers = x[:, None] ** torch.arange(_DEGREE + 1)
    return torch.cat([powers, x.sin()[:, None], x.cos()[:, None]], 1)


@checked
def polynomial(
    *,
    seed: Whole = 0,
    n_train: AtLeastTwo = 40,
    n_test: Count = 1000,
    noise: Finite = 1.0,
    val_fraction: ShareOrZero = 0.0,
    standardise: bool = True,
) -> Dataset:
    r"""A line seen through noise, and twelve features of which one is enough.

    :math:`y = x + \text{noise} \cdot \varepsilon` with :math:`x` and :math:`\varepsilon`
    standard normal; the inputs are :func:`polynomial_features` of :math:`x`. All of the 40
    points train by default, as in the source, where no rows validate.

    Arguments:
        seed: Which points. The training points do not depend on `n_test`.
        n_train: Training points, validation included.
        n_test: Test points, drawn alike.
        noise: Standard deviation of the noise.
        val_fraction: Share of the training points kept aside for validation.
        standardise: Whether to scale features and targets by training statistics, which
            turns the constant feature into zeros. The source does not scale.

    References:
        O. Bakhteev: Bayesian selection of deep learning model structure (PhD thesis, 2019),
        experiment on hyperparameters, for the law of x and of the noise.
    """
    z = _normal(n_train, n_test, 2, seed)
    x = polynomial_features(z[:, 0])
    y = z[:, 0] + noise * z[:, 1]
    options = {"val_fraction": val_fraction, "seed": seed, "standardise": standardise}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # high powers are far from each other
        return first_train(x, y, n_train, task="regression", name="polynomial", **options)


@checked
def regimes(
    *,
    seed: Whole = 0,
    n_train: AtLeastTwo = 50,
    n_test: Count = 1000,
    noise: Finite = 0.5,
    val_fraction: ShareOrZero = 0.0,
    standardise: bool = True,
) -> Dataset:
    r"""Eleven inputs, one of which bends the target: which of three models is enough?

    :math:`y = \tanh x_0 + \text{noise} \cdot \varepsilon` with :math:`x \in R^{11}` and
    :math:`\varepsilon` standard normal. Before the target is made, :math:`x_0` is
    standardised over the training points. The source lets a constant, a tanh of
    :math:`x_0` and a tanh of all inputs compete. All of the 50 points train by default, as
    there; they are not the same points, for the generator is another.

    Arguments:
        seed: Which points. The training points do not depend on `n_test`.
        n_train: Training points, validation included.
        n_test: Test points, drawn alike, with :math:`x_0` moved as in training.
        noise: Standard deviation of the noise.
        val_fraction: Share of the training points kept aside for validation.
        standardise: Whether to scale the other inputs and the targets, too. The source does
            not: its numbers are about `standardise=False`.

    References:
        O. Bakhteev: Bayesian selection of deep learning model structure (PhD thesis, 2019).
    """
    z = _normal(n_train, n_test, _WIDTH + 1, seed)
    x, error = z[:, :_WIDTH], z[:, _WIDTH]
    train = x[:n_train, 0]
    x[:, 0] = (x[:, 0] - train.mean()) / train.std(correction=0)
    y = x[:, 0].tanh() + noise * error
    options = {"val_fraction": val_fraction, "seed": seed, "standardise": standardise}
    return first_train(x, y, n_train, task="regression", name="regimes", **options)


@checked
def spiral_sides(
    *,
    seed: Whole = 0,
    n_train: AtLeastTwo = 400,
    n_test: Count = 1000,
    noise: Finite = 0.2,
    error: Finite = 0.0,
    val_fraction: ShareOrZero = 0.2,
    standardise: bool = True,
) -> Dataset:
    """The two arms of a spiral as targets of a regression, -1 and 1.

    Arguments:
        seed: Which points.
        n_train: Training points, validation included.
        n_test: Test points.
        noise: Largest shift of a coordinate.
        error: Standard deviation of what is added to a target.
        val_fraction: Share of the training points kept aside for validation.
        standardise: Whether to scale inputs and targets.
    """
    x, arm = spirals(n_train + n_test, noise, seed=seed)
    y = 2.0 * arm - 1.0 + error * _normal(n_train, n_test, 1, seed)[:, 0].float()
    options = {"val_fraction": val_fraction, "seed": seed, "standardise": standardise}
    return first_train(x, y, n_train, task="regression", name="spiral_sides", **options)


def _normal(n_train: int, n_test: int, width: int, seed: int) -> Tensor:
    """Standard normal numbers (n_train + n_test, width), float64, drawn row by row."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.standard_normal((n_train + n_test, width)))
