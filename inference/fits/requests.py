"""Checks of what a fit is asked for, before anything is moved or trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...data.errors import PyroccamError
from ...models.parameters import refuse_without_values
from ..posterior.posteriors import named, posterior_of

__all__ = ["check_kinds", "pick_device", "refuse_one_network"]


def check_kinds(model: Any, guide: Any, data: Any, track: Any = None) -> None:
    """Refuse what is no model, guide, data set or function.

    Raises:
        PyroccamError: if one of them is of another kind.
        ValueError: for parameters without values, or no training rows.
    """
    posterior_of(model, guide)
    tensors: list[Any] = []
    if hasattr(data, "head") and not isinstance(data, type):
        tensors = [*data.head(1), data.x_val, data.y_val]
    if not tensors:
        raise PyroccamError(
            f"The data is {named(data)}, expected a data.Dataset: data.load(...), or "
            "data.Dataset.from_tensors(x_train, y_train, x_test, y_test)."
        )
    if any(t.is_meta for t in tensors):
        raise PyroccamError(f"{data!r} has no values: its tensors are on the device meta.")
    if not data.N:
        raise PyroccamError(f"{data!r} has no training rows.")
    if track is not None and not callable(track):
        raise PyroccamError(
            f"track= is {named(track)}, expected a function of model, guide and data."
        )
    refuse_without_values(model)


def refuse_one_network(models: Sequence[nn.Module]) -> None:
    """Refuse repeats that share a parameter that is trained: each would go on where another has
    ended.

    Raises:
        PyroccamError: naming it.
    """
    owners: dict[int, int] = {}
    for k, model in enumerate(models):
        for name, p in model.named_parameters():
            if p.requires_grad and owners.setdefault(id(p), k) != k:
                raise PyroccamError(
                    f"Two repeats have one parameter, {name!r}: let build(seed) make a new network "
                    "each time, or give each a copy.deepcopy."
                )


def pick_device(name: object) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>`` (or a ``torch.device`` of these) to a device that
    is there.

    Raises:
        PyroccamError: if it is not, or is of another kind.
    """
    asked = str(name) if isinstance(name, torch.device) else name
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "auto":
        return torch.device("cuda" if count else "cpu")
    if asked == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(0|[1-9]\d{0,3}))?", asked) if isinstance(asked, str) else None
    if match is None:
        raise PyroccamError(f"Unknown device {name!r}: use auto, cpu, cuda or cuda:<n>.")
    if not count:
        raise PyroccamError(f"device={asked!r}, but torch finds no CUDA here. Use auto or cpu.")
    if match[1] is not None and int(match[1]) >= count:
        here = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise PyroccamError(f"device={asked!r}, but there is only {here} here. Use auto, or that.")
    return torch.device(str(asked))
