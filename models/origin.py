"""Which model a guide was made from: a mark of the model that copies of both keep."""

from __future__ import annotations

import uuid
from typing import Any

__all__ = ["made_from_another", "remember"]


def remember(guide: Any, model: Any) -> None:
    """Note in a guide the model that it is made from, without holding it: a guide that is copied
    does not copy its model."""
    if "_mark" not in vars(model):
        object.__setattr__(model, "_mark", uuid.uuid4().hex)
    object.__setattr__(guide, "_mark_of_model", vars(model)["_mark"])


def made_from_another(guide: Any, model: Any) -> bool:
    """Whether a guide says that it was made from another model than this one, or a copy of it."""
    found = vars(guide).get("_mark_of_model")
    return found is not None and found != vars(model).get("_mark")
