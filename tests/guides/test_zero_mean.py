"""Variance networks: guides without means."""

import math

import pytest
import torch
from pyroccam import guides, inference
from pyroccam.data import PyroccamError
from pyroccam.inference.elbo import bound
from pyroccam.inference.posterior import layer_moments
from pyroccam.models import BayesianNetwork, priors
from random_weights import Rows, outputs, pair, small_net, table
from torch import nn

QUICK = {"device": "cpu", "progress": False, "compile": False, "weight_decay": 0.0}

pytestmark = pytest.mark.usefixtures("clean")


def zero_mean(net, shape, **options):
    model = BayesianNetwork(net, Rows(*shape), prior=priors.LogUniform(), random_biases=False)
    return model, guides.ZeroMean(model, **options)


def test_mean_propagation_gives_nothing_and_the_bound_is_the_likelihood():
    rows = table()
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    model = BayesianNetwork(net, rows, prior=priors.LogUniform(), layers=["0"], random_biases=False)
    guide = guides.ZeroMean(model)
    assert model.sites.keys() == {"0.weight"}
    terms = bound(model, guide).terms(*rows.split("train"))
    assert float(terms.kl) == 0.0
    fit = inference.fit(model, guide, rows, epochs=2, **QUICK)
    means = fit.outputs(rows.x_test, "deterministic")[0]
    assert float((means - means[0]).abs().max()) == 0.0  # the same for every input


def test_a_layer_beside_others():
    model = BayesianNetwork(small_net(), Rows(3), prior=priors.GroupNormalJeffreys())
    guide = guides.ZeroMean(model, layers="0")
    assert guide.traits.zero_mean == ("0",)
    q = guide.posterior("0.weight").base_dist
    torch.testing.assert_close(q.scale, model.layers["0"].start["weight"].abs())
    assert float(guide.posterior("2.weight").base_dist.loc.detach().abs().min()) > 0
    assert guides.MeanField(model).traits.zero_mean == ()


@pytest.mark.parametrize("noise", ["uniform", "rademacher"])
def test_noise_that_is_not_normal_is_drawn(noise):
    model, guide = zero_mean(nn.Linear(3, 2), (3,), noise=noise)
    x = torch.randn(5, 3)[[0, 0, 1, 1, 2]]
    with guide.handler, torch.no_grad():
        out = outputs(model, guide, x)
    torch.testing.assert_close(out[0], out[1])  # one draw for the batch
    moment = layer_moments(model, guide)[""]
    assert float(moment.mean.abs().max()) == 0.0
    assert guide.factor_of(".weight").evidence() is None  # no rate to be judged by
    share = 1.0 if noise == "rademacher" else 1.0 / 3.0
    torch.testing.assert_close(
        moment.variance, share * model.layers[""].start["weight"].square(), rtol=1e-5, atol=0
    )


def test_a_swap_costs_what_the_means_are_worth():
    """By Monte Carlo, against the KL between the two posteriors; everything else stays."""
    rows = table()
    net = small_net()
    model = BayesianNetwork(net, rows, prior=priors.LogUniform())
    guide = guides.VariationalDropout(model, rate="layer", log_alpha=4.0)
    with torch.no_grad():
        guide.part("factors")["2/weight"].log_alpha.fill_(-3.0)
        guide.part("factors")["0/bias"].loc.normal_()
    fit = inference.fit(model, guide, rows, epochs=1, lr=1e-6, **QUICK)
    costs = inference.shrinking.mean_costs(model, guide)
    assert costs["0"] == pytest.approx(12 * 0.5 * math.exp(-4.0), rel=1e-3)
    assert costs["2"] == pytest.approx(8 * 0.5 * math.exp(3.0), rel=1e-3)
    _, without = inference.shrinking.without_means(fit)
    assert without.traits.zero_mean == ("0",)
    before, after = guide.posterior("0.weight"), without.posterior("0.weight")
    torch.testing.assert_close(after.variance, before.variance)
    w = before.sample((40_000,))
    ratio = (before.log_prob(w) - after.log_prob(w)).detach()
    error = float(ratio.std()) / 200
    assert abs(float(ratio.mean()) - costs["0"]) < 5 * error
    for site in ("0.bias", "2.weight", "2.bias"):
        for name in ("loc", "scale"):
            a, b = (getattr(g.posterior(site).base_dist, name) for g in (guide, without))
            assert torch.equal(a, b)
            assert a is not b
    with pytest.raises(PyroccamError):
        inference.shrinking.without_means(fit, max_kl=1e-5)
    _, just = inference.shrinking.without_means(fit, max_kl=costs["0"] * 1.01)
    assert just.traits.zero_mean == ("0",)
    _, both = inference.shrinking.without_means(fit, layers=["0", "2"])
    assert both.traits.zero_mean == ("0", "2")


@pytest.mark.parametrize("noise", ["normal", "uniform", "rademacher"])
def test_deviations_are_taken_over(noise):
    model, begin = pair(small_net(), (3,), priors.LogUniform())
    for guide in (begin, guides.ZeroMean(model, begin=begin, noise=noise)):
        other = guides.ZeroMean(model, begin=guide, noise=noise)
        for site in ("0.weight", "2.weight"):
            found, before = (g.posterior(site).variance for g in (other, begin))
            torch.testing.assert_close(found, before)


def test_what_cannot_be():
    rows = table()
    model = BayesianNetwork(small_net(), rows, prior=priors.GroupNormalJeffreys())
    zero = small_net()
    nn.init.zeros_(zero[2].weight)
    dead = BayesianNetwork(zero, Rows(3), prior=priors.LogUniform())
    other = BayesianNetwork(nn.Linear(3, 2), Rows(3), prior=priors.LogUniform())
    for of, options in (
        (model, {"layers": ["first"]}),
        (model, {"layers": []}),
        (dead, {}),
        (model, {"begin": guides.MeanField(other)}),
    ):
        with pytest.raises(PyroccamError):
            guides.ZeroMean(of, **options)
    assert guides.ZeroMean(dead, scale=0.1).traits.zero_mean == ("0", "2")
    fit = inference.fit(model, guides.ZeroMean(model, layers="2"), rows, epochs=1, **QUICK)
    for cut in (inference.shrink, inference.narrow):  # there is no mean network
        with pytest.raises(PyroccamError):
            cut(fit)
