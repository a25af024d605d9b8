"""Weights of rows and of classes: how much each counts in a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .checks import as_tensor, check_finite, refuse_rows
from .errors import DataError, shown

if TYPE_CHECKING:
    from .dataset import Dataset


def check_weights(name: str, weights: Any, count: int) -> Tensor:
    """Weights (count,), finite and not negative, in float32."""
    found = as_tensor(name, weights)
    if found.shape != (count,):
        raise DataError(f"{name} has shape {tuple(found.shape)}", f"one weight each, ({count},)")
    check_finite(name, found[:, None])
    refuse_rows(name, found, found < 0, "weights from 0 on")
    return found.float()


def scaled(weights: Tensor, val_weights: Tensor) -> dict[str, Any]:
    """Weights of training and validation rows by a mean of one in training, so that all training
    rows together count as N: beside the prior they weigh what they would without weights."""
    mean = weights.double().mean()
    if not float(mean) > 0:
        raise DataError("weights are zero in all training rows", "some above zero")
    return {"weights": (weights / mean).float(), "val_weights": (val_weights / mean).float()}


def joined(weights: Tensor | None, val_weights: Tensor | None) -> dict[str, Any]:
    """Weights where validation rows become training rows; none if there are none."""
    if weights is None or val_weights is None:
        return {}
    return scaled(torch.cat([weights, val_weights]), val_weights[:0])


def by_class(data: Dataset, asked: Any) -> dict[str, Any]:
    """Weights of rows by the weight of their class, beside their own if they have some.

    Arguments:
        data: Of classes.
        asked: "balanced", by which all classes with training rows count the same; or a number for
            each class, of which only the ratios matter.
    """
    labels = data.y_train, data.y_val
    own = [torch.ones(len(y), device=y.device) for y in labels]
    if data.weights is not None and data.val_weights is not None:
        own = [data.weights, data.val_weights]
    each = of_classes(
        data, asked, lambda: torch.bincount(labels[0], own[0].double(), minlength=data.outputs)
    )
    return scaled(*(w * each.to(w)[y] for w, y in zip(own, labels, strict=True)))


def of_classes(data: Dataset, asked: Any, totals: Callable[[], Tensor]) -> Tensor:
    """The weight of each class (C,), of which only ratios matter, as :func:`by_class` is asked for
    it; `totals` are sums of the weights that training rows of each class have so far (C,)."""
    if data.classes is None:
        found = f"class_weights={shown(asked)} for {data.task}"
        raise DataError(found, "classes")
    if not isinstance(asked, str):
        return check_weights("class_weights", asked, data.classes)
    if asked != "balanced":
        raise DataError(f"class_weights={shown(asked)}", "'balanced', or a number for each class")
    total = totals()
    return torch.where(total > 0, 1.0 / total, 0.0)
