import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from pyroccam.models import as_number


@pytest.mark.parametrize(
    ("values", "number"),
    [
        ([2, Fraction(2), np.float16(2), np.int64(2), torch.tensor(2), torch.tensor([2.0])], 2.0),
        ([None, "2", True, np.bool_(True), torch.tensor(True), [2], 2j, torch.ones(2)], math.nan),
        ([10**400], math.inf),
        ([-(10**400)], -math.inf),
    ],
)
def test_numbers_of_any_library_and_what_is_none(values, number):
    for value in values:
        assert as_number(value) == pytest.approx(number, nan_ok=True)
