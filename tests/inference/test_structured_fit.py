"""Fits of networks of random structure: draws, annealing, resuming."""

import pytest
import torch
from alternatives import EDGES, FIRST, batch, computed, graph, pair, small
from fitting import spy
from pyroccam import guides, inference
from pyroccam.guides import StructureFamily
from pyroccam.inference.posterior import mean_network
from pyroccam.inference.posterior.draws import draw_weights
from pyroccam.models import Annealed, StructuredNetwork, priors
from random_weights import limit, table
from stepping import assert_close, step_of
from torch import nn

QUICK = {"epochs": 4, "batch_size": 18, "lr": 0.02, "progress": False, "device": "cpu"}
STEPS = 12  # of 54 training rows in batches of 18
STRUCTURES = {
    "gumbel-softmax": priors.GumbelSoftmax(0.7),
    "categorical": priors.Categorical(),
    "bernoulli": priors.Bernoulli(),
}


def build(structure, net=None, rows=None, guide=guides.MeanField, seed=0, **options):
    """A pair in single precision with data of three inputs and two classes."""
    rows = table() if rows is None else rows
    options = {"prior": priors.Normal(), **options}
    net = small(rows.outputs, seed) if net is None else net
    model = StructuredNetwork(net, rows, structure=structure, **options)
    return model, guide(model), rows


@pytest.mark.parametrize("kind", ["gumbel-softmax", "bernoulli"])
def test_the_deterministic_network(kind):
    """Has the most probable vertex, and the mean weights."""
    model, guide, rows = build(STRUCTURES[kind], graph(2))
    fit = inference.fit(model, guide, rows, **QUICK)
    with torch.no_grad():
        for site in guide.edges:
            (logits,) = [p for n, p in guide.edge(site).named_parameters() if "logits" in n]
            logits.copy_(torch.randn_like(logits))
    vertices = {e: guide.edge(f"{e}.structure").vertex() for e in EDGES}
    weights = {s: guide.posterior(s).base_dist.loc.detach().double() for s in guide.sites}
    x = rows.x_test
    with torch.no_grad():
        expected = computed(weights, vertices, x.double(), graph(2)).float()
    torch.testing.assert_close(fit.outputs(x, "deterministic"), expected[None])
    torch.testing.assert_close(mean_network(model, guide)(x), expected)


@pytest.mark.parametrize("kind", ["categorical", "bernoulli"])
def test_structures_are_drawn_with_their_probabilities(kind):
    model, guide = pair(STRUCTURES[kind])
    draws = 4000
    found = draw_weights(model, guide, draws)
    assert list(found) == [f"gamma.{edge}" for edge in EDGES]
    z = []
    for edge in EDGES:
        factor = guide.edge(f"{edge}.structure")
        p = factor.logits.softmax(-1).detach()
        hit = (found[f"gamma.{edge}"][:, None] == factor.vertices).all(-1).double()
        assert bool((hit.sum(-1) == 1).all())
        z.append((hit.mean(0) - p).abs() / (p * (1 - p) / draws).sqrt())
    z = torch.cat(z)
    assert z.max() < limit(len(z))


@pytest.mark.parametrize(("how", "over"), [("eager", 0.5), ("graph", 1.0), ("together", 0.5)])
def test_the_temperature_falls_to_its_end(how, over, monkeypatch):
    schedule = Annealed(4.0, 0.5, over)
    seen = []
    value = "model.temperature.value"
    spy(monkeypatch, "_step", after=lambda t: seen.append(t.step.state(value).tolist()))
    if how == "graph":
        monkeypatch.setattr("pyroccam.inference.training.trainer.TRACE_FROM", 1)
    made = [build(priors.GumbelSoftmax(schedule), seed=seed, prior=None) for seed in (0, 1)]
    if how == "together":
        build_one = lambda seed: made[seed]  # noqa: E731
        fits = inference.fit_repeats(build_one, [0, 1], together=True, **QUICK).fits
    else:
        fits = [inference.fit(*made[0], **QUICK)]
    assert fits[0].engine["kind"] == ("eager" if how == "eager" else "graph")
    expected = [[schedule.at(step / STEPS)] * len(fits) for step in range(STEPS)]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected))
    for fit in fits:
        assert fit.model.temperature.value == 0.5
        assert fit.guide.posterior(f"{FIRST}.structure").temperature == 0.5


@pytest.mark.parametrize("temperature", ["tied", "learnt"])
def test_a_traced_step_anneals_as_an_eager_one(temperature):
    """The temperature is an input of the graph: it is traced once."""
    structure = priors.GumbelSoftmax(Annealed(3.0, 0.3))
    family = StructureFamily(temperature=temperature)
    found = []
    for compile in (False, "graph"):
        model, guide = pair(structure, lambda m: guides.MeanField(m, structure=family), net=small())
        step = step_of((model, guide), compile=compile)
        step.prepare(*batch())
        torch.manual_seed(0)
        losses = [step(*batch(seed=k), progress=k / 3) for k in range(4)]
        assert step.fallback is None
        assert len(step._graphs) == (1 if compile else 0)
        step.release()
        found.append({"losses": torch.stack(losses), **dict(guide.named_parameters())})
        assert float(model.temperature.value) == pytest.approx(0.3)
        assert all(isinstance(p, nn.Parameter) for p in guide.parameters())
    assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)
