"""Every pair is ordinary Pyro: what of Pyro runs over which prior, and what it then says."""

import re
from pathlib import Path

import pyro
import pytest
import torch
from alternatives import choice_of
from pyro import poutine
from pyro.infer import (
    MCMC,
    NUTS,
    SVI,
    Predictive,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceMeanField_ELBO,
    config_enumerate,
    infer_discrete,
)
from pyro.infer.autoguide import AutoNormal
from pyro.infer.inspect import get_model_relations
from pyroccam import data, guides, models
from pyroccam.models import priors
from random_weights import PRIORS
from torch import nn

pytestmark = pytest.mark.usefixtures("clean")

PAGE = Path(__file__).parents[2] / "docs" / "coming_from_pyro.md"
X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 2
ROWS = data.Dataset.from_tensors(X.repeat(4, 1), Y.repeat(4), X, Y)


def weights(prior):
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    model = models.BayesianNetwork(net, ROWS, prior=prior)
    return model, guides.MeanField(model, local=False)


def structured(structure):
    net = choice_of(2, 3, "tanh", "skip")
    model = models.StructuredNetwork(net, ROWS, prior=priors.LogUniform(), structure=structure)
    return model, guides.MeanField(model, local=False)


def depth():
    model = models.LearntDepth.mlp(ROWS, width=3, max_depth=2)
    return model, guides.CategoricalDepth(model)


def both():
    blocks = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2)]
    stack = models.networks.DepthStack(nn.Linear(2, 3), blocks, nn.Linear(3, 2))
    model = models.BayesianStack(stack, ROWS, prior=priors.GroupNormalJeffreys())
    return model, guides.MeanField(model, local=False)


def improper(prior):
    latents = weights(prior)[0].layers["0"].latents().values()
    return any(hasattr(getattr(one.prior, "base_dist", one.prior), "like") for one in latents)


PAIRS = {
    "proper prior": [lambda p=p: weights(p) for p in PRIORS if not improper(p)],
    "improper prior": [lambda p=p: weights(p) for p in PRIORS if improper(p)],
    "learnt depth": [depth],
    "discrete structure": [lambda: structured(priors.Categorical()), both],
    "relaxed structure": [lambda: structured(priors.GumbelSoftmax())],
}


def drawn(model, guide):
    """Values of the sites by the guide, without those that are discrete."""
    sites = poutine.trace(guide).get_trace(X).iter_stochastic_nodes()
    return {name: one["value"] for name, one in sites if one["value"].is_floating_point()}


def particles(elbo, **options):
    return elbo(num_particles=3, vectorize_particles=True, max_plate_nesting=1, **options)


def nuts(model, guide):
    run = MCMC(NUTS(model, max_tree_depth=2), num_samples=2, warmup_steps=2, disable_progbar=True)
    run.run(X, Y)


def autoguide(model, guide):
    guide = AutoNormal(model)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO()).step(X, Y)


WAYS = {
    "`Trace_ELBO`": lambda m, g: Trace_ELBO().loss(m, g, X, Y),
    "`TraceMeanField_ELBO`": lambda m, g: TraceMeanField_ELBO().loss(m, g, X, Y),
    "`TraceEnum_ELBO`": lambda m, g: TraceEnum_ELBO(max_plate_nesting=1).loss(m, g, X, Y),
    "`vectorize_particles=True`": lambda m, g: particles(TraceEnum_ELBO).loss(m, g, X, Y),
    "`Predictive(model, guide=guide)`": lambda m, g: Predictive(m, guide=g, num_samples=2)(X),
    "the same, `parallel=True`": lambda m, g: Predictive(m, guide=g, num_samples=2, parallel=True)(
        X
    ),
    "`Predictive(model)`, of the prior": lambda m, g: Predictive(m, num_samples=2)(X),
    "`render_model`": lambda m, g: get_model_relations(m, (X, Y)),
    "`poutine.condition`": lambda m, g: (
        poutine.trace(poutine.condition(m, drawn(m, g))).get_trace(X, Y).log_prob_sum()
    ),
    "`infer_discrete`": lambda m, g: infer_discrete(
        poutine.condition(config_enumerate(m), drawn(m, g)), first_available_dim=-2
    )(X, Y),
    "`NUTS`": nuts,
    "`AutoNormal`": autoguide,
}


