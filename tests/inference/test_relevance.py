"""What a posterior says of groups, and where the cut is made."""

import math

import pytest
import torch
from fitting import blobs
from pyroccam import guides, models
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError
from pyroccam.inference import figures
from pyroccam.inference.posterior.draws import draw_weights
from pyroccam.inference.posterior.layers import layer_moments
from pyroccam.inference.shrinking.relevance import (
    irrelevance,
    of_groups,
    search,
    valley,
    weight_irrelevance,
)
from pyroccam.models import priors
from torch import nn


def pair(prior, guide=guides.MeanField, seed=0):
    """A guide with random parameters, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))
    model = models.BayesianNetwork(net, blobs(), prior=prior)
    made = guide(model)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.7 * torch.randn(p.shape, generator=generator))
    return model.double(), made.double()


def mixture(low, high, spread, counts=(400, 200), seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = [
        m + spread * torch.randn(n, generator=generator)
        for m, n in zip((low, high), counts, strict=True)
    ]
    return torch.cat(parts).double()


# -- statistics ----------------------------------------------------------------------------------


def test_normal_scales_are_judged_by_their_dropout_rate():
    model, guide = pair(priors.GroupNormalJeffreys())
    found = irrelevance(model, guide)["2"]
    q = guide.posterior("2.scale").base_dist
    torch.testing.assert_close(found.values, (q.variance / q.mean**2).log())
    assert found.grouped
    assert found.values.shape == (6,)


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


def test_a_row_that_is_a_number_has_finite_irrelevance():
    """The padding of an embedding: no noise, and nothing to it."""
    torch.manual_seed(0)
    ids = torch.randint(5, (40, 3))
    rows = Dataset.from_tensors(ids, ids[:, 0] % 2, ids, ids[:, 0] % 2, ids=True)
    net = nn.Sequential(nn.Embedding(5, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2))
    model = models.BayesianNetwork(net, rows, prior=priors.GroupNormalJeffreys())
    found = weight_irrelevance(model, layer_moments(model, guides.MeanField(model)))
    assert all(one.values.isfinite().all() for one in found.values())


def test_without_groups_both_noises_are_one():
    model, guide = pair(priors.LogUniform())
    both = [irrelevance(model, guide, by=by)["0"].values for by in ("noise", "weight")]
    torch.testing.assert_close(both[0], both[1])


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
    with torch.no_grad():  # narrow: the product's spread of 0.3 is the sum of the four
        for site in ("global.a", "global.b", "scale.a", "scale.b"):
            guide.factors[f"0/{site.replace('.', '/')}"].log_scale.fill_(math.log(0.3))
    found = irrelevance(model, guide)["0"]
    torch.manual_seed(1)
    product = 1.0
    for site in ("global.a", "global.b", "scale.a", "scale.b"):
        product = product * guide.posterior(f"0.{site}").sample((400_000,)).reshape(400_000, -1)
    for group, value in enumerate(found.values):
        draws = product.sqrt()[:, group]
        # The mode of a log-normal: where the density of draws is greatest, on a grid of its own.
        edges = torch.exp(-value) * torch.linspace(0.4, 2.5, 43, dtype=torch.float64)
        counts = torch.histogram(draws.cpu(), edges).hist
        smooth = torch.nn.functional.avg_pool1d(counts[None, None], 5, 1)[0, 0]
        mode = edges[int(smooth.argmax()) + 2] + 0.025 * torch.exp(-value)
        assert abs(float(mode * torch.exp(value)) - 1.0) < 0.11


def test_gates_are_judged_by_their_logit_and_weights_by_their_own_rate():
    model, guide = pair(priors.SpikeSlab(0.2))
    logits = guide.factors["0/gate"].logits
    torch.testing.assert_close(irrelevance(model, guide)["0"].values, -logits.detach())
    model, guide = pair(priors.LogUniform())
    found = irrelevance(model, guide)["0"]
    q = guide.posterior("0.weight").base_dist
    torch.testing.assert_close(found.values, (q.variance / q.mean**2).log())
    assert not found.grouped


def test_points_without_groups_cannot_be_judged():
    with pytest.raises(PyroccamError):
        irrelevance(*pair(priors.Normal(), guides.Delta))


# -- thresholds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(400, 200), (2000, 60)])
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_the_valley_lies_where_the_density_of_two_normals_is_least(spread, counts):
    values = mixture(-5.0, 2.0, spread, counts)
    grid = torch.linspace(-5, 2, 7001, dtype=torch.float64)
    n, m = counts
    density = n * torch.exp(-0.5 * ((grid + 5) / spread) ** 2)
    density += m * torch.exp(-0.5 * ((grid - 2) / spread) ** 2)
    found = valley(values)
    assert found is not None
    # Hardly any value between: any threshold in the gap cuts the same.
    cut = (values > found).sum()
    best = (values > grid[density.argmin()]).sum()
    assert abs(int(cut) - int(best)) <= 0.01 * len(values)


@pytest.mark.parametrize("values", [
    torch.randn(500, generator=torch.Generator().manual_seed(3)),
    torch.rand(400, generator=torch.Generator().manual_seed(4)),
    torch.zeros(50),
    torch.tensor([1.0, 5.0]),
])  # fmt: skip
def test_one_cluster_has_no_valley(values):
    assert valley(values.double()) is None


def test_infinite_values_do_not_hide_the_valley():
    values = torch.cat([mixture(-5.0, 2.0, 0.5), torch.tensor([math.inf, math.nan])])
    assert valley(values) == pytest.approx(valley(mixture(-5.0, 2.0, 0.5)))


def test_the_search_cuts_what_costs_nothing_and_keeps_the_rest():
    """Each group is needed or not; the cost counts needed groups that are cut."""
    generator = torch.Generator().manual_seed(5)
    values = {
        name: torch.sort(torch.randn(n, generator=generator)).values.double()
        for name, n in (("a", 40), ("b", 25), ("c", 10))
    }
    needed = {"a": 10, "b": 20, "c": 10}  # the first so many, which have the smaller values
    calls = []

    def cost(thresholds):
        calls.append(dict(thresholds))
        cut = {n: int((values[n] > t).sum()) for n, t in thresholds.items()}
        return float(sum(max(0, cut[n] - (len(values[n]) - needed[n])) for n in values))

    def size(thresholds):
        return float(sum((values[n] <= t).sum() for n, t in thresholds.items()))

    found = search(values, cost, limit=0.0, size=size)
    assert cost(found) == 0.0
    kept = {name: int((values[name] <= t).sum()) for name, t in found.items()}
    assert kept == needed
    loose = search(values, cost, limit=3.0, size=size)
    assert sum(needed.values()) - size(loose) == 3
    assert all(v <= loose[n] for n in values for v in values[n][:1])  # no layer is emptied


def test_the_search_finds_few_of_very_many():
    """Single weights: 300 of 60,000 matter, and a layer of which all do."""
    generator = torch.Generator().manual_seed(6)
    values = {
        "wide": torch.randn(60_000, generator=generator).double(),
        "last": torch.randn(50, generator=generator).double() - 10,
    }
    needed = {"wide": 300, "last": 50}
    calls = []

    def kept(thresholds):
        return {name: int((values[name] <= t).sum()) for name, t in thresholds.items()}

    def cost(thresholds):
        calls.append(1)
        return float(sum(max(0, needed[n] - k) for n, k in kept(thresholds).items()))

    found = search(values, cost, limit=0.0, size=lambda t: float(sum(kept(t).values())))
    assert needed["wide"] <= kept(found)["wide"] <= 1.05 * needed["wide"]
    assert kept(found)["last"] == 50
    assert len(calls) < 60  # each may be a pass over the validation rows


# -- the figure ----------------------------------------------------------------------------------


def test_the_figure_shows_what_is_kept():
    model, guide = pair(priors.GroupNormalJeffreys())
    found = irrelevance(model, guide)
    values = found["2"].values
    limit = float(values.median())
    picture = figures.irrelevance_histograms(found, {"0": math.inf, "2": limit})
    first, second = picture.axes
    assert first.get_title(loc="left") == "layer 0: 2 of 2 groups kept"
    kept = int((values <= limit).sum())
    assert second.get_title(loc="left") == f"layer 2: {kept} of 6 groups kept"
    assert not first.lines
    assert second.lines[0].get_xdata()[0] == limit
    assert second.get_xlabel() == "log alpha of the group"
    left = {"0": torch.tensor([True, False]), "2": torch.arange(6) < 1}  # as the cut left them
    first, second = figures.irrelevance_histograms(found, {"0": math.inf, "2": limit}, left).axes
    assert first.get_title(loc="left") == "layer 0: 1 of 2 groups kept"
    assert second.get_title(loc="left") == "layer 2: 1 of 6 groups kept"


@pytest.mark.parametrize("heavy", ["a", "b"])
def test_the_search_cuts_the_layer_that_saves_most(heavy):
    """One group of either may go: that of the layer whose groups have ten times the weights."""
    values = {name: torch.tensor([0.0, 1.0]).double() for name in ("a", "b")}

    def kept(thresholds, name):
        return int((values[name] <= thresholds[name]).sum())

    found = search(
        values,
        lambda t: 4.0 - kept(t, "a") - kept(t, "b"),
        limit=1.0,
        size=lambda t: sum(kept(t, n) * (10 if n == heavy else 1) for n in values),
    )
    assert {name: kept(found, name) for name in values} == {"a": 2, "b": 2} | {heavy: 1}


@pytest.mark.parametrize("count", [3000, 12_000])
def test_the_valley_of_very_many_values(count):
    """Of which the quantiles stand for all."""
    found = valley(mixture(-5.0, 2.0, 0.5, (count, count // 2)))
    assert -3.0 < found < 0.0  # four deviations from either
