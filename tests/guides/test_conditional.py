"""Posteriors for every weight of the KL, or number of the model, against those of each."""

import contextlib
import copy
import math
from functools import partial

import pyro
import pytest
import torch
from conditioned import enumerated, spread, stacked_blocks, weight_drawn
from fitting import SHORT, blobs
from guide_case import CASES, network, structured
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.guides.forms import place
from pyroccam.inference.elbo import bound
from pyroccam.inference.posterior.depth import depth_posterior_of_weights
from pyroccam.models import priors
from random_weights import assert_same_means
from stepping import assert_close, batches, stacked, step_of, walk
from torch import nn

from experiments.published.forms import FiLM, LowRank

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


def blocks(rows, nats=2.0, bits=0.0, max_depth=2):
    """A stack whose blocks cost two nats each, and their numbers some bits."""
    torch.manual_seed(0)
    stack = models.networks.residual_mlp((2,), 3, width=4, max_depth=max_depth)
    return models.BayesianStack(
        stack, rows, prior=priors.Normal(), depth=priors.Cost(nats), number_bits=bits
    )


def conditional(make=normal, over=None, inner=guides.MeanField, kind=guides.Conditional, **more):
    model = make(blobs())
    which = {} if over is None else {"over": over, "model": model}
    drawn = make in (structured, priced, enumerated)
    guide = inner(model, local=False) if drawn else inner(model)
    options = {"low": LOW, "high": HIGH, "pivots": 4, **which, **more}
    return model, spread(kind(guide, **options))


# -- functions of the weight ------------------------------------------------------------------


