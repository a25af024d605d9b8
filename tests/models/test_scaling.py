"""Weights of a primitive that shrink with what the primitive counts."""

import copy

import pytest
import torch
from alternatives import (
    FIRST,
    GAMMAS,
    SECOND,
    batch,
    computed,
    drawn_weights,
    known,
    larger,
    make,
    means,
    pair,
    share,
)
from plain import network
from pyro import poutine
from pyroccam import guides
from pyroccam.inference.elbo import bound
from pyroccam.inference.posterior import DrawnNetwork, mean_network
from pyroccam.inference.posterior.draws import draw_outputs
from pyroccam.models import Floored, NonCentred, StructureGraph, local_reparameterisation, priors
from pyroccam.models.layers import BayesianLayer
from pyroccam.models.networks import discretised
from torch import nn

SIGMA = 0.8

pytestmark = pytest.mark.usefixtures("clean")


def relaxed(**options):
    return make(priors.GumbelSoftmax(), **{"prior": priors.Normal(SIGMA), **options})


# -- non-centred ------------------------------------------------------------------------------


@pytest.mark.parametrize("random_biases", [True, False])
def test_weights_and_biases_are_multiplied(random_biases):
    """By γ, in every layer of a primitive; the prior stays."""
    model = relaxed(scaling=NonCentred(), random_biases=random_biases)
    x = batch(4)[0]
    trace = poutine.trace(poutine.condition(model, data=known())).get_trace(x)
    drawn = {site: trace.nodes[site]["value"] for site in model.sites}
    if not random_biases:
        drawn |= {n: p for n, p in model.part("net").named_parameters() if n.endswith("bias")}
    assert len(drawn) == 12
    scaled = {site: share(GAMMAS, site) * value for site, value in drawn.items()}
    torch.testing.assert_close(trace.nodes["y"]["fn"].base_dist.loc, computed(scaled, GAMMAS, x))
    for site in model.sites:
        assert (trace.nodes[site]["fn"].base_dist.scale - SIGMA).abs().max() < 1e-6


def test_outputs_that_are_drawn_are_multiplied(monkeypatch):
    """Of local reparameterisation: γ multiplies their mean and their noise."""
    layer = "edges.h-y.straight"
    model, guide = pair(
        priors.GumbelSoftmax(), prior=priors.Normal(SIGMA), scaling=NonCentred(), layers=[layer]
    )
    x = batch(4)[0]
    monkeypatch.setattr(local_reparameterisation, "_standard_normal", torch.ones_like)
    with guide.handler:
        trace = poutine.trace(guide).get_trace(x)
        found = means(poutine.condition(poutine.replay(model, trace=trace), data=known()), x)
    net = model.plain({layer: (torch.zeros(1, 2), torch.zeros(1))})
    h = sum(g * f(x) for g, f in zip(GAMMAS[FIRST], net.edges[FIRST].values(), strict=True))
    q = {n: guide.posterior(f"{layer}.{n}").base_dist for n in ("weight", "bias")}
    mean = h @ q["weight"].loc.T + q["bias"].loc
    std = (h**2 @ q["weight"].scale.T ** 2 + q["bias"].scale ** 2).sqrt()
    one, other = GAMMAS[SECOND]
    torch.testing.assert_close(found, one**2 * (mean + std) + other * net.edges[SECOND]["bent"](h))


def test_cells_with_one_structure_scale_alike():
    """Both have their weights multiplied by the one γ; what is in no graph stays."""
    model = make(priors.GumbelSoftmax(), larger(True), prior=priors.Normal(), scaling=NonCentred())
    x, values = batch(4)[0], drawn_weights(model)
    weights = {
        site: value if site[0] in "04" else share(GAMMAS, site[2:]) * value
        for site, value in values.items()
    }
    found = means(poutine.condition(model, data={**known("1."), **values}), x)
    given = {f"1.{edge}": gamma for edge, gamma in GAMMAS.items()}
    torch.testing.assert_close(found, computed(weights, given, x, larger(True)))


