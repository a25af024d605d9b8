"""What a posterior says of groups, and where the cut is made."""

import math

import pytest
import torch
from fitting import blobs
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import layer_moments
from pyroccam.inference.posterior.draws import draw_weights
from pyroccam.inference.shrinking import irrelevance, of_groups
from pyroccam.inference.shrinking.relevance import search, valley, weight_irrelevance
from pyroccam.models import priors
from torch import nn


def pair(prior, guide=guides.MeanField):
    """A guide with random parameters, in double precision."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))
    model = models.BayesianNetwork(net, blobs(), prior=prior)
    made = guide(model)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.7 * torch.randn(p.shape, generator=generator))
    return model.double(), made.double()


def mixture(spread, counts=(400, 200)):
    """Two clusters, at -5 and 2."""
    generator = torch.Generator().manual_seed(0)
    parts = zip((-5.0, 2.0), counts, strict=True)
    return torch.cat([m + spread * torch.randn(n, generator=generator) for m, n in parts]).double()


def test_what_is_judged_by_its_own_distribution():
    for prior, site in ((priors.GroupNormalJeffreys(), "scale"), (priors.LogUniform(), "weight")):
        model, guide = pair(prior)
        found = irrelevance(model, guide)["2"]
        q = guide.posterior(f"2.{site}").base_dist
        torch.testing.assert_close(found.values, (q.variance / q.mean**2).log())
        assert found.grouped == (site == "scale")
    torch.testing.assert_close(irrelevance(model, guide, by="noise")["2"].values, found.values)
    model, guide = pair(priors.SpikeSlab(0.2))
    logits = guide.factors["0/gate"].logits
    torch.testing.assert_close(irrelevance(model, guide)["0"].values, -logits.detach())
    with pytest.raises(PyroccamError):
        irrelevance(*pair(priors.Normal(), guides.Delta))


@pytest.mark.parametrize("prior", [priors.GroupNormalJeffreys(), priors.GroupHorseshoe(tau0=0.1)])
def test_weights_are_judged_by_the_noise_of_what_a_network_computes_with(prior):
    """Against the variance of drawn weights over their squared mean, where that is well known."""
    model, guide = pair(prior)
    with torch.no_grad():  # moments of wide log-normal scales are known by few of their draws
        for factor in guide.factors.values():
            factor.log_scale.fill_(math.log(0.2))
    torch.manual_seed(1)
    draws = draw_weights(model, guide, 20_000)
    for name, one in weight_irrelevance(model, layer_moments(model, guide)).items():
        drawn = draws[f"{name}.weight"]
        known = drawn.mean(0).abs() > 20 * drawn.std(0) / len(drawn) ** 0.5
        alpha = (drawn.var(0) / drawn.mean(0) ** 2).log()
        assert not one.grouped
        assert known.sum() >= 5
        assert (one.values - alpha)[known].abs().max() < 0.25


def test_a_group_goes_with_the_last_of_its_weights():
    model, guide = pair(priors.GroupNormalJeffreys())
    one = weight_irrelevance(model, layer_moments(model, guide))["2"]
    groups = of_groups(one, model.layers["2"])
    for threshold in one.values.quantile(torch.tensor([0.1, 0.5, 0.9]).double()):
        left = (one.values <= threshold).any(0)  # groups are of inputs
        assert torch.equal(groups.values <= threshold, left)
    assert of_groups(groups, model.layers["2"]) is groups
    free = pair(priors.LogUniform())
    alone = weight_irrelevance(free[0], layer_moments(*free))["2"]
    assert of_groups(alone, free[0].layers["2"]) is alone


def test_log_normal_scales_are_judged_by_the_mode_of_their_product():
    """The mode of a histogram of draws, by bins of a twentieth of a unit."""
    model, guide = pair(priors.GroupHorseshoe(tau0=0.1))
    sites = ("global.a", "global.b", "scale.a", "scale.b")
    with torch.no_grad():  # narrow: the product's spread of 0.3 is the sum of the four
        for site in sites:
            guide.factors[f"0/{site.replace('.', '/')}"].log_scale.fill_(math.log(0.3))
    found = irrelevance(model, guide)["0"]
    torch.manual_seed(1)
    product = 1.0
    for site in sites:
        product = product * guide.posterior(f"0.{site}").sample((400_000,)).reshape(400_000, -1)
    for group, value in enumerate(found.values):
        draws = product.sqrt()[:, group]
        edges = torch.exp(-value) * torch.linspace(0.4, 2.5, 43, dtype=torch.float64)
        counts = torch.histogram(draws.cpu(), edges).hist
        smooth = nn.functional.avg_pool1d(counts[None, None], 5, 1)[0, 0]
        mode = edges[int(smooth.argmax()) + 2] + 0.025 * torch.exp(-value)
        assert abs(float(mode * torch.exp(value)) - 1.0) < 0.11


@pytest.mark.parametrize(
    ("spread", "counts"), [(0.3, (400, 200)), (1.0, (2000, 60)), (0.5, (12_000, 6000))]
)
def test_the_valley_lies_where_the_density_of_two_normals_is_least(spread, counts):
    values = mixture(spread, counts)
    grid = torch.linspace(-5, 2, 7001, dtype=torch.float64)
    n, m = counts
    density = n * torch.exp(-0.5 * ((grid + 5) / spread) ** 2)
    density += m * torch.exp(-0.5 * ((grid - 2) / spread) ** 2)
    found = valley(values)
    # Hardly any value between: any threshold in the gap cuts the same.
    cut, best = ((values > t).sum() for t in (found, grid[density.argmin()]))
    assert abs(int(cut) - int(best)) <= 0.01 * len(values)
    odd = torch.cat([values, torch.tensor([math.inf, math.nan])])
    assert valley(odd) == pytest.approx(found)


def test_one_cluster_has_no_valley():
    generator = torch.Generator().manual_seed(3)
    for values in (
        torch.randn(500, generator=generator),
        torch.rand(400, generator=generator),
        torch.zeros(50),
        torch.tensor([1.0, 5.0]),
    ):
        assert valley(values.double()) is None


SIZES = {  # how many values, and how many of the first are needed
    "groups": {"a": (40, 10), "b": (25, 20), "c": (10, 10)},
    "single weights": {"wide": (60_000, 300), "last": (50, 50)},
}


@pytest.mark.parametrize("name", SIZES)
def test_the_search_cuts_what_costs_nothing_and_keeps_the_rest(name):
    """The cost counts needed ones that are cut."""
    generator = torch.Generator().manual_seed(5)
    needed = {n: few for n, (_, few) in SIZES[name].items()}
    values = {
        n: torch.randn(k, generator=generator).double() - 10 * (n == "last")
        for n, (k, _) in SIZES[name].items()
    }
    calls = []

    def kept(thresholds):
        return {n: int((values[n] <= t).sum()) for n, t in thresholds.items()}

    def cost(thresholds):
        calls.append(1)
        return float(sum(max(0, needed[n] - k) for n, k in kept(thresholds).items()))

    def size(thresholds):
        return float(sum(kept(thresholds).values()))

    found = search(values, cost, limit=0.0, size=size)
    assert len(calls) < 60 + 60 * (name == "groups")  # each may be a pass over validation rows
    assert all(needed[n] <= k <= 1.05 * needed[n] for n, k in kept(found).items())
    if name == "groups":
        assert sum(needed.values()) - size(search(values, cost, limit=3.0, size=size)) == 3
