import math
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from alternatives import choice_of
from conjugate import as_fit, mean_field, model_of, posterior, rows
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference import shrinking
from pyroccam.inference.diagnostics import khat, khat_of, log_joint
from pyroccam.inference.diagnostics.log_joint import LogJoint, centres
from pyroccam.inference.diagnostics.pareto import KhatBlock, share_of_draws
from pyroccam.inference.posterior import exact_depth_posterior, total_variation
from pyroccam.models import priors
from random_weights import small_net, table
from scipy import integrate, stats


def narrow(factor, dimensions=1, draws=2000, seed=0):
    """log p - log q of N(0, 1) and N(0, factor²) in some dimensions, up to a constant."""
    square = stats.chi2(dimensions).rvs(draws, random_state=seed)
    return 0.5 * (1 - factor**2) * square


def conjugate(table, bias=False, **off):
    """A fit of a regression, with a mean field at its optimum, or off it."""
    model = model_of(table, bias=bias)
    return as_fit(model, mean_field(model, table, bias=bias, **off), table)


def random_pair(net, table, prior, guide=guides.MeanField, **options):
    model = models.BayesianNetwork(net, table, prior=prior).eval()
    return model, guide(model, **options)


def test_the_known_tail_of_a_narrow_normal():
    """1 - 0.6² = 0.64: P(ratio > t) falls as t^(-1/0.64), a slowly varying factor aside."""
    found, error, _ = khat_of(narrow(0.6, draws=200_000))
    assert found == pytest.approx(0.64, abs=0.1)
    assert error < 0.05
    assert khat_of(-narrow(0.6, draws=200_000))[0] < 0.0  # bounded: the sign matters
    each = [khat_of(narrow(0.6, seed=seed)) for seed in range(100)]
    spread = np.std([k for k, _, _ in each])
    assert spread == pytest.approx(np.mean([error for _, error, _ in each]), rel=0.3)
    assert khat_of(narrow(0.95, 1000))[0] == pytest.approx(1.03, abs=0.35)
    with pytest.raises(PyroccamError):
        khat_of([math.inf, *[0.0] * 200])


def test_the_share_of_draws_is_that_of_the_weights():
    """Ratios with a finite variance: 1 / E_q[r²] for E_q[r] = 1, by quadrature."""
    q, p = stats.norm(scale=0.85), stats.norm()
    second, _ = integrate.quad(lambda z: p.pdf(z) ** 2 / q.pdf(z), -20, 20)
    assert khat_of(narrow(0.85, draws=200_000))[2] == pytest.approx(1 / second, rel=0.02)
    for p, q, expected in (
        ([0.5, 0.5], [0.9, 0.1], 1 / (0.25 / 0.9 + 0.25 / 0.1)),
        ([0.5, 0.5], [1.0, 0.0], 0.0),
    ):
        assert share_of_draws(torch.tensor(p), torch.tensor(q)) == pytest.approx(expected)


@pytest.mark.parametrize("layer", ["0", "2"])
def test_the_joint_density_is_pyros(layer, monkeypatch):
    """By a trace of the model, one draw at a time; the other layer is held."""
    monkeypatch.setattr(log_joint, "BATCH", 20)
    data = table()
    model, guide = random_pair(small_net(), data, priors.GroupHorseshoe(1e-2))
    values = guide.draw(4)
    block = {site: values.pop(site) for site in [*values] if site.startswith(layer)}
    rest = {site: value[0] for site, value in values.items()}
    with torch.no_grad():
        joint, variance = LogJoint(model, data)(block, rest)
    assert float(variance.abs().max()) == 0.0
    for s in range(4):
        held = {**{site: value[s] for site, value in block.items()}, **rest}
        with pyro.settings.context(module_local_params=True):
            conditioned = pyro.poutine.condition(model, data=held)
            trace = pyro.poutine.trace(conditioned).get_trace(*data.split("train"))
        trace.compute_log_prob()
        theirs = sum(trace.nodes[site]["log_prob_sum"].item() for site in (*block, "y"))
        assert float(joint[s]) == pytest.approx(theirs, rel=1e-5)


def test_rows_scale_the_likelihood_and_tell_what_they_leave_open():
    """Over many choices of rows: the mean is right, and the variance that which is announced."""
    data = rows(40)
    model = model_of(data)
    guide = mean_field(model, data)
    centre = {site: value[None] for site, value in centres(model, guide).items()}
    block = {"0.weight": torch.tensor([[[0.7]], [[1.4]]])}
    whole, _ = LogJoint(model, data)(block, {})
    at_centre, _ = LogJoint(model, data)(centre, {})
    prior = torch.distributions.Normal(0.0, 1.0).log_prob
    found, said = [], []
    for seed in range(60):
        chosen = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:30]
        joint = LogJoint(model, data, chosen)
        reference = joint.log_likelihood(centre)
        value, variance = joint(block, {}, reference)
        base = 40 / 30 * reference.sum() + prior(centre["0.weight"]).sum().double()
        found.append(value - base)
        said.append(variance)
    found, said = torch.stack(found), torch.stack(said).mean(0)
    error = found.std(0) / math.sqrt(60)
    assert bool(((found.mean(0) - (whole - at_centre)).abs() < 4.5 * error).all())
    assert found.var(0).tolist() == pytest.approx(said.tolist(), rel=0.5)
    for count, verdict in ((38, "doubtful"), (5, "refused"), (40, "good")):
        assert khat(conjugate(data), rows=count, draws=500).finding().verdict == verdict


