"""Formulas of the experiments, and what their tables count."""

import math

import pytest
import torch
from pyroccam import guides, models
from pyroccam.models import priors
from random_weights import Rows, small_net

from experiments.published.variance import phase_transition, toys
from experiments.published.variance.toys import (
    CENTRES,
    REGIONS,
    blob_fit,
    blobs,
    code,
    coverage,
    gap,
    inputs,
)


def test_permuted_deviations():
    """Means and biases stay, deviations are the same numbers elsewhere."""
    model = models.BayesianNetwork(small_net(), Rows(3), prior=priors.LogUniform())
    guide = guides.VariationalDropout(model, log_alpha=1.0)
    torch.manual_seed(0)
    with torch.no_grad():
        guide.part("factors")["0/bias"].loc.fill_(7.0)
    other = phase_transition.permuted(model, guide)
    rates = phase_transition.log_alphas(model, guide)
    assert rates["0"] == pytest.approx(1.0, abs=1e-4)
    assert other.posterior("0.bias").mean.tolist() == [7.0] * 4
    for site in ("0.weight", "2.weight"):
        q, p = (g.posterior(site).base_dist for g in (guide, other))
        assert torch.equal(q.loc, p.loc)
        ordered = [one.scale.detach().flatten().sort().values for one in (q, p)]
        torch.testing.assert_close(*ordered)
        assert not torch.allclose(q.scale, p.scale)


def test_coverage_of_a_normal_predictive():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(20_000, 5, generator=generator)
    y = torch.tensor([0.0, 1.9, -1.9, 2.1, -2.1])  # 1.96 is the limit
    share, width = coverage(drawn, y)
    assert share == pytest.approx(3 / 5)
    assert width == pytest.approx(2 * 1.96, abs=0.1)
    share, width = coverage(drawn, y / 4, level=0.5)  # 0.674
    assert share == 1.0
    assert width == pytest.approx(2 * 0.674, abs=0.05)


def test_rows_of_the_toys_are_where_they_are_said_to_be():
    data = gap(0)
    x = data.x_train * data.x_std + data.x_mean
    sides = torch.tensor(toys.SIDES)
    inside = ((x >= sides[:, 0] - 1e-5) & (x <= sides[:, 1] + 1e-5)).sum(0)
    assert inside.tolist() == [200, 200]
    generator = torch.Generator().manual_seed(0)
    for region, intervals in REGIONS.items():
        x = inputs(intervals, 50, generator)
        low, high = torch.tensor(intervals).T
        assert bool(((x >= low) & (x <= high)).any(1).all()), region
        if region != "between rows":
            assert not bool(((x >= sides[:, 0]) & (x <= sides[:, 1])).any())
    four = blobs(0)
    x = four.x_train * four.x_std + four.x_mean
    for k, centre in enumerate(CENTRES):
        own = x[four.y_train == k]
        assert len(own) == 500
        # five standard errors
        assert float((own.mean(0) - torch.tensor(centre)).abs().max()) < 5 / math.sqrt(500)
        assert float((own.std(0) - 1).abs().max()) < 5 / math.sqrt(1000)


def test_the_code_is_what_the_layer_draws_by():
    data = blobs(0, each=50)
    fit = blob_fit(data, seed=0, steps=20, width=12)
    x = data.x_test[:3]
    found = code(fit, x)
    seen = []
    layer = dict(fit.model.part("net").named_children())["variance"]
    hook = layer.register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    fit.outputs(x.repeat(4000, 1), draws=1, noise="activations")  # each row has its own noise
    hook.remove()
    drawn = torch.cat(seen).view(4000, 3, 2)
    # of a normal: mean zero, and the deviation to within five standard errors
    z = drawn.mean(0) / (drawn.std(0) / math.sqrt(4000))
    assert float(z.abs().max()) < 5
    ratio = drawn.std(0) / found
    assert float((ratio - 1).abs().max()) < 5 / math.sqrt(2 * 4000)
