"""Points with zeros, with switches and with shared values: their gradients and how they move."""

import copy

import pyro
import pytest
import torch
from fitting import blobs
from pyro.infer import SVI, Trace_ELBO
from pyroccam import guides, models
from pyroccam.data.errors import PyroccamError
from pyroccam.guides.points import SwitchedFactor
from pyroccam.inference.elbo.estimator import bound
from pyroccam.models import priors
from random_weights import Rows, small_net
from stepping import assert_close, batches, stacked, walk
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


def test_the_gradient_of_a_shared_value_by_differences():
    model = network().double()
    guide = guides.Points(model, by=guides.Book({"0": (BOOK, INDEX)})).double()
    b, (x, y) = bound(model, guide), batch()
    book = guide.factor_of("0.weight").book
    (gradient,) = torch.autograd.grad(b(x, y), [book])
    for k, step in enumerate(1e-5 * torch.eye(3, dtype=torch.float64)):
        with torch.no_grad():
            book.add_(step)
            above = b(x, y)
            book.sub_(2 * step)
            below = b(x, y)
            book.add_(step)
        torch.testing.assert_close(gradient[k], (above - below) / 2e-5, rtol=1e-6, atol=1e-6)


# -- switches ------------------------------------------------------------------------------------


def looped(value, kept, limit):
    """The rule by which a switch changes, weight for weight."""
    out = kept.clone()
    for i in range(len(value)):
        size = abs(float(value[i]))
        if size < 0.9 * limit:
            out[i] = False
        elif size >= 1.1 * limit:
            out[i] = True
    return out


def test_switches_have_a_hysteresis():
    generator = torch.Generator().manual_seed(2)
    value = torch.randn(400, generator=generator)
    factor = SwitchedFactor(value, c=0.3, gamma=0.0, power=1.0, stop=1000)
    size = value.abs()
    mean = sum(map(float, size)) / 400
    limit = mean + 0.3 * (sum((float(s) - mean) ** 2 for s in size) / 400) ** 0.5
    assert float(factor.limit) == pytest.approx(limit, rel=1e-5)
    kept = torch.ones(400, dtype=torch.bool)
    seen = set()
    for _ in range(6):
        factor.splice()
        before, kept = kept, looped(factor.value.detach(), kept, limit)
        assert torch.equal(factor.kept, kept)
        middle = ((factor.value.abs() > 0.9 * limit) & (factor.value.abs() < 1.1 * limit)).tolist()
        seen |= set(zip(before.tolist(), kept.tolist(), middle, strict=True))
        with torch.no_grad():  # the thresholds stay those of the start
            factor.value.mul_(1.0 + 0.3 * torch.randn(400, generator=generator))
    # Weights went, came back, and in between both stayed as they were.
    assert {(True, False, False), (False, True, False), (True, True, True)} <= seen
    assert (False, False, True) in seen


@pytest.mark.parametrize(("gamma", "power"), [(0.01, 1.0), (0.05, 0.5)])
def test_switches_are_looked_at_ever_less_often(gamma, power):
    """The number of looks in 400 steps against its mean, within 5 standard deviations."""
    factor = SwitchedFactor(torch.ones(3), c=0.0, gamma=gamma, power=power, stop=400)
    looks = 0
    for _ in range(600):
        factor.kept.fill_(False)
        factor.splice()
        looks += 0 if factor.kept.any() else 1
    # |value| = mean: between the thresholds nothing changes, so look by a larger value.
    assert looks == 600
    with torch.no_grad():
        factor.value.fill_(2.0)
    factor.step.zero_()
    seen = []
    for _ in range(600):
        factor.kept.fill_(False)
        factor.splice()
        seen.append(bool(factor.kept.any()))
    chance = (1 + gamma * torch.arange(400.0)) ** -power
    spread = float((chance * (1 - chance)).sum().sqrt())
    assert abs(sum(seen[:400]) - float(chance.sum())) < 5 * spread
    assert not any(seen[400:])  # after the last, nothing changes


def test_switches_change_in_training_only():
    model = network()
    guide = guides.Points(model, by=guides.Switch(c={"0": 1.0}, gamma=0.0))
    x, y = batch(torch.float32)
    guide.eval()
    guide(x, y)
    assert guide.nonzero == {"0": 12}
    guide.train()
    guide.posterior("0.weight")
    assert guide.nonzero == {"0": 12}
    guide(x, y)
    assert guide.nonzero["0"] < 12
    start = model.layers["0"].start["weight"].abs()
    limit = float(start.mean() + start.std(correction=0))
    assert torch.equal(weight_of(guide) != 0, start >= 0.9 * limit)
    assert torch.equal(weight_of(guide, "2"), model.layers["2"].start["weight"])


