"""Points with zeros, with switches and with shared values: their gradients and how they move."""

import copy

import pytest
import torch
from fitting import blobs
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.guides.points import SwitchedFactor
from pyroccam.inference.elbo import bound
from pyroccam.models import priors
from random_weights import Rows, small_net
from stepping import assert_close, batches, walk
from torch import nn

BOOK = torch.tensor([-0.4, 0.1, 0.7])
INDEX = torch.tensor([[0, 1, -1], [2, -1, 1], [1, 1, 1], [-1, 0, 2]])
KEPT = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]]).bool()

pytestmark = pytest.mark.usefixtures("clean")


def network(prior=None):
    """Over three inputs: weights (4, 3) of layer "0" and (2, 4) of layer "2"."""
    prior = priors.Normal(0.7) if prior is None else prior
    return models.BayesianNetwork(small_net(), Rows(3, N=12, task="regression"), prior=prior)


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 3, generator=generator)
    return x.to(dtype), torch.randn(12, 2, generator=generator).to(dtype)


def gradients(model, guide):
    """Of the loss, by the names of the guide's parameters, in double precision."""
    model, guide = copy.deepcopy(model).double(), copy.deepcopy(guide).double().eval()
    named = dict(guide.named_parameters())
    loss = bound(model, guide)(*batch())
    return dict(zip(named, torch.autograd.grad(loss, named.values()), strict=True))


def at(model, **weights):
    """A delta guide with given weights."""
    guide = guides.Delta(model)
    with torch.no_grad():
        for layer, value in weights.items():
            guide.factor_of(f"{layer[1:]}.weight").value.copy_(value)
    return guide


def weight_of(guide, layer="0"):
    return guide.posterior(f"{layer}.weight").v.detach()


# -- values and gradients, against those of the plain point --------------------------------------


@pytest.mark.parametrize("kind", ["pruned", "spliced"])
def test_weights_that_are_off_are_zero_and_get_a_gradient_if_they_are_only_switched_off(kind):
    """That of the network without them, which brings them back; masked ones get none."""
    model = network()
    if kind == "pruned":
        guide = guides.Points(model, by=guides.Mask({"0": KEPT}))
        assert guide.nonzero == {"0": 8}
    else:
        guide = guides.Points(model, by=guides.Switch(c=0.0))
        guide.factor_of("0.weight").kept.copy_(KEPT)
    start = model.layers["0"].start["weight"]
    assert torch.equal(weight_of(guide), start * KEPT)
    assert not weight_of(guide).signbit()[~KEPT].any()
    ours, plain = gradients(model, guide), gradients(model, at(model, _0=start * KEPT))
    for name, gradient in plain.items():
        masked = kind == "pruned" and name == "factors.0/weight.value"
        torch.testing.assert_close(ours[name], gradient * KEPT if masked else gradient)
    assert (plain["factors.0/weight.value"][~KEPT] != 0).all()


def test_the_gradient_of_a_shared_value_is_the_sum_over_its_weights():
    model = network()
    guide = guides.Points(model, by=guides.Book({"0": (BOOK, INDEX)}))
    shared = torch.where(INDEX >= 0, BOOK[INDEX], 0.0)
    assert torch.equal(weight_of(guide), shared)
    ours = gradients(model, guide)
    plain = gradients(model, at(model, _0=shared))
    each = plain.pop("factors.0/weight.value")
    expected = torch.stack([each[k == INDEX].sum() for k in range(3)])
    torch.testing.assert_close(ours.pop("factors.0/weight.book"), expected)
    for name, gradient in plain.items():
        torch.testing.assert_close(ours[name], gradient)


# -- switches ------------------------------------------------------------------------------------


