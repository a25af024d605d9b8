"""Posteriors for every value of a number of the model, against models that have it."""

import copy
import math

import pyro
import pytest
import torch
from conditioned import enumerated, spread, stacked_blocks, weight_drawn
from conjugate import NOISE, model_of
from conjugate import rows as ridge_rows
from fitting import SHORT, blobs
from guide_case import network, structured
from pyro.infer import SVI, TraceMeanField_ELBO
from pyroccam import guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.elbo.estimator import bound
from pyroccam.models import priors
from stepping import assert_close, batches, walk
from torch import nn
from torch.distributions import Normal, kl_divergence

pytestmark = pytest.mark.usefixtures("clean")

LOW, HIGH = 0.05, 5.0


def normal(rows):
    return network(rows, prior=priors.Normal())


def cauchy(rows):
    return network(rows, prior=priors.GroupHalfCauchy(0.5))


def priced(rows):
    """A graph whose second primitive costs two nats more."""
    prior = priors.GumbelSoftmax(0.5, probs=[1.0, math.exp(-2.0)])
    net = structured(rows).first_network()
    return models.StructuredNetwork(net, rows, structure=prior, prior=priors.Normal())


def blocks(rows, nats=2.0, bits=0.0):
    """A stack whose blocks cost two nats each, and their numbers some bits."""
    torch.manual_seed(0)
    stack = models.networks.residual_mlp((2,), 3, width=4, max_depth=2)
    return models.BayesianStack(
        stack, rows, prior=priors.Normal(), depth=priors.Cost(nats), number_bits=bits
    )


CASES = [
    (normal, "prior.scale"),
    (cauchy, "prior.tau0"),
    (priced, "structure.temperature"),
    (priced, "structure.power"),
    (priced, "prior.scale"),
    (enumerated, "structure.power"),
    (blocks, "structure.power"),
    (stacked_blocks, "prior.tau0"),
]
IDS = [f"{make.__name__}-{over}" for make, over in CASES]


def conditional(make, over, **more):
    model = make(blobs())
    local = make not in (priced, enumerated)
    inner = guides.MeanField(model, local=local)
    options = {"low": LOW, "high": HIGH, "pivots": 3, **more}
    return model, spread(guides.Conditional(inner, over=over, model=model, **options))


def pair_of(guide, model, value):
    """A copy of the model that has the number, and its ordinary guide."""
    other, ordinary = copy.deepcopy((model, guide.condition(value)))
    other.numbers()[guide.traits.variable].set(value)
    return other, ordinary


@pytest.mark.parametrize(("make", "over"), CASES, ids=IDS)
def test_the_bound_of_a_step_is_that_of_an_ordinary_guide_of_a_model_with_this_number(make, over):
    """With the same noise; so are the gradients, of what both train."""
    model, guide = conditional(make, over)
    batch, before = blobs().split("train"), copy.deepcopy(model.prior_numbers())
    found = []
    for seed in range(3):
        value, _ = weight_drawn(guide, seed)
        torch.manual_seed(seed)
        ours = bound(model, guide).terms(*batch)
        assert model.prior_numbers() == before  # the model has its own number again
        other, ordinary = pair_of(guide, model, value)
        assert type(ordinary) is guides.MeanField
        assert other.prior_numbers() != before
        ordinary.check(other, inference.Settings(), 1)
        torch.manual_seed(seed)
        torch.rand(())
        theirs = bound(other, ordinary).terms(*batch)
        torch.testing.assert_close(ours.log_likelihood, theirs.log_likelihood, rtol=1e-5, atol=0)
        torch.testing.assert_close(ours.kl, theirs.kl, rtol=1e-4, atol=1e-6)
        torch.manual_seed(seed)
        torch.rand(())
        with torch.no_grad():
            apart = bound(model, guide.condition(value))(*batch) - theirs.loss()
        found.append(abs(float(apart)))
    assert max(found) > 1e-3  # the number matters


@pytest.mark.parametrize(("make", "over"), CASES, ids=IDS)
def test_a_model_that_is_made_anew_has_the_number(make, over):
    model, guide = conditional(make, over)
    other, _ = pair_of(guide, model, 0.7)
    anew = other.anew(blobs())
    for ours, theirs in zip(anew.priors(), other.priors(), strict=True):
        for name, t in theirs.named_buffers():
            own = ours.get_buffer(name)
            if name == "logits":  # of which a number may be added to all
                own, t = (one - one.max() for one in (own, t))
            torch.testing.assert_close(own, t)
    assert model.prior_numbers() == make(blobs()).prior_numbers()
    if over != "structure.power":
        assert other.numbers()[over].own == pytest.approx(0.7)


