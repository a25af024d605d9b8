"""Posteriors for every weight of the KL, against those of each."""

import contextlib
import copy
import math
from functools import partial

import pyro
import pytest
import torch
from conditioned import enumerated, spread, stacked_blocks, weight_drawn
from conjugate import NOISE, model_of, rows
from fitting import SHORT, assert_same, blobs, stopped
from guide_case import BOOK, network, of_integers, structured
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyroccam import guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.guides.forms import place
from pyroccam.inference.elbo.estimator import bound
from pyroccam.inference.posterior.depth import depth_posterior_of_weights
from pyroccam.inference.training.settings import Settings
from pyroccam.models import priors
from random_weights import assert_same_means
from stepping import assert_close, batches, stacked, step_of, walk
from torch import nn

from experiments.published.forms import FORMS, FiLM, LowRank, OfLowRank, WithFiLM

pytestmark = pytest.mark.usefixtures("clean")

PAIRS = [
    (priors.Normal(), guides.MeanField),
    (priors.GroupHalfCauchy(0.5), guides.MeanField),
    (priors.SpikeSlab(), guides.MeanField),
    (priors.MultiSpike(), guides.MeanField),
    (priors.Normal(), guides.Delta),
    (priors.Normal(), guides.VariationalDropout),
    (priors.GroupHalfCauchy(0.5), guides.VariationalDropout),
]


def conditional(prior=None, inner=guides.MeanField, low=0.01, high=10.0, pivots=4, **options):
    model = network(blobs(), prior=prior)
    guide = guides.Conditional(inner(model, **options), low=low, high=high, pivots=pivots)
    return model, spread(guide)


# -- functions of the weight ------------------------------------------------------------------


@pytest.mark.parametrize("pivots", [2, 3, 6])
def test_shares_of_pivots_are_a_partition_of_unity_and_interpolate(pivots):
    def shares(u):
        where = place(torch.tensor(u, dtype=torch.float64), pivots)
        found = torch.zeros(pivots, dtype=torch.float64)
        found[where.left], found[where.left + 1] = 1.0 - where.share, where.share
        return found

    for k in range(pivots):
        expected = torch.eye(pivots, dtype=torch.float64)[k]
        torch.testing.assert_close(shares(k / (pivots - 1)), expected, atol=1e-15, rtol=0)
    knots = torch.linspace(0, 1, pivots, dtype=torch.float64)
    for u in torch.linspace(0, 1, 101).tolist():
        found = shares(u)
        assert (found >= 0).all()
        assert found.sum().item() == pytest.approx(1.0, abs=1e-15)
        assert (found @ knots).item() == pytest.approx(u, abs=1e-14)  # a line stays a line
        assert (found > 1e-12).sum() <= 2
    for u in (-0.3, 1.7):  # so it does outside
        assert (shares(u) @ knots).item() == pytest.approx(u, abs=1e-14)


@pytest.mark.parametrize("kind", [*FORMS.values()][1:])
def test_every_weight_begins_with_the_guide(kind):
    table = blobs()
    model = network(table, prior=priors.GroupHalfCauchy(0.5))
    inner = guides.MeanField(model)
    guide = kind(inner, low=0.01, high=10.0)
    for weight in (0.01, 0.3, 10.0):
        one = guide.condition(weight)
        for site in one.sites:
            for name, p in one.factor_of(site).named_parameters():
                torch.testing.assert_close(p, inner.factor_of(site).get_parameter(name))
    trained = [p for p in guide.parameters() if p.requires_grad]
    torch.manual_seed(0)
    with guide.handler:
        bound(model, guide).terms(*table.split("train")).loss().backward()
    assert all(p.grad is not None for p in trained)


