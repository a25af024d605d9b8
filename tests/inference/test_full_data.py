"""The bound over a whole data set, against closed forms."""

import math

import pytest
import torch
from pyroccam import data, guides, inference, models
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
    found = inference.elbo.evidence(model, guide, rows, passes=100, batch_size=40)
    x, y = rows.split("train")
    with torch.no_grad():
        q = {n: guide.posterior(f".{n}").base_dist for n in ("weight", "bias")}
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
    found = inference.elbo.evidence(model, guide, rows, split="val", rows=4)
    assert found.rows == 4
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert found == inference.elbo.evidence(model, guide, rows, split="val", rows=4, batch_size=4)
    with pytest.raises(ValueError, match="at least 2"):
        inference.elbo.evidence(model, guide, rows, passes=1)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_of_a_depth_that_is_summed_out(task):
    """Any number of rows, and any part of them, against the sum over depths by brute force."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 2, generator=generator)
    y = (x[:, 0] > 0).long() if task == "classification" else x.sum(1, keepdim=True) + 1
    rows = data.Dataset.from_tensors(x, y, x[:9], y[:9])
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(rows, width=4, max_depth=3, prior=priors.Geometric(0.7))
    for _ in range(20):
        model.stack.outputs(x)  # statistics
    model.eval()
    with torch.no_grad():  # depths that are not far apart, so that several count
        model.stack.head.weight.mul_(0.02)
    for split, count in (("train", None), ("train", 1100), ("train", 7), ("test", None)):
        inputs, targets = (part[:count] for part in rows.split(split))
        with torch.no_grad():
            terms = model.likelihood(model.stack.outputs(inputs)).log_prob(targets).double()
        joint = [float(p) + float(t.sum()) for p, t in zip(model.log_prior, terms, strict=True)]
        top = max(joint)
        expected = top + math.log(sum(math.exp(v - top) for v in joint))
        found = inference.elbo.evidence(
            model, guides.Marginal(model), rows, split=split, rows=count
        )
        assert found.elbo == pytest.approx(expected, rel=1e-6)
        assert (found.error, found.kl, found.rows) == (0.0, 0.0, len(inputs))
        bound = inference.elbo.evidence(model, guides.CategoricalDepth(model), rows, split=split)
        assert bound.elbo <= found.elbo or count is not None