def table():
    """``{way: {kind of prior: yes or no}}`` as the page of the docs has it."""
    text = PAGE.read_text().split("## What works with which prior")[1]
    lines = re.findall(r"^\|(.+)\|$", text, re.MULTILINE)
    head, _, *body = ([cell.strip() for cell in line.split("|")] for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Pyro, which advises another bound
@pytest.mark.parametrize("kind", PAIRS)
def test_what_works_is_what_the_page_says(kind):
    found = {}
    for way, run in WAYS.items():
        said = set()
        for make in PAIRS[kind]:
            torch.manual_seed(0)
            pyro.clear_param_store()
            try:
                run(*make())
                said.add("yes")
            except (ValueError, NotImplementedError):
                said.add("no")
        found[way] = "/".join(sorted(said))
    assert found == {way: cells[kind] for way, cells in table().items()}


def bayesian(net, shape, prior, noise=1e-4):
    rows = data.Dataset.from_tensors(
        torch.randn(20, *shape), torch.randn(20, 1), torch.randn(5, *shape), torch.randn(5, 1)
    )
    likelihood = models.Regression(1, scale=noise, floor=0.0)
    model = models.BayesianNetwork(net, rows, prior=prior, likelihood=likelihood)
    return model, guides.MeanField(model, local=False, scale=0.3), rows


def test_draws_in_parallel_are_those_one_by_one():
    """Through modules that take rows alone; the noise of the targets is next to nothing."""
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.ReLU(), nn.Linear(8, 1)
    ).eval()
    model, guide, rows = bayesian(net, (1, 4, 4), priors.GroupHalfCauchy(1.0))
    model.eval()
    values = guide.draw(4)
    each, together = (
        Predictive(model, values, parallel=parallel)(rows.x_test)["y"] for parallel in (False, True)
    )
    assert each.std(0).min() > 0.01
    torch.testing.assert_close(each.reshape(together.shape), together, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_a_vectorised_bound_is_the_mean_over_its_particles():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    model, guide, rows = bayesian(net, (2,), priors.GroupNormalJeffreys(), noise=0.5)
    x, y = rows.x_train, rows.y_train
    torch.manual_seed(3)
    loss = particles(Trace_ELBO).loss(model, guide, x, y)
    torch.manual_seed(3)
    with pyro.plate("particles", 3, dim=-2):
        q = poutine.trace(guide).get_trace(x, y)
    total = -float(q.log_prob_sum())
    for k in range(3):
        values = {site: q.nodes[site]["value"][k, 0] for site in model.sites}
        p = poutine.trace(poutine.condition(model, values)).get_trace(x, y)
        total += float(p.log_prob_sum())
    assert loss == pytest.approx(-total / 3, rel=1e-4)


@pytest.mark.parametrize("prior", [priors.LogUniform(), priors.ARD(), priors.SharedNormal()])
def test_what_stands_in_is_of_the_type_of_the_weights(prior):
    model = bayesian(nn.Sequential(nn.Linear(2, 1)), (2,), prior)[0].double()
    guide = AutoNormal(model)
    guide(X.double(), torch.zeros(6, 1, dtype=torch.float64))
    assert {value.dtype for value in guide.median().values()} == {torch.float64}
    for asked in (model, poutine.block(model)):
        with pytest.raises(NotImplementedError):
            poutine.trace(asked).get_trace(X.double())


def test_a_sequential_plate_is_no_batch():
    model, guide = weights(priors.Normal())
    for _ in pyro.plate("turns", 1):
        trace = poutine.trace(poutine.condition(model, drawn(model, guide))).get_trace(X, Y)
    assert trace.nodes["y"]["fn"].batch_shape == (6,)


def test_a_network_that_is_one_layer():
    model, guide, rows = bayesian(nn.Linear(2, 1), (2,), priors.Normal())
    assert list(model.sites) == guide.sites == ["weight", "bias"]
    autoguide(model, guide)
    assert set(Predictive(model, guide=guide, num_samples=3)(rows.x_test)) == {*guide.sites, "y"}
    assert [*guide.state_dict()] == [
        f"factors./{site}.{name}" for site in guide.sites for name in ("loc", "log_scale")
    ]  # as in files of former versions


def test_what_stands_in_under_a_handler_is_no_draw():
    """``Predictive`` took networks of the means for draws."""
    model = weights(priors.Normal())[0]
    local = guides.MeanField(model)
    for count in (1, 3):
        with pytest.raises(data.PyroccamError), local.handler:
            Predictive(model, guide=local, num_samples=count)(X)
    found = Predictive(model, guide=local, num_samples=3)(X)
    assert found["0.weight"].std(0).min() > 0