def test_forms_are_what_they_say():
    """At one u, number by number."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    own, u = drawn(3, 2, 2), torch.tensor(0.3, dtype=torch.float64)
    low_rank = LowRank(6)
    trained = {"own": own, "left": drawn(2, 3), "right": drawn(2, 4)}
    found = low_rank.value("loc", trained, u)
    for i in range(3):
        for j in range(4):
            left, right = trained["left"][:, i], trained["right"][:, j]
            expected = own.flatten(1)[i, j] + (left[0] + 0.3 * left[1]) * (
                right[0] + 0.3 * right[1]
            )
            assert float(found.flatten(1)[i, j]) == pytest.approx(float(expected))
    assert {n: t.shape for n, t in low_rank.begin(own).items()} == {
        n: t.shape for n, t in trained.items()
    }
    bias = {"own": drawn(3), "slope": drawn(3)}
    assert low_rank.value("loc", bias, u).equal(bias["own"] + 0.3 * bias["slope"])
    film = FiLM(3)
    trained = {"own": own, "shift": drawn(3, 3)}
    assert {n: t.shape for n, t in film.begin(own).items()} == {
        n: t.shape for n, t in trained.items()
    }
    shift = 0.4 * trained["shift"][0] + 0.6 * trained["shift"][1]  # 0.3 of the way, of two lines
    for i in range(3):
        torch.testing.assert_close(film.value("loc", trained, u)[i], own[i] * shift[i].exp())
        torch.testing.assert_close(film.value("log_scale", trained, u)[i], own[i] + shift[i])


@pytest.mark.parametrize("kind", [OfLowRank, WithFiLM])
def test_the_bound_of_other_forms_is_that_of_an_ordinary_guide(kind):
    model = network(blobs(), prior=priors.GroupHalfCauchy(0.5))
    inner = guides.MeanField(model)
    guide = spread(kind(inner, low=0.01, high=10.0))
    for seed in range(3):
        same_bound(model, guide, seed)


def test_a_guide_at_a_pivot_has_its_parameters_and_between_two_their_mean():
    _, guide = conditional()
    rows = guide.factor_of("0.weight").within
    for k, weight in enumerate([0.01, 0.1, 1.0, 10.0]):
        own = guide.condition(weight).factor_of("0.weight")
        torch.testing.assert_close(own.loc, rows.loc[k], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(own.log_scale, rows.log_scale[k], atol=1e-6, rtol=1e-6)
    own = guide.condition(10**-1.5).factor_of("0.weight")
    torch.testing.assert_close(own.log_scale, rows.log_scale[:2].mean(0), atol=1e-6, rtol=1e-6)


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


@pytest.mark.parametrize(
    ("prior", "inner"), PAIRS, ids=[f"{type(p).__name__}-{g.__name__}" for p, g in PAIRS]
)
def test_the_bound_of_a_step_is_that_of_an_ordinary_guide_with_this_weight(prior, inner):
    """With the same noise; its gradients go to the two pivots around, by their shares."""
    gates = {"local": False} if isinstance(prior, priors.SpikeSlab) else {}
    model, guide = conditional(prior, inner, **gates)
    for seed in range(3):
        ordinary, u = same_bound(model, guide, seed)
        where = place(u, 4)
        for site in guide.sites:
            rows = dict(guide.factor_of(site).within.named_parameters())
            for name, p in ordinary.factor_of(site).named_parameters():
                expected = torch.zeros_like(rows[name])
                expected[where.left] = (1 - where.share) * p.grad
                expected[where.left + 1] = where.share * p.grad
                size = float(expected.abs().max())
                torch.testing.assert_close(
                    rows[name].grad, expected, rtol=1e-4, atol=1e-5 * size + 1e-7
                )


def of_structure(make):
    model = make(blobs())
    inner = guides.MeanField(model, local=make is stacked_blocks)
    return model, spread(guides.Conditional(inner, low=0.01, high=10.0, pivots=4))


@pytest.mark.parametrize("make", [structured, enumerated, stacked_blocks])
def test_the_bound_with_random_structure_is_that_of_an_ordinary_guide(make):
    """The divergence of the structure is weighed as that of the weights, where these count."""
    model, guide = of_structure(make)
    site = guide.edges[0]
    for seed in range(3):
        ordinary, u = same_bound(model, guide, seed)
        ordinary.check(model, Settings(), 1)
        where = place(u, 4)
        mine = guide.factor_of(site).within.logits.grad
        expected = torch.zeros_like(mine)
        gradient = ordinary.factor_of(site).logits.grad
        expected[where.left] = (1 - where.share) * gradient
        expected[where.left + 1] = where.share * gradient
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5 * float(gradient.norm()))
    usual = guide.condition(1.0).edge(site)
    assert guide.edge(site).probs().equal(usual.probs())
    assert guide.edge(site).entropy() == usual.entropy()
    vertex = usual.vertex()
    assert guide.edge(site).vertex().equal(vertex)
    assert guide.edge(site).vertex_log_prob(vertex) == usual.vertex_log_prob(vertex)


def test_a_stack_has_a_depth_for_each_weight():
    """While it is held every depth is alike; of a weight q(d) is the best beside its weights."""
    rows = blobs()
    model = stacked_blocks(rows)
    held = guides.MeanField(model, structure=guides.StructureFamily(hold=0.99))
    guide = guides.Conditional(held, pivots=3)
    assert guide.schedule.held == 0.99
    inference.fit(model, guide, rows, **SHORT)
    assert guide.edge("depth").within.logits.detach().equal(torch.zeros(3, 3))
    guide = guides.Conditional(guides.MeanField(model), low=0.01, high=10.0, pivots=3)
    assert (guide.schedule.held, guide.schedule.settled, guide.traits.moves) == (0.5, 0.75, None)
    logits = guide.edge("depth").within.logits
    fit = inference.fit(
        model, guide, rows, epochs=150, lr=0.03, weight_decay=0.0, particles=2, progress=False,
        device="cpu", compile=False,
    )  # fmt: skip
    assert not logits.detach().equal(torch.zeros(3, 3))
    expected = []
    for weight in (0.01, 0.1, 10.0):
        one = fit.at(weight)
        exact = depth_posterior_of_weights(model, one.guide, rows, kl_weight=weight)
        torch.testing.assert_close(
            one.structure.depth_probs, exact, atol=1e-6, rtol=1e-3, check_dtype=False
        )
        assert one.guide.posterior("depth").probs.argmax() == exact.argmax()
        expected.append(one.structure.depth_expected)
        small = inference.shrink(one, cut=inference.Thresholds(10.0))
        assert small.net(rows.x_test).shape == (30, 3)
    assert expected[-1] < 0.1  # no block pays for itself there
    path = inference.path(fit, 3, draws=2)
    assert [point.depth for point in path] == [
        fit.at(point.weight).structure.depth_chosen for point in path
    ]


@pytest.mark.parametrize("local", [True, False])
def test_the_bound_is_that_of_pyro(local):
    """``TraceMeanField_ELBO``, and of drawn weights the mean of ``Trace_ELBO``."""
    model, guide = conditional(local=local)
    batch = blobs().split("train")
    torch.manual_seed(2)
    ours = bound(model, guide).terms(*batch).loss()
    torch.manual_seed(2)
    with guide.handler:
        theirs = TraceMeanField_ELBO().loss(model, guide, *batch)
    assert float(ours.detach()) == pytest.approx(theirs, rel=1e-5)
    if local:
        return
    found = []
    for elbo in (Trace_ELBO(), TraceMeanField_ELBO()):
        with guide.handler:
            drawn = [elbo.loss(model, guide, *batch) for _ in range(200)]
            found.append(torch.tensor(drawn)[:, None])
    assert_same_means(*found)


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


# -- training ---------------------------------------------------------------------------------


def double(seed=0, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Linear(2, 3)
        model = models.BayesianNetwork(net, blobs(), prior=priors.GroupHalfCauchy(0.5)).double()
        guide = guides.Conditional(guides.MeanField(model, **options), pivots=3)
        return model, spread(guide.double(), seed)


@pytest.mark.filterwarnings("error::pyroccam.inference.training.step.CompileFallback")
@pytest.mark.parametrize("options", [{}, {"local": False}], ids=["local", "drawn"])
def test_a_traced_step_is_the_eager_step(options):
    """Under one seed, the same weights of the KL; which are others in each step."""
    found = []
    for compile in (False, "graph"):
        torch.manual_seed(5)
        (one,) = walk([double(**options)], batches(0), compile)
        found.append(one)
    assert_close(*found)
    assert found[0]["losses"].std() > 1e-3


@pytest.mark.parametrize("together", [False, True])
def test_every_particle_and_every_replicate_has_a_weight_of_its_own(together):
    """Gradients of mapped steps have the mean of eager ones, and their variance falls."""
    pairs = [double(seed) for seed in range(1 + together)]
    given = [batches(seed, 1)[0] for seed in range(len(pairs))]
    x, y = stacked(*[[one] for one in given])[0] if together else given[0]

    def gradients(pairs, x, y, compile, **settings):
        step = step_of(*copy.deepcopy(pairs), compile=compile, **settings)
        step.prepare(*((x[0], y[0]) if len(pairs) > 1 else (x, y)))
        found = []
        for _ in range(150):
            step.evaluate(x, y)
            found.append(torch.cat([flat.grad for flat in step.flats.values()], 1).clone())
        assert step.fallback is None
        return torch.stack(found)

    mapped = gradients(pairs, x, y, "graph", particles=4)
    for k, (one, batch) in enumerate(zip(pairs, given, strict=True)):
        eager = gradients([one], *batch, False)[:, 0]
        assert_same_means(mapped[:, k], eager)
        assert 1.8 < float(eager.var(0).sum() / mapped[:, k].var(0).sum()) < 9.0
    if together:
        apart = torch.corrcoef(mapped[:, :, :6].reshape(150, -1).T)[:6, 6:]
        assert float(apart.abs().max()) < 0.5  # six standard errors of 150 draws


def test_it_is_trained_by_pyro():
    """Step by step as by us: the same weights and noise, and so the same parameters."""
    batch = blobs().split("train")
    model, guide = conditional()
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-4}), TraceMeanField_ELBO())
    torch.manual_seed(3)
    with guide.handler:
        theirs = [svi.step(*batch) for _ in range(20)]
    ours, other = conditional()
    loss = bound(ours, other)
    optimizer = torch.optim.SGD(other.parameters(), lr=1e-4)
    torch.manual_seed(3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        found = loss(*batch)
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    assert losses == pytest.approx(theirs, rel=1e-4)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value, guide.state_dict()[name], rtol=1e-4, atol=1e-5)


# -- ridge regression -------------------------------------------------------------------------


LOW, HIGH = 1e-2, 1e2


@pytest.fixture(scope="module")
def table():
    return rows(n=20, features=5, seed=3)


def precision(table):
    x, y = (part.double() for part in table.split("train"))
    return x.T @ x / NOISE**2, (x.T @ y / NOISE**2)[:, 0]


def ridge(table, weight):
    """Means and log deviations of the best independent normals: of the bound with the weight λ,
    the means are those of ridge regression, and the variances λ / (X'X / s² + λ)_ii."""
    xx, xy = precision(table)
    whole = xx + weight * torch.eye(len(xx), dtype=xx.dtype)
    return torch.linalg.solve(whole, xy), 0.5 * (weight / whole.diagonal()).log()


def best_broken_lines(table, pivots):
    """Means and log deviations at pivots with the best bound on the average of λ, by quadrature:
    the means from normal equations, the deviations by Newton's method."""
    xx, xy = precision(table)
    u = (torch.arange(4000, dtype=xx.dtype) + 0.5) / 4000
    weight = LOW * (HIGH / LOW) ** u
    hats = (1 - (u[:, None] * (pivots - 1) - torch.arange(pivots)).abs()).clamp_min(0)
    plain, weighed = hats.T @ hats, (hats * weight[:, None]).T @ hats
    whole = torch.kron(plain, xx) + torch.kron(weighed, torch.eye(len(xx), dtype=xx.dtype))
    means = torch.linalg.solve(whole, torch.kron(hats.sum(0), xy)).reshape(pivots, -1)
    logs = []
    for own in xx.diagonal():
        log = torch.full((pivots,), -1.0, dtype=xx.dtype)
        for _ in range(200):
            cost = (own + weight) * (2 * hats @ log).exp()
            slope = hats.T @ (cost - weight)
            step = torch.linalg.solve((hats * 2 * cost[:, None]).T @ hats, slope)
            log = log - step.clamp(-0.5, 0.5)
        assert step.abs().max() < 1e-10
        logs.append(log)
    return means, torch.stack(logs, 1)


@pytest.mark.parametrize("pivots", [2, 6])
def test_the_path_of_ridge_regression(table, pivots):
    """Over four decades: as near to the best broken line as noise lets it come, and with six
    pivots near to the path, of which that line is itself up to 2.3 % off."""
    model = model_of(table)
    model.likelihood.requires_grad_(False)
    guide = guides.Conditional(guides.MeanField(model), low=LOW, high=HIGH, pivots=pivots)
    fit = inference.fit(
        model, guide, table, epochs=3000, lr=0.03, particles=10, optimizer="adam",
        compile="graph", progress=False, device="cpu",
    )  # fmt: skip
    means, logs = best_broken_lines(table, pivots)
    largest = float(ridge(table, LOW)[0].abs().max())
    off = {"lines": [0.0, 0.0], "path": [0.0, 0.0], "best": [0.0, 0.0]}
    for step in range(41):
        u = step / 40
        weight = min(max(LOW * (HIGH / LOW) ** u, LOW), HIGH)
        q = fit.at(weight).guide.posterior("0.weight")
        mine = q.mean[0].detach().double(), q.stddev[0].detach().double().log()
        hats = (1 - (u * (pivots - 1) - torch.arange(pivots).double()).abs()).clamp_min(0)
        lines, path = (hats @ means, hats @ logs), ridge(table, weight)
        for name, (a, b) in {
            "lines": (mine, lines), "path": (mine, path), "best": (lines, path),
        }.items():  # fmt: skip
            for i, unit in enumerate((largest, 1.0)):
                off[name][i] = max(off[name][i], float((a[i] - b[i]).abs().max()) / unit)
    assert off["lines"][0] < 0.03
    assert off["lines"][1] < 0.1
    if pivots == 6:
        assert off["best"] == [pytest.approx(0.0231, abs=1e-3), pytest.approx(0.037, abs=1e-3)]
        assert off["path"][0] < 0.04
        assert off["path"][1] < 0.1
    else:  # which one line cannot follow
        assert off["path"][0] > 0.2
        assert off["path"][1] > 0.5


# -- the fit of one weight --------------------------------------------------------------------


def fitted(**more):
    model, guide = conditional()
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
    assert one.settings.kl_weight == 0.1
    assert one.history == []  # nor does a warning compare two weights
    assert not [said for said in one.warnings if "checkpoint" in said]
    assert one.out is None
    one.guide.check(fit.model, one.settings, 1)  # made from the same model
    assert one.evaluate() == fit.at(0.1).evaluate()
    assert one.val_nll != fit.at(5.0).val_nll
    usual = fit.at(1.0)
    assert usual.evaluate() == fit.evaluate()
    assert usual.val_nll == pytest.approx(fit.val_nll)
    assert usual.predict(fit.data.x_test).equal(fit.predict(fit.data.x_test))
    narrowed = inference.narrow(one)
    assert inference.shrink(one, cut=inference.Thresholds(0.0)).net(fit.data.x_test).shape == (
        30,
        3,
    )
    assert type(narrowed[1]) is guides.MeanField
    assert inference.evidence(one, by=inference.marginal_likelihood.Bound(passes=2)).value < 0
    assert one.to_arviz(draws=5) is not None
    assert {f.name for f in inference.diagnostics.diagnose(one, draws=50, progress=False)}
    more = inference.fit(*copy.deepcopy((one.model, one.guide)), fit.data, **SHORT)
    assert type(more.guide) is guides.MeanField


@pytest.mark.parametrize("batch_size", [60, 18])
def test_running_statistics_are_those_of_the_weight(batch_size):
    """Of a posterior without a spread: the mean and variance of what the layer gives, over all
    rows, or over batches on average; those of the fit mix all weights."""
    rows = blobs()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    guide = guides.Conditional(guides.MeanField(model), low=0.01, high=10.0, pivots=3)
    fit = inference.fit(model, guide, rows, **{**SHORT, "batch_size": batch_size})
    with torch.no_grad():
        spread(guide)
        for site in guide.sites:
            guide.factor_of(site).within.log_scale.fill_(-20.0)
    x, _ = rows.split("train")
    kept = model.state_dict()
    before = {name: t.clone() for name, t in kept.items()}
    for weight in (0.01, 10.0):
        one = fit.at(weight)
        q = {site: one.guide.posterior(site).mean for site in ("0.weight", "0.bias")}
        out = x @ q["0.weight"].T + q["0.bias"]
        (norm,) = [m for m in one.model.modules() if isinstance(m, nn.BatchNorm1d)]
        assert not norm.training
        assert norm.momentum == 0.1
        if batch_size == 60:
            torch.testing.assert_close(norm.running_mean, out.mean(0), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(norm.running_var, out.var(0), rtol=1e-4, atol=1e-5)
        else:  # 54 rows in three batches of 18
            torch.testing.assert_close(norm.running_mean, out.mean(0), rtol=1e-4, atol=1e-5)
        one.guide.check(one.model, one.settings, 1)
        assert one.evaluate() == fit.at(weight).evaluate()
    for name, t in model.state_dict().items():
        assert t.equal(before[name])


class Frozen(nn.BatchNorm1d):
    """Of a network that was trained elsewhere."""

    def train(self, mode=True):
        return super().train(False)


@pytest.mark.parametrize(
    "norm",
    [Frozen(8), nn.BatchNorm1d(8, momentum=0.0), nn.BatchNorm1d(8, track_running_stats=False)],
    ids=["frozen", "without momentum", "without statistics"],
)
def test_statistics_that_training_leaves_stay(norm):
    rows = blobs()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), norm, nn.ReLU(), nn.Linear(8, 3))
    if norm.running_mean is not None:
        norm.running_mean.fill_(0.3)
        norm.running_var.fill_(2.0)
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    guide = guides.Conditional(guides.MeanField(model), low=0.1, high=2.0)
    fit = inference.fit(model, guide, rows, **SHORT)
    one = fit.at(1.0)
    (own,) = [m for m in one.model.modules() if isinstance(m, nn.BatchNorm1d)]
    if norm.running_mean is None:
        assert one.model is fit.model
    else:
        assert own.running_mean.equal(torch.full((8,), 0.3))
        assert own.running_var.equal(torch.full((8,), 2.0))
    assert one.evaluate() == fit.evaluate()
    assert [point.small.net(rows.x_test).shape for point in inference.path(fit, 2, draws=2)]


