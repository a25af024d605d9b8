"""Bits as a random choice: the rounding, its gradients, the prior, and the script."""

import itertools
import math

import pytest
import torch
from pyroccam import data, guides, models
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO
from pyroccam.models.distributions.relaxed import ExpRelaxedCategorical
from scripts import call, read
from torch import nn
from torch.distributions import kl_divergence

from experiments.published import tables
from experiments.trials import bit_gates
from experiments.trials.bit_gates import (
    BITS,
    BitGates,
    CodeLength,
    HardChoice,
    gated,
    plain,
    residuals,
    step_of,
)


def gates(rows=2, seed=0):
    torch.manual_seed(seed)
    return BitGates(nn.Linear(6, 5), rows)


def test_residuals_add_up_to_the_direct_rounding():
    torch.manual_seed(0)
    weight, limit = 1.3 * torch.randn(40, 30, dtype=torch.double), torch.tensor(1.5).double()
    parts = residuals(weight, limit)
    for count, bits in enumerate(BITS[1:], start=1):
        step = step_of(limit, bits)
        top = (2 ** (bits - 1) - 1) * step  # levels are symmetric, zero is one of them
        direct = ((weight / step).round() * step).clamp(-top, top)
        assert torch.allclose(sum(parts[:count]), direct, atol=1e-12)
        assert len((direct / step).round().unique()) <= 2**bits - 1


def test_gradients_reach_weights_and_range():
    weight = torch.tensor([0.11, -0.4, 0.9, 3.0], dtype=torch.double, requires_grad=True)
    limit = torch.tensor(1.0, dtype=torch.double, requires_grad=True)
    for count, bits in enumerate(BITS[1:], start=1):
        out = sum(residuals(weight, limit)[:count])
        by_weight, by_limit = torch.autograd.grad(out.sum(), (weight, limit))
        assert torch.allclose(by_weight, torch.tensor([1.0, 1.0, 1.0, 0.0]).double())
        # Inside, a longer step moves a level away from its weight; what is clipped is the range.
        levels = out.detach()
        wanted = (levels[:3] - weight.detach()[:3]).sum() + levels[3]
        assert float(by_limit) == pytest.approx(float(wanted), abs=1e-5), bits


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_one_product_is_the_mixture_of_the_graph(rows):
    layer, x = gates(rows), torch.randn(7, 6)
    torch.manual_seed(1)
    for edge in layer.group_edges:
        layer.gamma.get_buffer(edge).copy_(torch.rand(len(BITS)))
    mixed = models.StructureGraph.forward(layer, x)
    # Biases are mixed too: γ need not have sum one.
    assert torch.allclose(layer(x), mixed, atol=1e-5)
    assert sum(layer.sizes.tolist()) == 5


def test_kl_is_entropy_and_expected_bits():
    numbers, names = 12, [str(b) for b in BITS]
    prior = CodeLength({"e": numbers}).for_edges({"e": names})["e"]
    q = torch.tensor([0.1, 0.2, 0.3, 0.4])
    exact = sum(2.0 ** (-numbers * b) for b in BITS)
    wanted = sum(
        float(p) * (math.log(p) + numbers * b * math.log(2.0)) for p, b in zip(q, BITS, strict=True)
    ) + math.log(exact)
    assert float(kl_divergence(HardChoice(logits=q.log()), prior())) == pytest.approx(wanted)
    many = CodeLength({"e": 235_200}).for_edges({"e": names})["e"]  # whose 2^-bits is no float
    kl = kl_divergence(HardChoice(logits=q.log()), many())
    bits = float(q @ torch.tensor(BITS).float()) * 235_200
    assert float(kl) == pytest.approx(bits * math.log(2.0), rel=1e-5)


def test_kl_of_a_relaxation_does_not_see_the_bits():
    """Why choices are drawn hard: its gradient is bounded, whatever a group costs."""
    prior = CodeLength({"e": 7840}).for_edges({"e": [str(b) for b in BITS]})["e"].logits
    slopes = []
    for law in (HardChoice, lambda logits: ExpRelaxedCategorical(1.0, logits=logits)):
        logits = torch.zeros(len(BITS), requires_grad=True)
        kl_divergence(law(logits=logits), law(logits=prior)).backward()
        slopes.append(float(logits.grad.abs().max()))
    exact, relaxed = slopes
    costs = torch.tensor(BITS) * 7840 * math.log(2.0)
    assert exact == pytest.approx(float((costs.max() - costs.mean()) / len(BITS)), rel=1e-4)
    assert relaxed <= len(BITS)


