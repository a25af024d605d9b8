"""Where a loss that is not finite comes from, by name."""

import math

import pytest
import torch
from pyroccam import guides, models
from pyroccam.inference.elbo import first_non_finite
from pyroccam.models import priors
from random_weights import small_net, table


def spoilt(what):
    """A pair and rows, sound but for one thing."""
    data = table("regression")
    model = models.BayesianNetwork(small_net(outputs=data.outputs), data, prior=priors.Normal())
    guide = guides.MeanField(model)
    x, y = data.x_train.clone(), data.y_train.clone()
    named = dict(guide.named_parameters())
    with torch.no_grad():
        if what == "x":
            x[1, 0] = math.inf
        elif what == "y":
            y[2, 0] = math.nan
        elif what == "parameter":
            [p for name, p in named.items() if name.endswith("loc")][1].view(-1)[0] = math.nan
        elif what == "draw":  # finite, but its exponential is not
            [p for name, p in named.items() if name.endswith("log_scale")][1].fill_(200.0)
        elif what == "density":
            y.fill_(1e25)  # whose square is more than single precision holds
        elif what == "sum":
            y.fill_(2e18)
            model.likelihood.log_scale.fill_(0.0)
    return model, guide, x, y


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("x", "the data itself has values that are not finite"),
        ("y", "the data itself has values that are not finite"),
        ("draw", "site '0.bias' was the first that is not finite"),
        ("density", "site 'y' was the first that is not finite"),
        ("sum", "no single site is to blame: their sum overflowed"),
    ],
)
def test_the_first_that_is_not_finite(what, message):
    state = torch.get_rng_state()
    assert first_non_finite(*spoilt(what)) == message
    assert torch.equal(torch.get_rng_state(), state)


def test_a_parameter_is_blamed_on_a_step_if_there_was_one():
    found = [first_non_finite(*spoilt("parameter"), stepped=stepped) for stepped in (True, False)]
    assert found[0] == f"{found[1]} (a step too large)"
    assert found[1].startswith("parameter 'factors.0/bias.loc' was the first")