def test_what_needs_one_posterior_says_how_to_choose_it(fit):
    for ask in (
        inference.shrink,
        inference.narrow,
        inference.evidence,
        inference.description_length,
        inference.diagnostics.diagnose,
        inference.diagnostics.khat,
        inference.diagnostics.loo,
        inference.posterior.EnsembleNetwork,
        lambda one: one.to_arviz(draws=2),
        lambda one: inference.shrinking.without_means(one, layers=["0"]),
        lambda one: inference.side_by_side({"one": one}),
    ):
        with pytest.raises(PyroccamError):
            ask(fit)


def test_weights_outside_of_the_range_are_asked_for(fit):
    for weight in (0.005, 20.0):
        with pytest.raises(PyroccamError):
            fit.at(weight)
    rows = fit.guide.factor_of("2.bias").within.loc.detach()
    own = fit.at(100.0, extrapolate=True).guide.factor_of("2.bias").loc
    torch.testing.assert_close(own, 2 * rows[3] - rows[2])
    for weight in (0.0, -1.0, math.inf, math.nan, True, "1"):
        with pytest.raises(PyroccamError):
            fit.at(weight, extrapolate=True)


def test_what_cannot_be_conditioned_is_refused():
    rows = blobs()
    model = network(rows)
    for points in (
        guides.Points(model, by=guides.Switch(c=0.5, gamma=0.01)),
        guides.Points(model, by=guides.Mask({"0": model.layers["0"].start["weight"].abs() > 0.3})),
        guides.Points(model, by=guides.Book({"0": (BOOK, torch.arange(16).reshape(8, 2) % 4 - 1)})),
    ):
        with pytest.raises(PyroccamError):
            guides.Conditional(points)
    with pytest.raises(PyroccamError):
        guides.Conditional(guides.Points(of_integers(rows), by=guides.WholeSteps()))
    _, guide = conditional()
    with pytest.raises(PyroccamError):
        guides.Conditional(guide)
    with pytest.raises(PyroccamError):
        guides.Conditional(model)
    learnt = guides.StructureFamily(temperature="learnt")
    own = guides.MeanField(structured(rows), local=False, structure=learnt)
    with pytest.raises(PyroccamError):
        guides.Conditional(own)
    own = guides.MeanField(model)
    for wrong in ({"low": 10.0}, {"high": math.inf}, {"pivots": 1}):
        with pytest.raises(PyroccamError):
            guides.Conditional(own, **wrong)
    guide = guides.Conditional(own)
    with pytest.raises(PyroccamError):
        inference.fit(model, guide, rows, kl_weight=0.5, **SHORT)
    fit = inference.fit(model, own, rows, **SHORT)
    with pytest.raises(PyroccamError):
        fit.at(1.0)