def test_bound_is_that_of_all_choices():
    """The mean of the bound over draws is its sum over all choices, with the entropy in it."""
    toy = data.load("digits")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    net, prior = gated(net, 5)
    model = models.StructuredNetwork(net, toy, structure=prior)
    guide = guides.MeanField(model)
    x, y = toy.x_train, toy.y_train
    with torch.no_grad():
        for site in guide.edges:
            guide.edge(site).logits.copy_(torch.tensor([0.0, 1.0, 0.5, 0.0]))
        q = guide.edge(guide.edges[0]).probs()
        wanted = 0.0
        layer = next(m for m in model.modules() if isinstance(m, BitGates))
        for choice in itertools.product(range(len(BITS)), repeat=2):
            gammas = dict(zip(layer.group_edges, torch.eye(len(BITS))[list(choice)], strict=True))
            with layer.gamma.given(gammas):
                fit = -nn.functional.cross_entropy(model.part("net")(x), y, reduction="sum")
            wanted = wanted + math.prod(float(q[k]) for k in choice) * float(fit)
        for site, edge in model.structure.items():
            p = edge.logits
            wanted -= float((q * (q.log() - p)).sum())
            assert guide.edge(site).entropy() == pytest.approx(-float((q * q.log()).sum()))
        bound = EnumMeanFieldELBO()
        draws = torch.tensor([-bound.loss(model, guide, x, y) for _ in range(300)])
    assert abs(float(draws.mean()) - wanted) < 4 * float(draws.std()) / len(draws) ** 0.5


def test_every_probability_has_a_gradient():
    """Also that of bits that were not drawn, and are unlikely."""
    toy = data.load("digits")
    torch.manual_seed(0)
    net, prior = gated(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), None)
    model = models.StructuredNetwork(net, toy, structure=prior)
    guide = guides.MeanField(model)
    (site,) = guide.edges
    factor = guide.edge(site)
    with torch.no_grad():
        factor.logits.copy_(torch.tensor([-6.0, -6.0, 0.0, 6.0]))
    EnumMeanFieldELBO().differentiable_loss(model, guide, toy.x_train, toy.y_train).backward()
    assert (factor.logits.grad.abs() > 0).all()
    shared = next(m for m in model.modules() if isinstance(m, BitGates)).shared
    assert shared.log_limit.grad is not None
    assert (shared.weight.grad != 0).any()


def test_plain_network_has_the_chosen_levels():
    layer = gates(2)
    for edge, bits in zip(layer.group_edges, (0, 4, 2), strict=True):
        layer.gamma.get_buffer(edge).copy_(torch.eye(len(BITS))[BITS.index(bits)])
    whole = nn.Sequential(layer)
    x = torch.randn(4, 6)
    before = whole(x)
    net, steps = plain(whole)
    assert torch.allclose(net(x), before, atol=1e-6)
    assert (net[0].weight[:2] == 0).all()
    assert (net[0].bias[:2] == 0).all()
    assert steps["0"].step == pytest.approx(float(step_of(layer.shared.limit.detach(), 4)))
    assert torch.allclose(steps["0"](net[0].weight), net[0].weight, atol=1e-6)


def test_script(tmp_path):
    arguments = ("--data", "digits", "--groups", "layer,50", "--kl-weights", "0.001", "--seeds", 1)
    call(bit_gates, *arguments, "--epochs", 3, "--out", tmp_path)
    found = read(tmp_path / "digits-lenet-300-100-gates-50-0.001.json")
    (row,) = found["runs"]
    assert 0 <= row["error"] <= 100
    assert row["file_bytes"] > 0
    assert row["entropy"] > 0
    assert {name: sum(each) for name, each in row["groups"].items()} == {"1": 6, "3": 2, "5": 1}
    text = "\n".join(tables.sections()["bits"].lines(tmp_path))
    assert "`gates`, 50 rows (1)" in text
    assert "`gates`, layer (1)" in text