def test_forms_are_what_they_say():
    """At one u, number by number."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    own, u = drawn(3, 2, 2), torch.tensor(0.3, dtype=torch.float64)
    trained = {"own": own, "left": drawn(2, 3), "right": drawn(2, 4)}
    left, right = (trained[side][0] + 0.3 * trained[side][1] for side in ("left", "right"))
    expected = own + (left[:, None] * right).reshape(3, 2, 2)
    torch.testing.assert_close(LowRank(6).value("loc", trained, u), expected)
    bias = {"own": drawn(3), "slope": drawn(3)}
    assert LowRank(6).value("loc", bias, u).equal(bias["own"] + 0.3 * bias["slope"])
    trained = {"own": own, "shift": drawn(3, 3)}
    shift = 0.4 * trained["shift"][0] + 0.6 * trained["shift"][1]  # 0.3 of the way, of two lines
    for i in range(3):
        torch.testing.assert_close(FiLM(3).value("loc", trained, u)[i], own[i] * shift[i].exp())
        torch.testing.assert_close(FiLM(3).value("log_scale", trained, u)[i], own[i] + shift[i])


def test_a_guide_at_a_pivot_has_its_parameters_and_between_two_their_mean():
    _, guide = conditional(low=0.01, high=10.0)
    rows = guide.factor_of("0.weight").within
    for k, weight in enumerate([0.01, 0.1, 1.0, 10.0]):
        own = guide.condition(weight).factor_of("0.weight")
        torch.testing.assert_close(own.loc, rows.loc[k], atol=1e-6, rtol=1e-6)
    own = guide.condition(10**-1.5).factor_of("0.weight")
    torch.testing.assert_close(own.log_scale, rows.log_scale[:2].mean(0), atol=1e-6, rtol=1e-6)
    outside = guide.condition(100.0, extrapolate=True).factor_of("0.weight").loc
    torch.testing.assert_close(outside, 2 * rows.loc[3] - rows.loc[2], atol=1e-6, rtol=1e-5)


# -- the bound --------------------------------------------------------------------------------


def same_bound(model, guide, seed):
    """The bound of a step beside that of the ordinary guide of its weight, with the same noise, and
    gradients of both: that guide, and u."""
    batch = blobs().split("train")
    weight, u = weight_drawn(guide, seed)
    torch.manual_seed(seed)
    ours = bound(model, guide).terms(*batch)
    guide.zero_grad()
    ours.loss().backward()
    ordinary = guide.condition(weight)
    torch.manual_seed(seed)
    torch.rand(())
    theirs = bound(model, ordinary).terms(*batch)
    theirs.loss(weight).backward()
    torch.testing.assert_close(ours.log_likelihood, theirs.log_likelihood, rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.kl, weight * theirs.kl, rtol=1e-5, atol=0)
    return ordinary, u


PAIRS = [
    (cauchy, guides.MeanField),
    (lambda rows: network(rows, prior=priors.SpikeSlab()), partial(guides.MeanField, local=False)),
    (lambda rows: network(rows, prior=priors.MultiSpike()), guides.MeanField),
    (normal, guides.Delta),
    (cauchy, guides.VariationalDropout),
    (structured, guides.MeanField),
    (enumerated, guides.MeanField),
    (stacked_blocks, guides.MeanField),
]


@pytest.mark.parametrize(("make", "inner"), PAIRS)
def test_the_bound_of_a_step_is_that_of_an_ordinary_guide_with_this_weight(make, inner):
    """With the same noise; its gradients go to the two pivots around, by their shares."""
    model, guide = conditional(make, inner=inner)
    for seed in range(3):
        ordinary, u = same_bound(model, guide, seed)
        ordinary.check(model, inference.Settings(), 1)
        where = place(u, 4)
        for site in guide.latents():
            rows = dict(guide.factor_of(site).within.named_parameters())
            for name, p in ordinary.factor_of(site).named_parameters():
                expected = torch.zeros_like(rows[name])
                expected[where.left] = (1 - where.share) * p.grad
                expected[where.left + 1] = where.share * p.grad
                atol = 1e-5 * float(expected.norm()) + 1e-7
                torch.testing.assert_close(rows[name].grad, expected, rtol=1e-4, atol=atol)
    usual = guide.condition(1.0)
    for site in guide.edges:
        one, other = guide.edge(site), usual.edge(site)
        assert one.probs().equal(other.probs())
        assert one.entropy() == other.entropy()
        assert one.vertex().equal(other.vertex())
        assert one.vertex_log_prob(other.vertex()) == other.vertex_log_prob(other.vertex())


NUMBERS = [
    (normal, "prior.scale"),
    (cauchy, "prior.tau0"),
    (priced, "structure.temperature"),
    (priced, "structure.power"),
    (enumerated, "structure.power"),
    (blocks, "structure.power"),
    (stacked_blocks, "prior.tau0"),
]


def pair_of(guide, model, value):
    """A copy of the model that has the number, and its ordinary guide."""
    other, ordinary = copy.deepcopy((model, guide.condition(value)))
    other.numbers()[guide.traits.variable].set(value)
    return other, ordinary


@pytest.mark.parametrize(("make", "over"), NUMBERS)
def test_the_bound_of_a_step_is_that_of_a_model_with_this_number(make, over):
    """With the same noise; and a model made anew has the number, too."""
    model, guide = conditional(make, over)
    batch, before = blobs().split("train"), copy.deepcopy(model.prior_numbers())
    found = []
    for seed in range(3):
        value, _ = weight_drawn(guide, seed)
        torch.manual_seed(seed)
        ours = bound(model, guide).terms(*batch)
        assert model.prior_numbers() == before  # the model has its own number again
        other, ordinary = pair_of(guide, model, value)
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
    anew = other.anew(blobs())
    for one, two in zip(anew.priors(), other.priors(), strict=True):
        for name, t in two.named_buffers():
            own = one.get_buffer(name)
            if name == "logits":  # of which a number may be added to all
                own, t = (part - part.max() for part in (own, t))
            torch.testing.assert_close(own, t)
    if over != "structure.power":
        assert other.numbers()[over].own == pytest.approx(value)


def test_nothing_is_weighed_in_evaluation_mode_or_without_the_handler():
    model, guide = conditional()
    batch = blobs().split("train")
    usual = guide.condition(1.0)
    assert guide.usual == 1.0
    assert guides.Conditional(usual, low=2.0, high=50.0).usual == pytest.approx(10.0)
    torch.manual_seed(0)
    with torch.no_grad():
        expected = bound(model, usual).terms(*batch)
        torch.manual_seed(0)
        found = bound(model, guide.eval()).terms(*batch)
    torch.testing.assert_close(found.loss(), expected.loss())
    for mode, handler in ((True, contextlib.nullcontext()), (False, guide.handler)):
        guide.train(mode)
        with handler:
            trace = pyro.poutine.trace(guide).get_trace(batch[0])
        assert not guide.handler.weights
        for site in guide.sites:
            assert trace.nodes[site]["scale"] == 1.0
            torch.testing.assert_close(trace.nodes[site]["fn"].mean, usual.posterior(site).mean)


def test_a_number_is_put_back_after_an_error_and_one_that_is_changed_for_good_stays():
    model, guide = conditional(normal, "prior.scale")
    before = model.prior_numbers()
    x, y = blobs().split("train")
    with pytest.raises((ValueError, RuntimeError)):
        bound(model, guide).terms(x, y[:3])
    assert model.prior_numbers() == before
    guide(x)  # outside of the handler
    model.numbers()["prior.scale"].set(2.5)
    model.double(), guide.double()
    for mode in (True, False):
        guide.train(mode)
        bound(model, guide)(x.double(), y)
        assert {float(p.scale) for p in model.priors()} == {2.5}
        assert {p.scale.dtype for p in model.priors()} == {torch.float64}


# -- numbers of a model -----------------------------------------------------------------------


LARGE = [
    (priors.GumbelSoftmax(probs=[1.0, 0.1]), 60.0),
    (priors.Categorical([0.9, 0.1]), 100.0),
    (priors.RelaxedBernoulli(probs={"x-h": [0.9, 0.1]}), 10.0),
    (priors.Bernoulli({"x-h": [0.9, 0.1]}), 1e4),  # beyond what a probability can be
]


@pytest.mark.parametrize(("prior", "power"), LARGE, ids=lambda one: type(one).__name__)
def test_a_large_power_is_that_of_a_model_made_anew(prior, power):
    rows = blobs()
    net = structured(rows).first_network()
    model = models.StructuredNetwork(net, rows, structure=prior, prior=priors.Normal())
    before = model.structure["x-h.structure"].logits.clone()
    model.numbers()["structure.power"].set(power)
    logits = model.anew(rows).structure["x-h.structure"].logits
    assert bool(logits.isfinite().all())
    if power == 1e4:
        assert float(logits.min()) < -600.0
        return
    expected = power * before
    if not prior.cube:
        expected, logits = expected - expected.max(), logits - logits.max()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("power", "bits"), [(3.0, 0.0), (3.0, 0.5), (1000.0, 0.0)])
def test_power_multiplies_what_a_block_costs(power, bits):
    rows = blobs()
    deep = blocks(rows, 1.0, bits, max_depth=4)
    own = deep.log_prior.clone()
    for factor in (power / 3.0, 3.0):  # powers of powers
        deep.numbers()["structure.power"].set(factor)
    expected = (power * own).log_softmax(0) if bits else priors.Cost(power).log_probs(5)
    torch.testing.assert_close(deep.log_prior, expected)
    torch.testing.assert_close(deep.anew(rows).log_prior, expected)


def test_numbers_that_are_none():
    rows = blobs()
    for prior in (priors.Normal(learn="scale"), priors.Normal("fan_in"), priors.LogUniform()):
        assert "prior.scale" not in network(rows, prior=prior).numbers()
    # The rate of a level is its unit, in which the level is kept.
    assert network(rows, prior=priors.MultiSpike()).numbers() == {}
    falls = priors.GumbelSoftmax(models.Annealed(1.0, 0.2), learn=True)
    net = structured(rows).first_network()
    assert models.StructuredNetwork(net, rows, structure=falls).numbers() == {}
    drawn = priors.Dirichlet(probs=[2.0, 3.0])  # a concentration is no cost
    numbers = models.StructuredNetwork(net, rows, structure=drawn).numbers()
    assert {"structure.temperature"} == {n for n in numbers if n.startswith("structure")}


# -- training ---------------------------------------------------------------------------------


def double(seed=0, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Linear(2, 3)
        model = models.BayesianNetwork(net, blobs(), prior=priors.GroupHalfCauchy(0.5)).double()
        guide = guides.Conditional(guides.MeanField(model, **options), pivots=3)
        return model, spread(guide.double(), seed)


@pytest.mark.filterwarnings("error::pyroccam.inference.training.step.CompileFallback")
def test_a_traced_step_is_the_eager_step():
    """Under one seed, the same numbers; which are others in each step."""
    found = []
    for compile in (False, "graph"):
        model, guide = (one.double() for one in conditional(blocks, "structure.power"))
        before = model.prior_numbers()
        torch.manual_seed(5)
        (one,) = walk([(model, guide)], batches(0), compile)
        one.pop("seen.depth", None)  # which is so up to a number
        found.append(one)
        assert model.prior_numbers() == before
    assert_close(*found)
    assert found[0]["losses"].std() > 1e-3


def test_every_particle_and_every_replicate_has_a_weight_of_its_own():
    """Gradients of mapped steps have the mean of eager ones, and their variance falls."""
    pairs = [double(seed) for seed in range(2)]
    given = [batches(seed, 1)[0] for seed in range(2)]
    x, y = stacked(*[[one] for one in given])[0]

    def gradients(pairs, x, y, compile, **settings):
        step = step_of(*copy.deepcopy(pairs), compile=compile, **settings)
        step.prepare(*((x[0], y[0]) if len(pairs) > 1 else (x, y)))
        found = []
        for _ in range(100):
            step.evaluate(x, y)
            found.append(torch.cat([flat.grad for flat in step.flats.values()], 1).clone())
        assert step.fallback is None
        return torch.stack(found)

    mapped = gradients(pairs, x, y, "graph", particles=4)
    for k, (one, batch) in enumerate(zip(pairs, given, strict=True)):
        eager = gradients([one], *batch, False)[:, 0]
        assert_same_means(mapped[:, k], eager)
        assert 1.8 < float(eager.var(0).sum() / mapped[:, k].var(0).sum()) < 9.0
    apart = torch.corrcoef(mapped[:, :, :6].reshape(100, -1).T)[:6, 6:]
    assert float(apart.abs().max()) < 0.6  # six standard errors of 100 draws


# -- the fit of one weight --------------------------------------------------------------------


def fitted(**more):
    model, guide = conditional(low=0.01, high=10.0)
    return inference.fit(model, guide, blobs(), **{**SHORT, **more})


@pytest.fixture(scope="module")
def fit():
    torch.manual_seed(0)
    return fitted(epochs=30)


def test_the_fit_of_a_weight_is_an_ordinary_one(fit):
    one = fit.at(0.1)
    assert type(one.guide) is guides.MeanField
    assert one.model is fit.model
    assert not one.guide.training
    assert (one.settings.kl_weight, one.history, one.out) == (0.1, [], None)
    assert not [said for said in one.warnings if "checkpoint" in said]
    assert one.evaluate() == fit.at(0.1).evaluate()
    assert one.val_nll != fit.at(5.0).val_nll
    usual = fit.at(1.0)
    assert usual.evaluate() == fit.evaluate()
    assert usual.val_nll == pytest.approx(fit.val_nll)
    assert usual.predict(fit.data.x_test).equal(fit.predict(fit.data.x_test))


def test_the_fit_of_a_number_is_an_ordinary_one():
    model, guide = conditional(normal, "prior.scale")
    fit = inference.fit(model, guide, blobs(), **{**SHORT, "kl_weight": 0.5})
    one = fit.at(0.3)
    assert one.settings.kl_weight == 0.5
    assert one.model is not fit.model
    assert [p.scale for p in one.model.priors()] == pytest.approx([0.3, 0.3])
    assert one.model.spec["prior"] == priors.Normal(0.3)
    narrowed, _ = inference.narrow(one)
    assert [float(p.scale) for p in narrowed.priors()] == pytest.approx([0.3] * 2)
    by = inference.marginal_likelihood.Bound(passes=2)
    bounds = [inference.evidence(f, by=by) for f in (one, fit.at(3.0))]
    assert bounds[0].value != bounds[1].value
    assert fit.at(9.0, extrapolate=True).model.spec["prior"] == priors.Normal(9.0)


def test_a_stack_has_a_depth_for_each_weight():
    """While it is held every depth is alike; of a weight q(d) is the best beside its weights."""
    rows = blobs()
    model = stacked_blocks(rows)
    held = guides.MeanField(model, structure=guides.StructureFamily(hold=0.99))
    guide = guides.Conditional(held, pivots=3)
    inference.fit(model, guide, rows, **SHORT)
    assert guide.edge("depth").within.logits.detach().equal(torch.zeros(3, 3))
    guide = guides.Conditional(guides.MeanField(model), low=0.01, high=10.0, pivots=3)
    assert (guide.schedule.held, guide.schedule.settled, guide.traits.moves) == (0.5, 0.75, None)
    fit = inference.fit(model, guide, rows, **{**SHORT, "epochs": 4})
    assert not guide.edge("depth").within.logits.detach().equal(torch.zeros(3, 3))
    for weight in (0.01, 10.0):
        one = fit.at(weight)
        exact = depth_posterior_of_weights(model, one.guide, rows, kl_weight=weight)
        torch.testing.assert_close(
            one.structure.depth_probs, exact, atol=1e-6, rtol=1e-3, check_dtype=False
        )
    path = inference.path(fit, 2, draws=2)
    assert [point.depth for point in path] == [
        fit.at(point.weight).structure.depth_chosen for point in path
    ]


def with_norm(norm, **options):
    """A fit over the weight of the KL of a network with a layer of running statistics."""
    rows = blobs()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), norm, nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    guide = guides.Conditional(guides.MeanField(model), low=0.01, high=10.0, pivots=3)
    return inference.fit(model, guide, rows, **{**SHORT, **options}), rows


def norm_of(model):
    (found,) = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    return found


def test_running_statistics_are_those_of_the_weight():
    """Of a posterior without a spread: the mean and variance of what the layer gives, over all
    rows; those of the fit mix all weights."""
    fit, rows = with_norm(nn.BatchNorm1d(8), batch_size=60)
    with torch.no_grad():
        spread(fit.guide)
        for site in fit.guide.sites:
            fit.guide.factor_of(site).within.log_scale.fill_(-20.0)
    x, _ = rows.split("train")
    before = copy.deepcopy(fit.model.state_dict())
    for weight in (0.01, 10.0):
        one = fit.at(weight)
        q = {site: one.guide.posterior(site).mean for site in ("0.weight", "0.bias")}
        out = x @ q["0.weight"].T + q["0.bias"]
        norm = norm_of(one.model)
        assert not norm.training
        assert norm.momentum == 0.1
        torch.testing.assert_close(norm.running_mean, out.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var, out.var(0), rtol=1e-4, atol=1e-5)
        one.guide.check(one.model, one.settings, 1)
    for name, t in fit.model.state_dict().items():
        assert t.equal(before[name])


def test_what_needs_one_posterior_is_refused(fit):
    for ask in (
        inference.shrink,
        inference.evidence,
        inference.description_length,
        inference.diagnostics.khat,
        inference.posterior.EnsembleNetwork,
        lambda one: one.to_arviz(draws=2),
        lambda one: inference.shrinking.without_means(one, layers=["0"]),
        lambda one: inference.side_by_side({"one": one}),
        *(lambda one, w=w: one.at(w) for w in (0.005, 20.0)),
    ):
        with pytest.raises(PyroccamError):
            ask(fit)


def test_what_cannot_be_conditioned_is_refused(fit):
    rows = blobs()
    model = normal(rows)
    own = guides.MeanField(model)
    learnt = guides.StructureFamily(temperature="learnt")
    for name in ("Switch", "Mask", "Book", "WholeSteps", "Conditional", "ZeroMean", "MeanKL"):
        with pytest.raises(PyroccamError):
            guides.Conditional(CASES[name].pair()[1])
    for guide, wrong in (
        (guides.MeanField(structured(rows), local=False, structure=learnt), {}),
        (model, {}),
        (own, {"low": 10.0}),
        (own, {"over": "prior.scale"}),
        (own, {"over": "prior.scal", "model": model}),
        (own, {"over": "prior.scale", "model": normal(rows)}),
        (own, {"model": model}),
    ):
        with pytest.raises(PyroccamError):
            guides.Conditional(guide, **wrong)
    with pytest.raises(PyroccamError):
        inference.fit(model, guides.Conditional(own), rows, kl_weight=0.5, **SHORT)
    with pytest.raises(PyroccamError):
        fit.at(1.0).at(1.0)


# -- copies, files, and going on --------------------------------------------------------------


def test_copies_have_numbers_of_their_own_and_the_guide_that_is_wrapped_is_left_alone():
    model, guide = conditional(normal, "prior.scale")
    inner = guides.MeanField(model)
    before = copy.deepcopy(inner.state_dict())
    wrapped = spread(guides.Conditional(inner))
    assert all(t.equal(before[name]) for name, t in inner.state_dict().items())
    assert wrapped.condition(1.0).options() == inner.options()
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