def test_the_guide_that_is_wrapped_is_left_alone():
    model = network(blobs())
    own = guides.MeanField(model)
    before = copy.deepcopy(own.state_dict())
    guide = spread(guides.Conditional(own))
    assert own.state_dict().keys() == before.keys()
    for name, value in own.state_dict().items():
        assert torch.equal(value, before[name])
    guide.check(model, inference.Settings(), 1)
    assert guide.condition(1.0).options() == own.options()


# -- copies, files, and going on --------------------------------------------------------------


def test_copies_and_states_are_the_guide_again():
    model, guide = conditional(priors.MultiSpike())
    copied = copy.deepcopy((model, guide))
    plain = guides.Conditional(guides.MeanField(model), low=0.01, high=10.0, pivots=4)
    plain.load_state_dict(guide.state_dict())
    batch = blobs().split("train")
    found = []
    for pair in ((model, guide), copied, (model, plain)):
        torch.manual_seed(1)
        found.append(bound(*pair).terms(*batch).loss())
        assert torch.equal(pair[1].condition(0.3).posterior("0.weight").mean,
                           guide.condition(0.3).posterior("0.weight").mean)  # fmt: skip
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert copied[1].handler is not guide.handler
    assert guide.double().condition(0.3).posterior("0.weight").mean.dtype == torch.float64


@pytest.mark.parametrize("compile", [False, "graph"])
def test_a_run_that_is_stopped_goes_on_bit_for_bit(tmp_path, monkeypatch, compile):
    """Weights of the KL, too, are those of the run that was not stopped."""
    more = {"epochs": 4, "batch_size": 20, "compile": compile}
    whole = fitted(**more)
    stopped(monkeypatch, partial(fitted, out=tmp_path, **more))
    assert_same(whole, fitted(out=tmp_path, resume=True, **more))
    model = network(blobs())
    other = guides.Conditional(guides.MeanField(model), low=0.1, high=10.0, pivots=4)
    with pytest.raises(inference.CheckpointError):
        inference.fit(model, other, blobs(), out=tmp_path, resume=True, **{**SHORT, **more})
