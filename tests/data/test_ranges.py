"""What is outside of a declared range is refused, by name; what is inside is taken."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyroccam.data import (
    Between,
    Count,
    Finite,
    NotNegative,
    Positive,
    PyroccamError,
    Share,
    Whole,
    check,
    checked,
)

if TYPE_CHECKING:
    from pyroccam.inference import Fit

KINDS = {
    "positive": (Positive, lambda v: _number(v) and 0 < v < math.inf),
    "share": (Share, lambda v: _number(v) and 0 < v < 1),
    "not negative": (NotNegative, lambda v: _number(v) and 0 <= v < math.inf),
    "finite": (Finite, lambda v: _number(v) and math.isfinite(v)),
    "count": (Count, lambda v: _whole(v) and v >= 1),
    "whole or none": (Whole | None, lambda v: v is None or (_whole(v) and v >= 0)),
    "half open": (Annotated[float, Between(-1, 1, "(]")], lambda v: _number(v) and -1 < v <= 1),
    "choice": (Literal["a", 3, None], lambda v: v is None or v == "a" or (_whole(v) and v == 3)),
    "list": (Sequence[Count], lambda v: isinstance(v, list) and all(map(KINDS["count"][1], v))),
    "truth": (bool, lambda v: isinstance(v, bool)),
}  # fmt: skip
ANYTHING = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats()
    | st.text(max_size=3) | st.lists(st.integers(-1, 3), max_size=3)
    | st.sampled_from([-1.0, 0.0, 1.0, "a", 10**400])
)  # fmt: skip


def _number(v: Any) -> bool:
    return isinstance(v, float) or _whole(v)


def _whole(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool) and abs(v) < 10**300


@pytest.mark.parametrize("name", KINDS)
@given(value=ANYTHING)
def test_a_type_takes_its_range_and_nothing_else(name, value):
    kind, allows = KINDS[name]
    if allows(value):
        check("x", value, kind)
    else:
        with pytest.raises(PyroccamError) as error:
            check("x", value, kind)
        assert str(error.value).startswith("x=")
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300


def test_arguments_are_looked_at_before_the_function_runs():
    ran = []

    @checked
    def draw(x: "Unknown", draws: Count = 20, *, only: Sequence[str] = ()) -> int:  # noqa: F821
        ran.append(x)
        return draws

    assert draw(object(), 3, only=["a"]) == 3
    for wrong in ({"draws": 0}, {"only": "a"}, {"only": [1]}):
        with pytest.raises(PyroccamError):
            draw(1, **wrong)
    with pytest.raises(TypeError):
        draw()
    assert len(ran) == 1


A_FIT = SimpleNamespace(model=1, guide=2)
OTHERS = {
    "class": (torch.nn.Module, [torch.nn.ReLU()], [torch.nn.ReLU, 1, None]),
    "class or none": (torch.Tensor | None, [None, torch.zeros(2)], [[1.0], np.zeros(2)]),
    "a class itself": (type[torch.nn.Module], [torch.nn.ReLU], [torch.nn.ReLU()]),
    "function": (Callable[[int], int], [abs, torch.nn.ReLU], [1, "abs"]),
    "modules": (
        Sequence[torch.nn.Module],
        [[torch.nn.ReLU()], torch.nn.Sequential(torch.nn.ReLU())],
        [torch.nn.ReLU(), [1], "a", torch.tensor(1.0), {"a": torch.nn.ReLU()}],
    ),
    "anything by name": (Mapping[str, Any], [{"a": 1}, torch.nn.ModuleDict()], [["a"], "a", 1]),
    "pairs": (Sequence[tuple[int, str]], [[(1, "a")], [[1, "a"]]], [[(1,)], [("a", 1)], [1]]),
    "pair of ranges": (tuple[Share, Count], [(0.5, 1)], [(0.5, 0), (0.5,), 1]),
    "several": (tuple[int, ...], [(), (1, 2, 3)], [("a",), 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_classes_and_what_holds_several_are_told_apart(name):
    kind, taken, refused = OTHERS[name]
    for value in taken:
        check("x", value, kind)
    for value in refused:
        with pytest.raises(PyroccamError):
            check("x", value, kind)


def test_what_can_be_read_once_is_not_used_up():
    given = iter(["a", "b"])
    check("x", given, Iterable[str])
    assert [*given] == ["a", "b"]


def test_a_fit_is_known_by_what_it_has_where_its_class_is_not():
    @checked
    def read(fit: "Fit", other: "Mapping[str, Fit] | None" = None) -> bool:
        return True

    assert read(A_FIT, {"a": A_FIT})
    for wrong in ((1,), (A_FIT, A_FIT), (A_FIT, {"a": 1})):
        with pytest.raises(PyroccamError):
            read(*wrong)