# -- training ------------------------------------------------------------------------------------

KINDS = {
    "pruned": lambda base: guides.Mask({"0": weight_of(base).abs() > 0.3}),
    "spliced": lambda base: guides.Switch(c=0.5, gamma=0.01),
    "codebook": lambda base: guides.Book({"0": (BOOK, torch.arange(16).reshape(8, 2) % 4 - 1)}),
}


def start(seed=4):
    torch.manual_seed(seed)
    rows = blobs()
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    return rows, model, guides.Delta(model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_as_a_graph_does_what_the_handlers_do(kind):
    """The switches too, whose random choice and counter are part of the step."""
    found = []
    for compile in ("graph", False):
        _, model, base = start()
        guide = guides.Points(model, by=KINDS[kind](base), begin=base).double()
        torch.manual_seed(5)
        found += walk([(model.double(), guide)], 4 * batches(), compile=compile)
    assert_close(*found)
    if kind == "spliced":
        assert int(found[0]["guide.factors.0/weight.step"]) == 20
        assert 0 < int(found[0]["guide.factors.0/weight.kept"].sum()) < 16


@pytest.mark.parametrize("kind", KINDS)
def test_replicates_step_together(kind):
    """Each as alone: switches that are always looked at need no common random numbers."""
    pairs, alone = [], []
    for seed in (0, 1):
        for found in (pairs, alone):
            _, model, base = start(seed)
            guide = guides.Points(model, by=KINDS[kind](base), begin=base).double()
            if kind == "spliced":
                guide = guides.Points(
                    model, by=guides.Switch(c=0.5, gamma=0.0), begin=base
                ).double()
            found.append((model.double(), guide))
    sequences = [batches(seed) for seed in (0, 1)]
    ours = walk(pairs, stacked(*sequences))
    for one, pair, sequence in zip(ours, alone, sequences, strict=True):
        assert_close(one, walk([pair], sequence)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_under_plain_svi(kind):
    rows, model, base = start()
    guide = guides.Points(model, by=KINDS[kind](base), begin=base)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(40):
        svi.step(*rows.split("train"))
    off = {"pruned": int((weight_of(base).abs() <= 0.3).sum()), "codebook": 4}
    zeros = int((weight_of(guide) == 0).sum())
    assert zeros == (16 - guide.nonzero["0"] if kind == "spliced" else off[kind]) > 0
    if kind == "codebook":
        assert len(weight_of(guide).unique()) == 4  # three values and zero


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


# -- errors --------------------------------------------------------------------------------------


def test_what_does_not_fit_is_said():
    model = network()
    with pytest.raises(PyroccamError):
        guides.Points(model, by=guides.Mask({"1": KEPT}))
    with pytest.raises(PyroccamError):
        guides.Points(model, by=guides.Mask({"0": KEPT.long()}))
    with pytest.raises(PyroccamError):
        guides.Points(model, by=guides.Mask({"0": KEPT.T}))
    with pytest.raises(PyroccamError):
        guides.Points(model, by=guides.Book({"2": (BOOK, INDEX)}))
    with pytest.raises(PyroccamError):
        guides.Points(model, by=guides.Book({"0": (BOOK[:2], INDEX)}))
    with pytest.raises(PyroccamError):
        guides.Points(model, by=guides.Book({"0": (BOOK[:3], INDEX - 2)}))
    with pytest.raises(PyroccamError):
        guides.Points(model, by=guides.Switch(gamma=-1))
    other = models.BayesianNetwork(small_net(width=5), Rows(3), prior=priors.Normal())
    with pytest.raises(PyroccamError):
        guides.Delta(other, begin=guides.Delta(model))
    scaled = network(priors.GroupHalfCauchy(0.1))
    with pytest.raises(PyroccamError):
        guides.Delta(scaled, begin=guides.Delta(model))


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_weights_are_looked_at_in_so_many_steps(stop):
    factor = SwitchedFactor(torch.ones(2), c=0.0, gamma=0.0, power=1.0, stop=stop)
    changed = []
    for step in range(5):
        before = factor.kept.clone()
        with torch.no_grad():  # they would go, and come back
            factor.value.fill_(9.0 * (step % 2))
        factor.splice()
        changed.append(not torch.equal(factor.kept, before))
    assert changed == [True] * stop + [False] * (5 - stop)
