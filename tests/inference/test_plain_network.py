"""A network without a prior, trained as any pair is."""

import pytest
import torch
from fitting import QUICK, blobs
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from torch import nn


def half_zero(rows, seed=0, keeps=True):
    """A pair of a network half of whose first weights, and one bias, are zero."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        net[0].weight[seed::2] = 0.0
        net[3].bias[0] = 0.0
    model = models.PlainNetwork(net, rows, keeps_zeros=keeps)
    return model, guides.Deterministic(model)


def zeros(model):
    return (model.net[0].weight == 0).all(1).tolist()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_zeros_stay_where_they_are_to_stay(optimizer):
    rows = blobs()
    kept, free = half_zero(rows), half_zero(rows, keeps=False)
    for pair in (kept, free):
        fit = inference.fit(*pair, rows, optimizer=optimizer, checkpoint="last", **QUICK)
        assert fit.structure is None
    assert zeros(kept[0]) == [True, False] * 4
    assert kept[0].net[3].bias[0]  # of biases nothing is cut
    assert not any(zeros(free[0]))


def test_each_of_two_in_common_steps_has_its_own_zeros():
    rows = blobs()

    def build(seed):
        return *half_zero(rows, seed), rows

    options = {**QUICK, "together": True, "checkpoint": "last"}
    del options["seed"]
    found = inference.fit_repeats(build, [0, 1], **options)
    assert [zeros(fit.model) for fit in found.fits] == [[True, False] * 4, [False, True] * 4]


def test_a_network_is_copied_and_takes_what_the_likelihood_is():
    rows = blobs()
    net = nn.Linear(2, 3)
    model = models.PlainNetwork(net, rows)
    assert model.net is not net
    assert torch.equal(model.net.weight, net.weight)
    with pytest.raises(PyroccamError):
        models.PlainNetwork(net, rows, likelihood="student-t")
    with pytest.raises(PyroccamError):
        models.PlainNetwork(nn.LazyLinear(3), rows)