def test_a_mean_field_fails_where_the_posterior_is_correlated():
    """Of q with the precisions of the conditionals, the ratio's tail is the correlation: 1 less
    the least eigenvalue of the scaled precision matrix."""
    data = rows(30, shift=2.0)
    _, precision = posterior(data, bias=True)
    scaled = precision / precision.diagonal().sqrt().outer(precision.diagonal().sqrt())
    expected = 1 - float(torch.linalg.eigvalsh(scaled)[0])
    found = khat(conjugate(data, bias=True), draws=20_000)
    (joint,) = found.blocks
    assert (joint.name, found.finding().verdict) == ("everything", "poor")
    assert joint.khat == pytest.approx(expected, abs=0.15)
    (ax,) = found.finding().figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["everything"]


@pytest.mark.parametrize(
    ("prior", "guide", "options", "site", "known"),
    [
        (priors.Normal(), guides.MeanField, {}, "0.weight", False),  # of 120 numbers
        (priors.Normal(), guides.MeanField, {}, "2.weight", True),  # of 80
        (priors.GroupNormalJeffreys(), guides.MeanField, {}, "0.scale", False),
        (priors.GroupNormalJeffreys(), guides.MeanField, {}, "2.bias", True),  # improper are held
        (priors.Normal(), guides.Delta, {}, "everything", False),
        (priors.Normal(), guides.ZeroMean, {"noise": "rademacher"}, "0.weight", False),
    ],
)
def test_high_dimensions_points_and_improper_priors_are_refused(prior, guide, options, site, known):
    data = table()
    model, own = random_pair(small_net(width=40), data, prior, guide, **options)
    found = {block.name: block for block in khat(as_fit(model, own, data), draws=200).blocks}
    assert list(found) == (["everything"] if guide is guides.Delta else list(model.sites))
    assert (found[site].khat is not None) == known
    assert (found[site].verdict == "refused") != known


def test_the_threshold_follows_the_number_of_draws():
    def verdict(k, draws, dimension=1):
        limit = min(1 - 1 / math.log10(draws), 0.7)
        return KhatBlock("b", ("b",), dimension, khat=k, error=0.1, share=0.5, limit=limit).verdict

    each = [verdict(k, 10_000) for k in (0.49, 0.51, 0.69, 0.71, math.inf, math.nan)]
    assert each == ["good", "doubtful", "doubtful", "poor", "poor", "poor"]
    assert [verdict(k, 100) for k in (0.49, 0.51)] == ["good", "poor"]
    assert [verdict(2.0, 10_000, many) for many in (99, 100)] == ["poor", "doubtful"]


def test_learnt_depth_is_compared_by_probabilities():
    data = table()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.LearntDepth.mlp(data, width=4, max_depth=3)
    guide = guides.CategoricalDepth(model)
    exact = exact_depth_posterior(model, data)
    with torch.no_grad():
        guide.logits.copy_(torch.tensor([8.0, 0.0, 0.0, 0.0]))
    found = khat(as_fit(model, guide, data))
    distance = total_variation(exact, guide.probs)
    assert distance > 0.3
    assert found.blocks[0].total_variation == pytest.approx(distance)
    assert found.finding().verdict == "poor"
    fixed = model.at_depth(1)
    for pair in ((model, guides.Marginal(model)), (fixed, guides.Deterministic(fixed))):
        assert khat(as_fit(*pair, data)).finding().verdict == "refused"
    with pytest.raises(PyroccamError):
        khat(as_fit(model, guide, data), rows=5)


def test_enumerated_structure_is_compared_with_its_full_conditional():
    """By hand: two plain networks."""
    data = table()
    graph = choice_of(3, 4, "tanh", "line")
    model = models.StructuredNetwork(graph, data, structure=priors.Categorical([1.0, 3.0]))
    guide = guides.MeanField(model)
    (block,) = khat(as_fit(model, guide, data)).blocks
    assert (block.name, block.dimension) == ("x-h.structure", 2)
    joint, (x, y) = [], data.split("train")
    for name, log_prior in (("tanh", math.log(0.25)), ("line", math.log(0.75))):
        fit = SimpleNamespace(model=model, guide=guide)
        net = shrinking.discretise(fit, {"x-h": name, "h-y": "0"})
        joint.append(float(model.likelihood(net(x)).log_prob(y).sum().detach()) + log_prior)
    p = torch.tensor(joint, dtype=torch.float64).softmax(0)
    q = guide.edge("x-h.structure").probs().detach()
    assert block.total_variation == pytest.approx(total_variation(p, q), abs=1e-5)
    assert block.share == pytest.approx(share_of_draws(p, q), rel=1e-4)
