"""Checks of what a fit is asked for, before anything is moved or trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...data import PyroccamError
from ...models import refuse_without_values
from ..posterior import named, posterior_of


def check_kinds(model: Any, guide: Any, data: Any) -> None:
    """Refuse what is no model, guide or data set with rows and values."""
    posterior_of(model, guide)
    if isinstance(data, type) or not hasattr(data, "head"):
        raise PyroccamError(f"the data is {named(data)}", "a data.Dataset")
    if any(t.is_meta for t in (*data.head(1), data.x_val, data.y_val)):
        raise PyroccamError(f"{data!r} has no values, on the device meta")
    if not data.N:
        raise PyroccamError(f"{data!r} has no training rows")
    refuse_without_values(model)


def check_rows(model: Any, data: Any) -> None:
    """Refuse other training rows than a model was made for."""
    if model.size != data.N:
        raise PyroccamError(f"a model of {model.size} training rows", f"{data.N}, as the data has")
    if model.weighted != data.weighted:
        has = "without" if model.weighted else "with"
        raise PyroccamError(f"rows {has} weights", "those that the model was made for")


def refuse_one_network(models: Sequence[nn.Module]) -> None:
    """Refuse repeats that share a parameter that is trained: each would go on where another has
    ended."""
    owners: dict[int, int] = {}
    for k, model in enumerate(models):
        for name, p in model.named_parameters():
            if p.requires_grad and owners.setdefault(id(p), k) != k:
                raise PyroccamError(
                    f"two repeats have one parameter, {name!r}", "a new network of each build(seed)"
                )


def pick_device(name: object) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>`` (or a ``torch.device`` of these) to a device that
    is there."""
    asked = str(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    best = "cuda" if count else "cpu"
    there = {name: name for name in ("cpu", best, *(f"cuda:{n}" for n in range(count)))}
    there["auto"] = best
    if asked not in there:
        raise PyroccamError(f"device={name!r}", f"one of {', '.join(there)}")
    return torch.device(there[asked])
