import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from pyroccam.models.checks import as_number


@pytest.mark.parametrize(
    "value",
    [2, 2.0, Fraction(2), np.float16(2), np.int64(2), torch.tensor(2), torch.tensor([2.0])],
    ids=repr,
)
def test_numbers_of_any_library(value):
    assert as_number(value) == 2.0


@pytest.mark.parametrize(
    "value",
    [None, "2", True, np.bool_(True), torch.tensor(True), [2], 2j, torch.ones(2), math.nan],
    ids=repr,
)
def test_what_is_none(value):
    assert math.isnan(as_number(value))


def test_whole_numbers_beyond_those_of_a_float():
    assert as_number(10**400) == math.inf
    assert as_number(-(10**400)) == -math.inf
