"""A stack of random weights and random depth, fitted, settled, cut and shown."""

import math

import numpy as np
import pytest
import torch
from plain import network
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.cutting import multiply_adds
from pyroccam.inference.diagnostics import prior_sensitivity
from pyroccam.inference.diagnostics.simulation import _Simulation
from pyroccam.inference.elbo import evidence
from pyroccam.inference.posterior import posterior_of
from pyroccam.inference.posterior.depth import EQUAL, depth_posterior_of_weights
from pyroccam.inference.shrinking import settled
from pyroccam.models import priors
from scipy.stats import norm
from stacks import odd_stack
from torch import nn

DIGITS = data.load("digits", test_fraction=0.5)
HOW = {"epochs": 6, "lr": 5e-3, "batch_size": 100, "kl_warmup": 0.2, "progress": False}


def pair(prior=None, guide=guides.MeanField, **options):
    prior = priors.GroupNormalJeffreys() if prior is None else prior
    model = models.BayesianStack(odd_stack(64, 10), DIGITS, prior=prior)
    return model, guide(model, **options)


@pytest.fixture(scope="module")
def fitted():
    return inference.fit(*pair(scale=0.1), DIGITS, **HOW)


def test_the_depth_is_the_exact_posterior_at_the_end(fitted):
    q = fitted.guide.edge("depth").probs().double()
    data, found = fitted.data, fitted.structure
    again = depth_posterior_of_weights(fitted.model, fitted.guide, data)
    torch.testing.assert_close(q, again, atol=1e-5, rtol=1e-3)
    # It is an estimate: beside it stand those from other draws, with their error.
    assert found.log_errors[found.depth_chosen] == 0
    assert float(found.log_errors.max()) > 0.1
    assert 0 <= found.agreement <= 1
    assert fitted.history[-1]["depth_expected"] == pytest.approx(
        float(fitted.structure.depth_expected), abs=1e-3
    )


@pytest.mark.parametrize(("nats", "depth"), [(0.95, 0), (1.05, 1)])
def test_depths_that_are_as_good_are_so_in_the_objective(nats, depth):
    """A weight β of the KL makes N nats of the rows N / β of q(d)."""
    model, guide = pair(priors.Normal(1.0))
    short = -nats * EQUAL * DIGITS.N / 0.1
    with torch.no_grad():
        guide.edge("depth").logits.copy_(torch.tensor([short, 0.0, -50.0, -50.0]))
    found = posterior_of(model, guide).structure(DIGITS, 1.0, kl_weight=0.1)
    assert found.depth_chosen == depth
    assert found.threshold == pytest.approx(math.exp(-EQUAL * DIGITS.N / 0.1))


@pytest.mark.parametrize("depth", [0, 2])
def test_the_network_of_a_depth_computes_the_same(fitted, depth):
    """Alone and as an exit of the whole, with the numbers and the statistics that it has there."""
    alone = settled(fitted, depth)
    whole = fitted.posterior.mean_network()
    x = DIGITS.x_test[:50]
    with torch.no_grad():
        expected = whole.outputs(x)[depth]
        torch.testing.assert_close(alone.posterior.mean_network()(x), expected)
    assert type(alone.model) is models.BayesianNetwork
    left = [name for name in fitted.model.layers if depth in fitted.model.exits.used_at(name)]
    assert len(alone.model.layers) == len(left) == depth + 2 + (depth < 2)
    # What each weight costs, it costs there too.
    costs = [evidence(one.model, one.guide, DIGITS, passes=2).kl_by_site for one in (alone, fitted)]
    own = fitted.guide.edge("depth").probs()
    for name, there in zip(left, alone.model.layers, strict=True):
        used = own[list(fitted.model.exits.used_at(name))].sum().item()
        cost = costs[1][f"{name}.weight"]
        assert costs[0][f"{there}.weight"] * used == pytest.approx(cost, rel=1e-3, abs=1e-3)


def test_it_is_cut_in_one_call(fitted):
    """Blocks, groups and bits: what is left predicts as the settled network of the means does."""
    small = inference.shrink(fitted, cut=inference.Thresholds(3.0))
    depth = fitted.structure.depth_chosen
    assert f".{depth + 1}." not in " ".join(small.report.thresholds)
    (model, guide) = inference.narrow(fitted, cut=inference.Thresholds(3.0))
    again = inference.fit(model, guide, DIGITS, **{**HOW, "epochs": 1})
    assert again.evaluate()["accuracy"] > 0.5
    assert small.net(DIGITS.x_test[:5]).shape == (5, 10)
    assert small.report.parameters_after <= small.report.parameters_given


def transformer():
    """Over the rows of an image."""
    blocks = [nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)]
    head = nn.Sequential(network(lambda net, a: a.mean(1)), nn.Linear(8, 10))
    steps = network(lambda net, x: net.inputs(x.squeeze(1)), inputs=nn.Linear(8, 8))
    return models.DepthStack(steps, blocks, head)