def test_the_kl_is_that_of_the_scale_by_hand():
    model, guide = conditional(normal, "prior.scale")
    batch = blobs().split("train")
    for seed in range(3):
        value, _ = weight_drawn(guide, seed)
        torch.manual_seed(seed)
        ours = bound(model, guide).terms(*batch)
        expected = 0.0
        for site in guide.sites:
            q = guide.condition(value).posterior(site).base_dist
            expected += kl_divergence(Normal(q.loc, q.scale), Normal(0.0, value)).sum()
        assert ours.kl.item() == pytest.approx(expected.item(), rel=1e-5)


def test_power_multiplies_what_a_structure_costs():
    """A primitive that is e^-2 as probable as another is e^-6 as probable with a power of 3, and so
    is a block that costs two nats."""
    rows = blobs()
    model, deep = priced(rows), blocks(rows)
    for one in (model, deep):
        one.numbers()["structure.power"].set(3.0)
    (edge,) = model.structure.values()
    assert float(edge.logits[0] - edge.logits[1]) == pytest.approx(6.0)
    expected = priors.Cost(6.0).log_probs(3)
    torch.testing.assert_close(deep.log_prior, expected)
    torch.testing.assert_close(deep.anew(rows).log_prior, expected)
    # So are the bits of the numbers of a block, once.
    counted = blocks(rows, bits=0.5)
    own = counted.log_prior.clone()
    counted.numbers()["structure.power"].set(3.0)
    torch.testing.assert_close(counted.log_prior, (3.0 * own).log_softmax(0))
    torch.testing.assert_close(counted.anew(rows).log_prior, counted.log_prior)
    each = torch.tensor([counted.log_prior_of(d, range(d)) for d in range(3)])
    torch.testing.assert_close(each.log_softmax(0), counted.log_prior)


LARGE = [
    (priors.GumbelSoftmax(probs=[1.0, 0.1]), 60.0),
    (priors.Categorical([0.9, 0.1]), 100.0),
    (priors.RelaxedBernoulli(probs={"x-h": [0.9, 0.1]}), 10.0),
]


@pytest.mark.parametrize(("prior", "power"), LARGE, ids=lambda one: type(one).__name__)
def test_a_large_power_is_that_of_a_model_made_anew(prior, power):
    rows = blobs()
    net = structured(rows).first_network()
    model = models.StructuredNetwork(net, rows, structure=prior, prior=priors.Normal())
    before = model.structure["x-h.structure"].logits.clone()
    model.numbers()["structure.power"].set(power)
    anew = model.anew(rows).structure["x-h.structure"]
    expected = power * before
    if not prior.cube:
        expected, logits = expected - expected.max(), anew.logits - anew.logits.max()
    else:
        logits = anew.logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=0)


def test_beyond_what_a_probability_can_be_it_is_finite():
    rows = blobs()
    for prior in (priors.GumbelSoftmax(probs=[1.0, 0.1]), priors.Bernoulli({"x-h": [0.9, 0.1]})):
        net = structured(rows).first_network()
        model = models.StructuredNetwork(net, rows, structure=prior, prior=priors.Normal())
        model.numbers()["structure.power"].set(1e4)
        anew = model.anew(rows).structure["x-h.structure"]
        assert float(anew.logits.min()) < -600.0
        assert bool(anew.logits.isfinite().all())


def test_a_concentration_is_no_cost():
    rows = blobs()
    net = structured(rows).first_network()
    model = models.StructuredNetwork(
        net, rows, structure=priors.Dirichlet(probs=[2.0, 3.0]), prior=priors.Normal()
    )
    assert "structure.power" not in model.numbers()
    assert "structure.temperature" in model.numbers()


@pytest.mark.parametrize("power", [300.0, 1000.0])
def test_a_large_power_of_a_depth(power):
    rows = blobs()
    stack = models.networks.residual_mlp((2,), 3, width=4, max_depth=4)
    deep = models.BayesianStack(stack, rows, prior=priors.Normal(), depth=priors.Cost(1.0))
    for factor in (power / 10.0, 10.0):  # powers of powers
        deep.numbers()["structure.power"].set(factor)
    expected = priors.Cost(power).log_probs(5)
    torch.testing.assert_close(deep.log_prior, expected)
    torch.testing.assert_close(deep.anew(rows).log_prior, expected)
    each = torch.tensor([deep.log_prior_of(d, range(d)) for d in range(5)])
    torch.testing.assert_close(each, expected)


