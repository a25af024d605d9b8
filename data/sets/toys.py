"""Two small problems made on the spot: spirals to classify, a wiggle to regress."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import AtLeastTwo, Count, DataError, Dataset, Finite, Seed, Share, ShareOrZero, ask, checked

_POINT = 150
"""Bytes that a point takes while a data set is made; 95 were measured."""


@checked
def spirals(
    n: Count = 2000,
    noise: Finite = 0.2,
    turns: Finite = 720.0,
    start: Finite = 0.0,
    seed: Seed = 0,
    arms: AtLeastTwo = 2,
) -> tuple[Tensor, Tensor]:
    r"""Points on the arms of a spiral, in random order.

    A point of the first arm is :math:`t (\cos t, \sin t) + \text{noise} \cdot u` with
    :math:`t = \text{start} + \sqrt{v} \cdot \text{turns}`, :math:`u` and :math:`v` uniform
    on [0, 1): the noise is one-sided, as in the authors' code, and added before an arm is
    turned into its place. With 720 degrees the radius grows to 12.6.

    Arguments:
        n: How many points, shared among the arms.
        noise: Largest shift of a coordinate.
        turns: How far an arm winds, in degrees.
        start: Where it begins, in degrees.
        seed: Which points.
        arms: How many arms; arm k is turned by k / arms of a full circle and is class k.

    Returns:
        Points (n, 2), float32, and labels (n,), int64.

    Raises:
        DataError: if a number makes no sense.
        TooLarge: if there are too many points.

    References:
        Antorán, Allingham, Hernández-Lobato: Variational Depth Search in ResNets (2020).
    """
    if n < arms:
        raise DataError(f"n={n}", f"at least {arms}, one of each arm")
    ask(_POINT * n, "n points")
    random = np.random.default_rng(seed)
    label = np.arange(n) % arms
    t = math.radians(start) + np.sqrt(random.random(n)) * math.radians(turns)
    point = t[:, None] * np.stack([np.cos(t), np.sin(t)], 1) + noise * random.random((n, 2))
    turn = 2 * math.pi * label / arms
    x = point[:, 0] * np.cos(turn) - point[:, 1] * np.sin(turn)
    y = point[:, 0] * np.sin(turn) + point[:, 1] * np.cos(turn)
    order = random.permutation(n)
    return (
        torch.from_numpy(np.stack([x, y], 1)[order].astype(np.float32)),
        torch.from_numpy(label[order].astype(np.int64)),
    )


def first_train(x: Tensor, y: Tensor, n_train: int, **options: Any) -> Dataset:
    """The data set whose first rows train; the rows come in random order."""
    return Dataset.from_tensors(x[:n_train], y[:n_train], x[n_train:], y[n_train:], **options)


@checked
def load_spirals(
    *,
    seed: Seed = 0,
    n: int = 2000,
    noise: float = 0.2,
    turns: float = 720.0,
    start: float = 0.0,
    arms: int = 2,
    train_fraction: Share = 0.1,
    val_fraction: ShareOrZero = 0.1,
) -> Dataset:
    """The spirals, 10 % for training (validation included) and 90 % for testing.

    Arguments:
        seed: Which points, and which of them train.
        n, noise, turns, start, arms: See :func:`spirals`; training and testing together.
        train_fraction: Share of the points that are not for testing.
        val_fraction: Share of *those* kept aside for validation.
    """
    x, y = spirals(n=n, noise=noise, turns=turns, start=start, seed=seed, arms=arms)
    names = tuple(f"arm {k}" for k in range(arms))
    options = {"val_fraction": val_fraction, "seed": seed, "name": "spirals"}
    return first_train(
        x, y, round(n * train_fraction), task="classification", class_names=names, **options
    )


@checked
def wiggle(n: AtLeastTwo = 300, noise: Finite = 0.25, seed: Seed = 0) -> tuple[Tensor, Tensor]:
    r"""A wavy line seen through noise.

    :math:`y = \sin \pi x + 0.2 \cos 4 \pi x - 0.3 x + \text{noise} \cdot \varepsilon` with
    :math:`x \sim N(5, 2.5^2)` and :math:`\varepsilon \sim N(0, 1)`.

    Arguments:
        n: How many points.
        noise: Standard deviation of the noise.
        seed: Which points.

    Returns:
        Inputs (n, 1) and targets (n, 1), float64.

    References:
        Antorán, Allingham, Hernández-Lobato: Depth Uncertainty in Neural Networks (2020).
    """
    ask(_POINT * n, "n points")
    random = np.random.default_rng(seed)
    x = random.normal(5.0, 2.5, (n, 1))
    y = np.sin(np.pi * x) + 0.2 * np.cos(4 * np.pi * x) - 0.3 * x
    return torch.from_numpy(x), torch.from_numpy(y + noise * random.standard_normal((n, 1)))


@checked
def load_wiggle(
    *,
    seed: Seed = 0,
    n: int = 300,
    noise: float = 0.25,
    train_fraction: Share = 0.8,
    val_fraction: ShareOrZero = 0.1,
) -> Dataset:
    """The wiggle, 80 % for training (validation included) and 20 % for testing.

    Arguments:
        seed: Which points, and which of them train.
        n, noise: See :func:`wiggle`; training and testing together.
        train_fraction: Share of the points that are not for testing.
        val_fraction: Share of *those* kept aside for validation.
    """
    x, y = wiggle(n=n, noise=noise, seed=seed)
    options = {"val_fraction": val_fraction, "seed": seed, "name": "wiggle"}
    return first_train(x, y, round(n * train_fraction), **options)
