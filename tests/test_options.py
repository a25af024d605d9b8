"""Every public function and class whose types have ranges refuses what lies outside of them, before
anything is done, in one sentence that names the argument."""

import dataclasses
import inspect
import types
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from house import public
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroccam.data import PyroccamError, ranges
from torch import nn

STRANGE = [[], ["x"], {}, {"x": -1}, object(), len, np.int64(-2), torch.empty(0),
           torch.full((3,), torch.nan), nn.Linear(2, 3), nn.Linear]  # fmt: skip
ANYTHING = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats()
    | st.text(max_size=3) | st.sampled_from(STRANGE)
)  # fmt: skip


def doors():
    """``(name, call, its signature, {argument: type})`` of those that look at their arguments."""
    for name, value in sorted(public().items()):
        for method in (value, *vars(value).values()) if isinstance(value, type) else (value,):
            options = method is value and dataclasses.is_dataclass(value)
            if options and issubclass(value, ranges.Options):
                yield name, value, inspect.signature(value), ranges.kinds_of(value)
            method = getattr(method, "__func__", method)
            if isinstance(method, types.FunctionType) and hasattr(method, "__wrapped__"):
                inner = inspect.unwrap(method)
                if "checked" in method.__code__.co_qualname:
                    yield f"{name}: {inner.__qualname__}", method, inspect.signature(inner), (
                        ranges.kinds_of(inner)
                    )  # fmt: skip


def sound(kind: Any) -> Any:
    """A value that a type allows."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return sound(inner[0])
    if origin is Literal:
        return inner[0]
    if origin is Annotated:
        limits = inner[1]
        middle = [limits.low, 1, 0.5, limits.high, limits.low + 1]
        return next(inner[0](one) for one in middle if one in limits and inner[0](one) == one)
    if has := ranges.HAS.get(ranges.name_of(kind)):
        return SimpleNamespace(**dict.fromkeys(has))
    if kind is None or kind is types.NoneType or origin is type:
        return kind and object
    if origin is tuple and inner[-1] is not ...:
        return tuple(map(sound, inner))
    if origin is not None and issubclass(origin, Iterable):
        return {} if issubclass(origin, Mapping) else []
    simple = {int: 1, float: 1.0, bool: True, str: "a", Any: None}
    return simple[kind] if kind in simple else Mock(spec=origin or kind)


DOORS = {
    name: (call, signature, own)
    for name, call, signature, kinds in doors()
    if (own := {n: kind for n, kind in kinds.items() if n in signature.parameters})
}


@pytest.mark.parametrize("name", DOORS)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(drawn=st.data())
def test_what_a_type_does_not_allow_is_refused(name, drawn):
    call, signature, kinds = DOORS[name]
    asked = drawn.draw(st.sampled_from(sorted(kinds)))
    value = drawn.draw(ANYTHING)
    if ranges.allows(kinds[asked], value):
        return
    given = {
        one.name: sound(kinds[one.name]) if one.name in kinds else object()
        for one in signature.parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    } | {asked: value}
    by_place = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY]
    with pytest.raises(PyroccamError, match=f"^{asked}=") as error:
        call(*[given.pop(n) for n in by_place if n in given], **given)
    assert "\n" not in str(error.value)