def test_blocks_with_attention():
    """Settled, they compute what the exit does, and can be cut."""
    torch.manual_seed(0)
    model = models.BayesianStack(transformer(), DIGITS, prior=priors.GroupNormalJeffreys())
    fit = inference.fit(model, guides.MeanField(model), DIGITS, **{**HOW, "epochs": 1})
    x = DIGITS.x_test[:20]
    whole = fit.posterior.mean_network()
    for depth in (0, 2):
        alone = settled(fit, depth)
        with torch.no_grad():
            found = alone.posterior.mean_network()(x)
            torch.testing.assert_close(found, whole.outputs(x)[depth], rtol=1e-4, atol=1e-5)
        assert inference.shrink(alone, cut=inference.Thresholds(3.0)).net(x).shape == (20, 10)
    with pytest.raises(PyroccamError):
        settled(fit, 3)


@pytest.fixture
def undecided():
    """Normal weights, and a q(d) that gives some mass to every depth but the deepest."""
    model, guide = pair(priors.Normal(0.7), scale=0.1)
    fit = inference.fit(model, guide, DIGITS, **{**HOW, "epochs": 1})
    with torch.no_grad():
        fit.guide.edge("depth").logits.copy_(torch.tensor([0.4, 0.3, 0.3, 1e-30]).log())
    return fit


@pytest.mark.filterwarnings("ignore")  # ArviZ's, of what is missing
def test_arviz_shows_weights_where_the_depth_reaches_them(undecided):
    """What is missing has no density, and what is there has that of the values that are shown."""
    tree = undecided.to_arviz(draws=60, weights=True)
    shown, log_prior = tree["posterior"], tree["log_prior"]
    depth = shown["depth"].values[0].argmax(-1)
    total = np.zeros(60)
    for name in undecided.model.layers:
        used = np.isin(depth, undecided.model.exits.used_at(name))
        value = shown[f"{name}.weight"].values[0].reshape(60, -1).astype(float)
        assert (np.isfinite(value).all(1) == used).all()
        assert (np.isnan(value).all(1) == ~used).all()
        each = np.where(np.isnan(value), 0.0, norm(0.0, 0.7).logpdf(value)).sum(1)
        found = log_prior[f"{name}.weight"].values[0]
        np.testing.assert_allclose(found, each, rtol=1e-5, atol=1e-3)
        q = undecided.guide.factor_of(f"{name}.weight")()
        own = norm(*(t.detach().flatten().numpy() for t in (q.mean, q.stddev))).logpdf(value)
        total += np.where(np.isnan(own), 0.0, own).sum(1)
        for latent in {*undecided.model.layers[name].latents()} - {"weight"}:
            value = shown[f"{name}.{latent}"].values[0].reshape(60, -1)
            q = undecided.guide.factor_of(f"{name}.{latent}")()
            own = norm(*(t.detach().flatten().numpy() for t in (q.mean, q.stddev))).logpdf(value)
            total += np.where(np.isnan(own), 0.0, own).sum(1)
    total += np.log([0.4, 0.3, 0.3, 1e-30])[depth]
    np.testing.assert_allclose(tree["sample_stats"]["log_q"].values[0], total, rtol=1e-4)
    assert np.isfinite(tree["log_likelihood"]["y"].values).all()
    assert len({*depth}) == 3


@pytest.mark.filterwarnings("ignore")
def test_what_no_draw_reaches_is_moved_by_nothing(undecided):
    found = prior_sensitivity(undecided, draws=30, weights=True)
    assert np.isfinite(found.prior["depth"]).all()
    assert found.prior["stem.1.weight"].any()
    assert not found.prior["blocks.2.f.0.weight"].any()


def test_what_does_not_go_with_a_random_depth():
    model, guide = pair()
    with pytest.raises(PyroccamError):
        guides.MeanKL(model, nats=100.0)
    short = guides.MeanField(model, structure=guides.StructureFamily(hold=0.1))
    with pytest.raises(PyroccamError):
        inference.fit(model, short, DIGITS, **HOW)
    mixture = priors.GaussianMixture()
    blocks = [f"blocks.{i}.f.0" for i in range(2)]
    with pytest.raises(PyroccamError):
        models.BayesianStack(odd_stack(64, 10), DIGITS, prior=mixture, layers=blocks)
    alone = models.BayesianStack(odd_stack(64, 10), DIGITS, prior=priors.Normal(), layers=blocks)
    with pytest.raises(PyroccamError):
        alone.settled(DIGITS, {"depth": torch.eye(4)[0]})
    assert guide.schedule.held == 0.5


def test_a_weight_that_no_depth_reaches_is_judged_by_its_prior():
    """Simulations ask where a true value lies: beyond the depth, among draws of the prior."""
    model, guide = pair(priors.Normal(0.5))
    with torch.no_grad():
        guide.edge("depth").logits.copy_(torch.tensor([50.0, 0.0, 0.0, 0.0]))
        guide.factor_of("blocks.0.f.0.weight").centre.fill_(9.0)
    one = _Simulation.__new__(_Simulation)
    one.model, one.guide = model, guide
    truth = torch.linspace(-1.0, 1.0, 144).reshape(12, 12)
    below = one.below("blocks.0.f.0.weight", truth, np.random.default_rng(0))
    exact = torch.special.ndtr(truth.double() / 0.5).numpy()
    # The standard error of a share is 0.016 at most: five of them, for each of 144 numbers.
    assert np.abs(below - exact).max() < 0.08


def test_multiply_adds_are_those_of_the_products():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    assert multiply_adds(net, torch.zeros(1, 2, 4, 4)) == 16 * 3 * 2 * 9 + 48 * 5