def test_switches_have_a_hysteresis():
    """Beside the rule for each weight, by the thresholds of the start."""
    generator = torch.Generator().manual_seed(2)
    value = torch.randn(400, generator=generator)
    factor = SwitchedFactor(value, c=0.3, gamma=0.0, power=1.0, stop=1000)
    limit = float(value.abs().mean() + 0.3 * value.abs().std(correction=0))
    kept, seen = [True] * 400, set()
    for _ in range(6):
        factor.splice()
        sizes = factor.value.detach().abs().tolist()
        before = kept
        kept = [s >= (0.9 if k else 1.1) * limit for s, k in zip(sizes, kept, strict=True)]
        assert factor.kept.tolist() == kept
        middle = [0.9 * limit < s < 1.1 * limit for s in sizes]
        seen |= set(zip(before, kept, middle, strict=True))
        with torch.no_grad():
            factor.value.mul_(1.0 + 0.3 * torch.randn(400, generator=generator))
    # Weights went, came back, and in between both stayed as they were.
    assert {(True, False, False), (False, True, False), (True,) * 3, (False, False, True)} <= seen


@pytest.mark.parametrize(
    ("gamma", "power", "stop"), [(0.01, 1.0, 400), (0.05, 0.5, 400), (0, 1, 3)]
)
def test_switches_are_looked_at_ever_less_often(gamma, power, stop):
    """The number of looks before the last against its mean, within 5 standard deviations."""
    factor = SwitchedFactor(torch.ones(3), c=0.0, gamma=gamma, power=power, stop=stop)
    with torch.no_grad():
        factor.value.fill_(2.0)
    seen = []
    for _ in range(stop + 100):
        factor.kept.fill_(False)
        factor.splice()
        seen.append(bool(factor.kept.any()))
    chance = (1 + gamma * torch.arange(float(stop))) ** -power
    spread = float((chance * (1 - chance)).sum().sqrt())
    assert abs(sum(seen[:stop]) - float(chance.sum())) <= 5 * spread
    assert not any(seen[stop:])


# -- training ------------------------------------------------------------------------------------


def start(by, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, blobs(), prior=priors.Normal())
    return model.double(), guides.Points(model, by=by).double()


def test_a_step_as_a_graph_does_what_the_handlers_do():
    """The switches too, whose random choice and counter are part of the step."""
    found = []
    for compile in ("graph", False):
        torch.manual_seed(5)
        switched = start(guides.Switch(c=0.5, gamma=0.01), 4)
        found += walk([switched], 4 * batches(), compile=compile)
    assert_close(*found)
    assert int(found[0]["guide.factors.0/weight.step"]) == 20
    assert 0 < int(found[0]["guide.factors.0/weight.kept"].sum()) < 16


def test_one_begins_where_another_is():
    model = network(priors.Normal(learn="layer"))
    first = guides.Points(model, by=guides.Mask({"0": KEPT}))
    with torch.no_grad():
        for p in first.parameters():
            p.add_(1.0)
    second = guides.Points(
        model, by=guides.Book({"2": (torch.ones(1), torch.zeros(2, 4).long())}), begin=first
    )
    assert torch.equal(weight_of(second), weight_of(first))
    assert torch.equal(second.posterior("2.bias").v, first.posterior("2.bias").v)
    third = guides.Points(model, by=guides.Switch(c=0.0), begin=second)
    assert torch.equal(weight_of(third, "2"), torch.ones(2, 4))
    third.factor_of("2.weight").value.data.fill_(5.0)
    assert torch.equal(weight_of(second, "2"), torch.ones(2, 4))  # nothing is shared


def test_what_does_not_fit_is_refused():
    model = network()
    for by in (
        guides.Mask({"1": KEPT}),
        guides.Mask({"0": KEPT.long()}),
        guides.Mask({"0": KEPT.T}),
        guides.Book({"2": (BOOK, INDEX)}),
        guides.Book({"0": (BOOK[:2], INDEX)}),
        guides.Book({"0": (BOOK, INDEX - 2)}),
    ):
        with pytest.raises(PyroccamError):
            guides.Points(model, by=by)
    other = models.BayesianNetwork(small_net(width=5), Rows(3), prior=priors.Normal())
    for one in (other, network(priors.GroupHalfCauchy(0.1))):
        with pytest.raises(PyroccamError):
            guides.Delta(one, begin=guides.Delta(model))
