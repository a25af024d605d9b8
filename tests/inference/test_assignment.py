"""Components that become one, and weights that become a component's mean."""

import pytest
import torch
from pyroccam import guides, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.shrinking.weight_sharing import (
    assign,
    assigned_guide,
    belongs,
    merged,
    mixtures,
)
from pyroccam.models import priors
from pyroccam.models.distributions.mixture import Components
from random_weights import Rows, small_net
from scipy import stats


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


def test_chains_of_components_and_the_one_at_zero():
    c = components([0.4, 0.3, 0.2, 0.1], [0.0, 1e-4, 5.0, 2e-4], [0.1, 0.1, 0.1, 0.1])
    one = merged(c, within=1e-4)
    assert one.mixing.tolist() == pytest.approx([0.8, 0.2])
    assert one.loc.tolist() == [0.0, 5.0]  # the mean of the first stays


def test_the_assigned_point_is_a_guide_of_shared_values():
    model, guide = fitted()
    found = assign(model, guide)
    for name, one in found.items():
        w = guide.posterior(f"{name}.weight").v.detach()
        expected = torch.tensor([-0.5, 0.0, 0.5]).repeat(4)[: w.numel()].reshape(w.shape)
        torch.testing.assert_close(one.weight, expected)
        assert one.used.tolist() == [1, 2]  # of 4 components; 3 has no weight, 0 makes zeros
        assert (one.weight[one.index == 0] == 0.0).all()
        assert len(one.components.loc) == 4
    with torch.no_grad():
        guide.posterior("2.weight").v[:, :] = 0.47  # one value in this layer, and no zero
        guide.posterior("0.bias").v.fill_(0.123)
    shared = assigned_guide(model, guide)
    assert shared.sizes == {"0": 2, "2": 1}
    net = mean_network(model, shared)
    for name, one in assign(model, guide).items():
        assert torch.equal(net.get_submodule(name).weight, one.weight)
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
        assign(model, guides.Delta(model))
    mixed = {"0": priors.Normal(), "2": priors.GaussianMixture(4)}
    model = models.BayesianNetwork(small_net(), Rows(3), prior=mixed)
    assert list(mixtures(model)) == list(assign(model, guides.Delta(model))) == ["2"]
    guide = guides.Delta(model)
    with torch.no_grad():
        guide.posterior("2.weight").v.fill_(5.0)
    assert assigned_guide(model, guide).sizes == {"2": 1}