def nested():
    """A primitive that is a graph itself."""
    cell = StructureGraph({("a", "b"): {"one": nn.Linear(3, 1), "two": nn.Linear(3, 1)}})
    return network(lambda net, x: net.cell(x), cell=cell)


def test_a_graph_within_a_primitive():
    """Its weights count with the product of both γ; one structure is chosen of each."""
    torch.manual_seed(1)
    net = StructureGraph({("x", "y"): {"cell": nested(), "line": nn.Linear(3, 1)}})
    model, guide = pair(
        priors.GumbelSoftmax(),
        lambda model: guides.Delta(model, structure=guides.StructureFamily("point")),
        net=net,
        prior=priors.Normal(),
        scaling=NonCentred(),
    )
    assert list(model.structure) == ["x-y.structure", "edges.x-y.cell.cell.a-b.structure"]
    outer, inner = (guide.edge(site).probs() for site in model.structure)
    at = {site: guide.posterior(site).v for site in model.sites}
    x = batch(5)[0]
    parts = []
    for name in ("cell.cell.edges.a-b.one", "cell.cell.edges.a-b.two", "line"):
        path = f"edges.x-y.{name}"
        parts.append(x @ at[f"{path}.weight"].T + at[f"{path}.bias"])
    inside = sum(g**2 * p for g, p in zip(inner, parts[:2], strict=True))
    expected = outer[1] ** 2 * parts[2] + outer[0] ** 2 * inside
    torch.testing.assert_close(DrawnNetwork(model, guide)(x), expected)
    torch.testing.assert_close(draw_outputs(model, guide, x, 1)[0], expected)
    choice = {"x-y": "cell", "edges.x-y.cell.cell.a-b": "two"}
    small = discretised(mean_network(model, guide), choice)
    torch.testing.assert_close(small(x), parts[1])
    assert not any(isinstance(module, StructureGraph) for module in small.modules())


# -- floored ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_floored_priors(mean):
    """``max(γ σ, floor)`` for each weight and bias, of each layer of a primitive; means γ times."""
    floor = 0.15
    model = relaxed(scaling=Floored(floor), prior=priors.Normal(SIGMA, loc=mean))
    x = batch(4)[0]
    trace = poutine.trace(poutine.condition(model, data=known())).get_trace(x)
    for site in model.sites:
        gamma, fn = share(GAMMAS, site), trace.nodes[site]["fn"].base_dist
        expected = (gamma * SIGMA).clamp(min=floor).expand_as(fn.scale)
        torch.testing.assert_close(fn.scale, expected, rtol=1e-6, atol=0)
        loc = gamma * mean * site.endswith("weight")
        torch.testing.assert_close(fn.loc, loc.expand_as(fn.loc), rtol=1e-6, atol=0)
    values = {site: trace.nodes[site]["value"] for site in model.sites}
    expected = computed(values, GAMMAS, x)  # and the weights are as they are drawn
    torch.testing.assert_close(trace.nodes["y"]["fn"].base_dist.loc, expected)


# -- for one pass -----------------------------------------------------------------------------


def assert_clear(model):
    """Nothing of a pass is left."""
    for module in model.modules():
        if isinstance(module, BayesianLayer):
            assert module.share is None
        if isinstance(module, StructureGraph):
            assert module.gamma._given is None


def fails(net, x):
    if x.isnan().any():
        raise ArithmeticError("no")
    return x


@pytest.mark.parametrize(
    ("structure", "scaling"),
    [(priors.GumbelSoftmax(), NonCentred()), (priors.Categorical(), Floored())],
)
def test_a_pass_leaves_nothing(structure, scaling):
    """Nor does one that fails."""
    bad = nn.Sequential(*larger(True), network(fails))
    model = make(structure, bad, prior=priors.Normal(), scaling=scaling)
    guide = guides.MeanField(model).double()
    x, y = batch(4)
    bound(model, guide, max_plate_nesting=1)(x, y)
    assert_clear(model)
    copy.deepcopy((model, guide))
    with pytest.raises(ArithmeticError):
        bound(model, guide, max_plate_nesting=1)(x / 0 * 0, y)
    assert_clear(model)
