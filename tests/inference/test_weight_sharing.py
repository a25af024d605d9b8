"""Components that become one, weights that become a component's mean, or end on levels."""

import copy
import math

import pytest
import torch
from fitting import blobs
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import mean_network
from pyroccam.inference.shrinking import books, levels_of
from pyroccam.inference.shrinking.weight_sharing import (
    assigned_guide,
    belongs,
    merged,
    mixtures,
    on_levels,
)
from pyroccam.models import priors
from pyroccam.models.distributions import Components
from random_weights import Rows, small_net
from scipy import stats
from torch import nn


def components(mixing, loc, scale):
    return Components(*(torch.tensor(t, dtype=torch.float64) for t in (mixing, loc, scale)))


def fitted(prior=None):
    """A network of 3-4-2 under a mixture at -½, 0 and ½ (and a fourth that nothing is near)."""
    torch.manual_seed(0)
    prior = priors.GaussianMixture(4, zero=0.9) if prior is None else prior
    model = models.BayesianNetwork(small_net(), Rows(3), prior=prior)
    guide = guides.Delta(model)
    shared = model.layers["0"].prior.held[0]
    with torch.no_grad():
        shared.loc.copy_(torch.tensor([-0.5, 0.5, 3.0]) / 0.2)
        shared.log_precision.fill_(6.0 / 6.0)
        for name in ("0.weight", "2.weight"):
            v = guide.posterior(name).v
            v.copy_(torch.tensor([-0.5, 0.01, 0.45]).repeat(4)[: v.numel()].reshape(v.shape))
    return model, guide


def test_weights_belong_to_the_component_of_greatest_responsibility():
    c = components([0.7, 0.2, 0.1], [0.0, 0.3, -0.2], [0.1, 0.02, 0.5])
    w = torch.linspace(-1.0, 1.0, 201).reshape(3, 67)
    each = zip(*(t.tolist() for t in c), strict=True)
    densities = [m * stats.norm(k, s).pdf(w.double().numpy()) for m, k, s in each]
    total = sum(densities)
    responsibilities = torch.stack([torch.as_tensor(d / total) for d in densities])
    index = belongs(w, c)
    assert index.shape == w.shape
    torch.testing.assert_close(index, responsibilities.argmax(0))
    assert set(index.flatten().tolist()) == {0, 1, 2}
    # The nearest mean is not it: a wide component takes what is far from all.
    assert belongs(torch.tensor([0.6]), c).item() == 2
    # Nor is the densest, where proportions differ.
    even = components([0.5, 0.5], [0.0, 1.0], [0.5, 0.5])
    uneven = components([0.99, 0.01], [0.0, 1.0], [0.5, 0.5])
    assert belongs(torch.tensor([0.6, 1.9]), even).tolist() == [1, 1]
    assert belongs(torch.tensor([0.6, 1.9]), uneven).tolist() == [0, 1]
    narrow = components([0.5, 0.5 - 1e-30, 1e-30], [0.0, 1.0, 2.0], [1e-4, 1e-4, 1e-4])
    assert belongs(torch.tensor([-50.0, 50.0, 0.4, 0.6]), narrow).tolist() == [0, 2, 0, 1]


def test_merging_keeps_mass_mean_and_variance():
    c = components([0.5, 0.2, 0.1, 0.2], [0.0, 0.3, 0.31, -0.4], [0.1, 0.05, 0.06, 0.05])
    one = merged(c, within=0.1)
    assert len(one.loc) == 3
    torch.testing.assert_close(one.mixing, torch.tensor([0.5, 0.3, 0.2]).double())
    share = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    mean = (share * c.loc[1:3]).sum()
    variance = (share * (c.scale[1:3] ** 2 + (c.loc[1:3] - mean) ** 2)).sum()
    torch.testing.assert_close(one.loc, torch.stack([c.loc[0], mean, c.loc[3]]))
    torch.testing.assert_close(one.scale[1], variance.sqrt())


@pytest.mark.parametrize(
    ("loc", "scale", "left"),
    [(0.3 + 1e-7, 0.01, 2), (0.3 + 2e-7, 0.01, 3), (0.3, 0.0101, 3)],
)
def test_only_what_does_not_differ_is_merged(loc, scale, left):
    """At the published 1e-10 nats: means within 1.4e-5 standard deviations."""
    c = components([0.5, 0.25, 0.25], [0.0, 0.3, loc], [0.1, 0.01, scale])
    assert len(merged(c).loc) == left


def test_the_assigned_point_is_a_guide_of_shared_values():
    model, guide = fitted()
    for name, (book, index) in books(model, guide).items():
        w = guide.posterior(f"{name}.weight").v.detach()
        expected = torch.tensor([-0.5, 0.0, 0.5]).repeat(4)[: w.numel()].reshape(w.shape)
        assert len(book) == 2  # of 4 components; one has no weight, one makes zeros
        torch.testing.assert_close(torch.cat([book, torch.zeros(1)])[index], expected)
    with torch.no_grad():
        guide.posterior("2.weight").v[:, :] = 0.47  # one value in this layer, and no zero
        guide.posterior("0.bias").v.fill_(0.123)
    shared = assigned_guide(model, guide)
    assert shared.sizes == {"0": 2, "2": 1}
    net = mean_network(model, shared)
    for name, (book, index) in books(model, guide).items():
        assert torch.equal(net.get_submodule(name).weight, torch.cat([book, torch.zeros(1)])[index])
    assert net[0].bias.tolist() == pytest.approx([0.123] * 4)
    assert (guide.posterior("2.weight").v == 0.47).all()  # the fit stays as it was
    with torch.no_grad():
        guide.posterior("0.weight").v.fill_(0.001)
    with pytest.raises(PyroccamError):
        assigned_guide(model, guide)


def test_mixtures_of_other_priors():
    model = models.BayesianNetwork(small_net(), Rows(3), prior=priors.Normal())
    assert mixtures(model) == {}
    with pytest.raises(PyroccamError):
        books(model, guides.Delta(model))
    mixed = {"0": priors.Normal(), "2": priors.GaussianMixture(4)}
    model = models.BayesianNetwork(small_net(), Rows(3), prior=mixed)
    assert list(mixtures(model)) == ["2"]
    guide = guides.Delta(model)
    with torch.no_grad():
        guide.posterior("2.weight").v.fill_(5.0)
    assert assigned_guide(model, guide).sizes == {"2": 1}


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
