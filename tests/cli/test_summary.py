"""Sentences at the end of a run."""

import pytest
from pyroccam.cli.methods.weights import _said_of_bits
from pyroccam.cli.runs.tables import _said_of_speed


@pytest.mark.parametrize(
    ("seconds", "before", "quartiles", "said"),
    [
        (1e-3, 3.2e-3, [3.0, 3.5], "3.2 x faster in a batch of 256 rows (1 ms, before 3.2 ms; half "
         "of the rounds 3.00 to 3.50 x)"),
        (2e-3, 1e-3, [0.4, 0.8], "2.0 x slower in a batch of 256 rows (2 ms, before 1 ms; half of "
         "the rounds 1.25 to 2.50 x)"),
        (1e-3, 1.3e-3, [0.9, 1.4], "about as fast"),  # an interval around 1
        (1.3e-3, 1e-3, [1.1, 1.4], "about as fast"),  # it would contradict the table
        (1e-3, 1.3e-3, [0.7, 0.9], "about as fast"),
        (1e-3, 1.01e-3, [1.005, 1.02], "about as fast"),  # it would be 1.0 x faster
    ],
)  # fmt: skip
def test_a_speed_never_contradicts_the_times_beside_it(seconds, before, quartiles, said):
    one = {"batch": 256, "seconds": seconds, "seconds_before": before, "times_faster": quartiles}
    assert _said_of_speed([one]).startswith(said)
    both = _said_of_speed([{**one, "batch": 1}, one])
    assert "in a batch of 1 row (" in both
    assert both.endswith(_said_of_speed([one]))


def test_a_message_is_said_with_what_it_would_be_without_a_model():
    one = {"total": 2500.0, "weights": 1750.0, "per_row": 2.5, "rows": 1000, "uniform": 3321.9}
    ((told,),) = [_said_of_bits({"message": one})]
    assert "3.32 if classes" in told["sentences"][0]
    assert told["rows"] == [{"weights by the bound": 1750, "with targets": 2500}]
    ((told,),) = [_said_of_bits({"message": {**one, "uniform": None}})]
    assert "densities" in told["sentences"][0]
    assert not _said_of_bits({})
