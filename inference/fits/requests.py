"""What a fit can be given, by its kind: looked at before anything is moved or trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ...models.parameters import refuse_without_values
from ..posterior.family import family, named

__all__ = ["check_kinds", "refuse_one_network"]


def check_kinds(model: Any, guide: Any, data: Any, track: Any = None) -> None:
    """Whether these are a model, a guide, a data set and a function.

    Raises:
        TypeError: if one of them is of another kind.
        ValueError: for parameters without values, or no training rows.
    """
    family(model, guide)
    tensors = [
        getattr(data, f"{part}_{split}", None) for part in "xy" for split in ("train", "val")
    ]
    if not all(isinstance(t, Tensor) for t in tensors) or isinstance(data, type):
        raise TypeError(
            f"The data is {named(data)}, expected a data.Dataset: data.load(...), or "
            "data.Dataset.from_tensors(x_train, y_train, x_test, y_test)."
        )
    if any(isinstance(t, Tensor) and t.is_meta for t in tensors):
        raise ValueError(f"{data!r} has no values: its tensors are on the device meta.")
    if not data.N:
        raise ValueError(f"{data!r} has no training rows.")
    if track is not None and not callable(track):
        raise TypeError(f"track= is {named(track)}, expected a function of model, guide and data.")
    refuse_without_values(model)


def refuse_one_network(models: Sequence[nn.Module]) -> None:
    """Refuse repeats that share a parameter that is trained: each would go on where another has
    ended.

    Raises:
        ValueError: naming it.
    """
    owners: dict[int, int] = {}
    for k, model in enumerate(models):
        for name, p in model.named_parameters():
            if p.requires_grad and owners.setdefault(id(p), k) != k:
                raise ValueError(
                    f"Two repeats have one parameter, {name!r}: let build(seed) make a new network "
                    "each time, or give each a copy.deepcopy."
                )
