"""Variances of drawn gradients, their errors, and the script that measures them."""

import pytest
import torch
from fitting import blobs
from pyroccam import guides, models
from torch import nn

from experiments.published.gradient_variance import (
    Drawn,
    agreement,
    gradients,
    kinds,
)


def generator():
    return torch.Generator().manual_seed(0)


def test_the_variance_is_the_sum_over_parameters_with_its_jackknife():
    g = torch.randn(7, 5, generator=generator(), dtype=torch.float64)
    drawn = Drawn.of(g)
    assert drawn.variance == pytest.approx(float(g.var(0).sum()))
    without = [float(torch.cat([g[:r], g[r + 1 :]]).var(0).sum()) for r in range(7)]
    torch.testing.assert_close(drawn.left_out, torch.tensor(without, dtype=torch.float64))
    with pytest.raises(ValueError, match="3 gradients or more, got 2"):
        Drawn.of(g[:2])


def test_agreement_sees_a_difference_and_none_where_there_is_none():
    sizes = torch.linspace(0.1, 3.0, 40)  # coordinates that differ in scale, all correlated
    common = torch.randn(60, 1, generator=generator())
    one, other = (common + sizes * torch.randn(60, 40, generator=generator()) for _ in range(2))
    other = other.flip(0)
    same = agreement(1.0 + one, 1.0 + other, generator())
    assert same["p"] > 0.01
    assert abs(same["z"]) < 3
    apart = agreement(1.0 + one, 2.0 + other, generator())
    assert apart["p"] < 0.001
    assert apart["distance"] == pytest.approx(1.0, rel=0.3)


def test_parameters_by_kind_and_gradients_in_their_order():
    rows = blobs()
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    model = models.BayesianNetwork(net, rows, prior=models.priors.GroupNormalJeffreys())
    guide = guides.MeanField(model)
    where = kinds(model, guide)
    counts = {kind: len(at) for kind, at in where.items()}
    expected = {"weight": 20, "scale": 6, "bias": 7}
    parts = {f"{k} {what}": n for k, n in expected.items() for what in ("loc", "log-scale")}
    assert counts == {"all": 66, **parts}
    assert sorted(torch.cat([at for k, at in where.items() if k != "all"]).tolist()) == [*range(66)]
    guide.handler = None
    with torch.no_grad():
        for factor in guide.factors.values():
            factor.log_scale.fill_(-20.0)
    (g,) = gradients(model, guide, [(rows.x_train, rows.y_train)])
    assert g.shape == (66,)
    # Where nothing is drawn any more, the slope of a normal's KL is -1 for each log-scale.
    for kind in ("weight log-scale", "bias log-scale"):
        torch.testing.assert_close(g[where[kind]] * model.size, torch.full((counts[kind],), -1.0),
                                   atol=1e-3, rtol=1e-3)  # fmt: skip