def test_an_argument_with_which_a_parameter_moves_is_none():
    """The rate of a level is its unit, in which the level is kept."""
    model = network(blobs(), prior=priors.MultiSpike())
    assert model.numbers() == {}


def test_the_number_is_put_back_after_an_error():
    model, guide = conditional(normal, "prior.scale")
    before = model.prior_numbers()
    x, y = blobs().split("train")
    with pytest.raises((ValueError, RuntimeError)):
        bound(model, guide).terms(x, y[:3])
    assert model.prior_numbers() == before


def test_a_number_that_is_changed_for_good_stays():
    """Also after a call outside of the handler, and one in evaluation mode."""
    model, guide = conditional(normal, "prior.scale")
    x, y = blobs().split("train")
    for mode in (True, False):
        guide.train(mode)
        guide(x)
        bound(model, guide)(x, y)
    model.numbers()["prior.scale"].set(2.5)
    model.double(), guide.double()
    for mode in (True, False):
        guide.train(mode)
        bound(model, guide)(x.double(), y)
        assert {float(p.scale) for p in model.priors()} == {2.5}
        assert {p.scale.dtype for p in model.priors()} == {torch.float64}


def test_it_is_trained_by_pyro():
    model, guide = conditional(normal, "prior.scale")
    batch = blobs().split("train")
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-4}), TraceMeanField_ELBO())
    value, _ = weight_drawn(guide, 3)
    other, ordinary = pair_of(guide, model, value)
    torch.manual_seed(3)
    torch.rand(())
    expected = bound(other, ordinary)(*batch).item()
    torch.manual_seed(3)
    with guide.handler:
        assert svi.step(*batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("error::pyroccam.inference.training.step.CompileFallback")
@pytest.mark.parametrize(("make", "over"), [(normal, "prior.scale"), (blocks, "structure.power")])
def test_a_traced_step_is_the_eager_step(make, over):
    found = []
    for compile in (False, "graph"):
        model, guide = (one.double() for one in conditional(make, over))
        before = model.prior_numbers()
        torch.manual_seed(5)
        (one,) = walk([(model, guide)], batches(0), compile)
        one.pop("seen.depth", None)  # which is so up to a number
        found.append(one)
        assert model.prior_numbers() == before
    assert_close(*found)
    assert found[0]["losses"].std() > 1e-3


@pytest.mark.nightly  # as that over the weight of the KL, of test_conditional.py
def test_the_path_of_ridge_regression():
    """Over the scale s of the prior: the means are those of ridge regression with the precision
    1 / s², as near as a broken line comes, and the scale of the greatest bound is that of the
    greatest evidence of independent normals, on a grid."""
    table = ridge_rows(n=20, features=5, seed=3)
    model = model_of(table)
    model.likelihood.requires_grad_(False)
    guide = guides.Conditional(
        guides.MeanField(model), over="prior.scale", model=model, low=0.05, high=5.0, pivots=6
    )
    fit = inference.fit(
        model, guide, table, epochs=1200, lr=0.03, particles=10, optimizer="adam",
        compile="graph", progress=False, device="cpu",
    )  # fmt: skip
    x, y = (part.double() for part in table.split("train"))
    xx, xy = x.T @ x / NOISE**2, (x.T @ y / NOISE**2)[:, 0]

    def best(scale):
        return torch.linalg.solve(xx + torch.eye(5).double() / scale**2, xy)

    largest = float(best(5.0).abs().max())
    for scale in (0.05, 0.1, 0.3, 1.0, 5.0):
        mean = fit.at(scale).guide.posterior("0.weight").mean[0].detach().double()
        assert float((mean - best(scale)).abs().max()) < 0.06 * largest

    def evidence(scale):
        mean, variance = best(scale), 1.0 / (xx.diagonal() + scale**-2)
        gap = (y[:, 0] - x @ mean).square().sum() / NOISE**2 + (xx.diagonal() * variance).sum()
        ratio = (mean**2 + variance) / scale**2
        return -0.5 * float(gap) - 0.5 * float((ratio - 1.0 - (variance / scale**2).log()).sum())

    path = inference.path(fit, 9)
    assert path.over == "prior.scale"
    expected = max((point.weight for point in path), key=evidence)
    assert LOW < expected < HIGH
    order = [point.weight for point in path]
    assert abs(order.index(path.best("elbo").weight) - order.index(expected)) <= 1
    assert path.figure().axes[-1].get_xlabel() == "prior.scale"


def test_the_fit_of_a_number_is_an_ordinary_one():
    model, guide = conditional(normal, "prior.scale")
    fit = inference.fit(model, guide, blobs(), **{**SHORT, "kl_weight": 0.5})
    one = fit.at(0.3)
    assert type(one.guide) is guides.MeanField
    assert one.settings.kl_weight == 0.5
    assert one.model is not fit.model
    assert [p.scale for p in one.model.priors()] == pytest.approx([0.3, 0.3])
    assert {layer.weight_prior for layer in one.model.layers.values()} == {priors.Normal(0.3)}
    assert one.model.spec["prior"] == priors.Normal(0.3)
    narrowed, _ = inference.narrow(one)
    assert [float(p.scale) for p in narrowed.priors()] == pytest.approx([0.3] * 2)
    by = inference.marginal_likelihood.Bound(passes=2)
    bounds = [inference.evidence(f, by=by) for f in (one, fit.at(3.0))]
    assert bounds[0].value != bounds[1].value
    more = inference.fit(one.model, one.guide, blobs(), **SHORT)
    assert type(more.guide) is guides.MeanField
    with pytest.raises(PyroccamError):
        inference.shrink(fit)
    with pytest.raises(PyroccamError):
        fit.at(9.0)
    with pytest.raises(PyroccamError):
        fit.at(0.0)
    assert fit.at(9.0, extrapolate=True).model.spec["prior"] == priors.Normal(9.0)


def test_the_depth_of_a_fit_by_what_a_block_costs():
    rows = blobs()
    model = blocks(rows, nats=1.0)
    guide = guides.Conditional(
        guides.MeanField(model), over="structure.power", model=model, low=0.1, high=1000.0
    )
    fit = inference.fit(model, guide, rows, **SHORT)
    cheap, dear = fit.at(0.1), fit.at(1000.0)
    assert dear.structure.depth_chosen == 0
    torch.testing.assert_close(dear.model.log_prior, priors.Cost(1000.0).log_probs(3))
    torch.testing.assert_close(cheap.model.log_prior, priors.Cost(0.1).log_probs(3))
    assert cheap.settings.kl_weight == 1.0


def test_copies_and_guides_of_other_models():
    model, guide = conditional(normal, "prior.scale")
    copied = copy.deepcopy((model, guide))
    own = {id(part) for part in copied[0].modules()}
    assert {id(slot.module) for slot in copied[1].handler.slots} <= own
    inference.fit(*copied, blobs(), **SHORT)
    with pytest.raises(PyroccamError):
        inference.fit(model, copy.deepcopy(guide), blobs(), **SHORT)
    other = normal(blobs())
    made = guide.rebuild(other)
    assert (made.traits.variable, made.low, made.high) == ("prior.scale", LOW, HIGH)
    made.check(other, inference.Settings(), 1)
    assert guide.usual == 1.0
    assert conditional(normal, "prior.scale", low=2.0, high=8.0)[1].usual == 4.0


def test_numbers_that_are_none():
    rows = blobs()
    model = normal(rows)
    inner = guides.MeanField(model)
    with pytest.raises(PyroccamError):
        guides.Conditional(inner, over="prior.scale")
    with pytest.raises(PyroccamError):
        guides.Conditional(inner, over="prior.scal", model=model)
    with pytest.raises(PyroccamError):
        guides.Conditional(inner, over="prior.scale", model=normal(rows))
    with pytest.raises(PyroccamError):
        guides.Conditional(inner, over="prior.scale", model=nn.Linear(1, 1))
    with pytest.raises(PyroccamError):
        guides.Conditional(inner, model=model)
    for prior in (priors.Normal(learn="scale"), priors.Normal("fan_in"), priors.LogUniform()):
        assert "prior.scale" not in network(rows, prior=prior).numbers()
    fixed = structured(rows).first_network()
    falls = models.StructuredNetwork(
        fixed, rows, structure=priors.GumbelSoftmax(models.Annealed(1.0, 0.2), learn=True)
    )
    assert falls.numbers() == {}
    mixed = network(rows, prior={"0": priors.Normal(0.5), "2": priors.Normal(2.0)})
    assert mixed.numbers()["prior.scale"].own is None
    learns = priors.Normal(2.0, learn="scale")
    part = network(rows, prior={"0": priors.Normal(0.5), "2": learns})
    assert part.numbers()["prior.scale"].own == 0.5
    part.numbers()["prior.scale"].set(0.1)  # of the layer that does not learn it
    assert part.spec["prior"] == {"0": priors.Normal(0.1), "2": learns}
    assert part.layers["2"].weight_prior == learns
    assert part.anew(rows).prior_numbers() == part.prior_numbers()
    two = guides.Conditional(
        guides.MeanField(mixed), over="prior.scale", model=mixed, low=1.0, high=4.0
    )
    assert two.usual == 2.0
