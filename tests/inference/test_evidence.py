"""The bound over a whole data set, against closed forms."""

import math

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.models import priors
from pyroccam.models.bayesian import BayesianNetwork
from random_weights import limit, normal_kl, small_net, table
from torch import nn

NOISE = 0.4


def test_of_a_linear_regression():
    """Its expected log-likelihood and its KL are known."""
    rows = table("regression")
    likelihood = models.Regression(1, scale=NOISE, floor=0.0)
    model = BayesianNetwork(nn.Linear(3, 1), rows, prior=priors.Normal(), likelihood=likelihood)
    guide = guides.MeanField(model, scale=0.3)
    found = inference.evidence(model, guide, rows, passes=100, batch_size=40)
    x, y = rows.split("train")
    with torch.no_grad():
        q = {n: guide.distribution(f".{n}").base_dist for n in ("weight", "bias")}
        mean = x @ q["weight"].loc.T + q["bias"].loc
        variance = x.square() @ q["weight"].variance.T + q["bias"].variance
        noise = float(likelihood.scale)
        each = -0.5 * ((y - mean) ** 2 + variance) / noise**2 - math.log(noise)
        expected = float((each - 0.5 * math.log(2 * math.pi)).sum())
        kl = float(sum(normal_kl(one.loc, one.scale) for one in q.values()))
    assert found.kl == pytest.approx(kl, rel=1e-5)
    assert abs(found.elbo - (expected - kl)) < limit(1) * found.error
    assert found.error < 0.02 * abs(found.elbo)
    assert found.elbo == pytest.approx(found.log_likelihood - found.kl)
    assert found.rows == len(x)


def test_of_some_rows_and_without_a_trace():
    """Rows are those of the split; training mode and generator are left as they were."""
    rows = table()
    model = BayesianNetwork(small_net(), rows, prior=priors.LogUniform())
    guide = guides.MeanField(model)
    model.train()
    state = torch.get_rng_state()
    found = inference.evidence(model, guide, rows, split="val", rows=4)
    assert found.rows == 4
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert found == inference.evidence(model, guide, rows, split="val", rows=4, batch_size=4)
    with pytest.raises(ValueError, match="at least 2"):
        inference.evidence(model, guide, rows, passes=1)
