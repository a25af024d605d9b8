"""Variational network quantisation: weights are trained near levels, and end on them."""

import copy
import math

import pytest
import torch
from fitting import blobs
from pyroccam import guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.shrinking.weight_sharing import levels_of, on_levels
from pyroccam.models import priors
from torch import nn

PRIOR = priors.MultiSpike(5)

# The weights are not learnt: a cut by a number may well cost.
pytestmark = pytest.mark.filterwarnings("ignore:The cut by")


def trained(prior=PRIOR, hidden=40):
    """A fit of two layers whose weights are near 0, ±0.3 and ±0.6, some of them noise."""
    torch.manual_seed(0)
    rows = blobs()
    net = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    model = models.BayesianNetwork(net, rows, prior=prior)
    guide = guides.MeanField(model)
    fit = inference.fit(model, guide, rows, epochs=1, lr=1e-5, progress=False, device="cpu")
    with torch.no_grad():
        for name, layer in model.layers.items():
            if prior.levels and hasattr(layer.prior, "level"):
                layer.prior.level.fill_(0.6 / 0.01)
            factor = guide.factor_of(f"{name}.weight")
            book = torch.tensor([-0.6, -0.3, 0.0, 0.3, 0.6])
            index = torch.randint(5, factor.loc.shape)
            factor.loc.copy_((book[index] + 0.1 * (torch.rand(index.shape) - 0.5)).clamp(-0.6, 0.6))
            # Half of the zeros are noise: log alpha is above 3, whatever their mean.
            factor.log_scale.fill_(math.log(0.02))
            factor.log_scale[(index == 0) & (torch.rand(index.shape) < 0.5)] = math.log(5.0)
    return fit


@pytest.fixture(scope="module")
def fit():
    return trained()


def test_what_is_noise_is_zero_and_the_rest_on_the_nearest_level(fit, tmp_path):
    small = inference.shrink(fit, cut=inference.Thresholds(3.0))
    again = inference.load(small.save(tmp_path / "small.pocc"))
    levels = levels_of(fit.model)
    assert {name: len(own) for name, own in levels.items()} == {"0": 5, "2": 5}
    assert {name: bits.total for name, bits in small.report.bits.items()} == {"0": 2, "2": 2}
    for name, own in levels.items():
        q = fit.guide.posterior(f"{name}.weight").base_dist
        noise = 2 * q.scale.log() - q.loc.square().log() > 3
        nearest = own[(q.loc[..., None] - own).abs().argmin(-1)]
        expected = torch.where(noise, 0.0, nearest)
        assert (nearest[noise] != 0).any()
        part = small.report.layers.get(name)
        if part is not None:
            expected = expected[part.outputs][:, part.inputs]
        for net in (small.net, again):  # the very numbers
            assert torch.equal(net.get_submodule(name).weight.detach(), expected)


def test_thresholds_are_judged_by_weights_on_the_levels(fit):
    """By the validation rows, within the tolerance of the rounded network, not of the means."""
    small = inference.shrink(fit, cut=inference.ByValidation(0.01))
    x, y = fit.data.x_val, fit.data.y_val
    means = fit.posterior.mean_network()
    rounded = on_levels(means, levels_of(fit.model))
    nll = {
        name: -float(fit.model.likelihood(net(x).detach()).log_prob(y).mean())
        for name, net in (("rounded", rounded), ("small", small.net), ("means", means))
    }
    assert nll["small"] <= nll["rounded"] + 0.01 + 1e-6
    assert abs(nll["rounded"] - nll["means"]) > 0.02  # so the two rules differ


def test_a_free_first_layer_keeps_values_of_its_own():
    fit = trained(priors.MultiSpike(5, first="free"))
    small = inference.shrink(fit, cut=inference.Thresholds(3.0))
    first, second = (p.detach() for p in small.net.parameters() if p.dim() == 2)
    assert len(first.unique()) > 20
    assert {*second.unique().tolist()} <= {*levels_of(fit.model)["2"].tolist()}
    assert small.report.bits["0"].total > 2
    assert small.report.bits["2"].total == 2


def test_what_cannot_be_is_refused(fit):
    for how in ({"cut": inference.Search(2)}, {"code": inference.Digits(epochs=2)}):
        with pytest.raises(PyroccamError):
            inference.shrink(fit, **how)
    with pytest.raises(PyroccamError):
        on_levels(nn.Sequential(nn.Linear(2, 3)), {"0": torch.tensor([-9.0, 0.0, 9.0])})


def test_a_narrower_network_keeps_means_between_levels_and_its_levels(fit):
    """Narrowing is on the way: nothing is rounded yet."""
    model, guide = inference.narrow(fit, cut=inference.Thresholds(3.0))
    for name, own in levels_of(model).items():
        torch.testing.assert_close(own, levels_of(fit.model)[name])
        assert len(guide.posterior(f"{name}.weight").mean.unique()) > 20


# -- the posterior ---------------------------------------------------------------------------------


def test_means_stay_between_the_outer_levels_and_return():
    net = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.5, -0.5], [0.2, -0.1], [3.0, 0.5]]))
    model = models.BayesianNetwork(net, blobs(), prior=priors.MultiSpike())
    guide = guides.MeanField(model, scale=0.1)
    (level,) = {float(own[-1]) for own in levels_of(model).values()}
    limit = level + math.exp(-1.5) * 0.1
    factor = guide.factor_of("0.weight")
    start = guide.posterior("0.weight").mean
    torch.testing.assert_close(start, net[0].weight.detach().clamp(-limit, limit))
    with torch.no_grad():
        factor.loc[0, 0] = limit + 0.05  # a step across the limit
    mean = guide.posterior("0.weight").mean
    assert mean[0, 0].item() == pytest.approx(limit - 0.05)
    (slope,) = torch.autograd.grad(mean.sum(), factor.loc)
    assert slope[0, 0] == -1.0
    assert slope[1, 0] == 1.0
    with torch.no_grad():
        factor.loc.fill_(100.0)
    assert (guide.posterior("0.weight").mean.abs() <= limit + 1e-6).all()


def test_a_copy_of_the_guide_looks_at_the_prior_that_is_trained():
    fit = trained()
    model, guide = fit.model, fit.guide
    prior = model.layers["0"].prior
    assert copy.deepcopy(guide).factor_of("0.weight").lent.module is prior
    other, both = copy.deepcopy((model, guide))
    assert both.factor_of("0.weight").lent.module is other.layers["0"].prior is not prior
    assert not [n for n, _ in both.named_parameters() if "level" in n]
    begun = guides.ZeroMean(other, layers=["2"], begin=guide)
    assert begun.factor_of("0.weight").lent.module is other.layers["0"].prior
