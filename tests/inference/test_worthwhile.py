"""Blocks that are not worth their description, in the middle of a stack."""

import copy
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior.depth import EQUAL
from pyroccam.inference.shrinking import depth
from pyroccam.inference.shrinking.depth import settled, worthwhile
from pyroccam.models import priors
from stacks import Residual, odd_stack
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

DIGITS = data.load("digits", test_fraction=0.5)
HOW = {"epochs": 8, "lr": 5e-3, "batch_size": 100, "progress": False, "kl_weight": 0.02}


class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.f = nn.Linear(width, width)

    def forward(self, a):
        return a + self.f(a).relu()


def plain_stack(width=12, depth=3):
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Flatten(), nn.Linear(64, width))
    return models.DepthStack(stem, [Plain(width) for _ in range(depth)], nn.Linear(width, 10))


def nothing(fit, block):
    """Weights of a block that do nothing, and that are known well."""
    with torch.no_grad():
        for site in fit.guide.sites:
            if site.startswith(f"blocks.{block}."):
                factor = fit.guide.factor_of(site)
                factor.centre.zero_()
                factor.log_scale.fill_(math.log(0.01))


def at_depth(fit, depth):
    structure = replace(fit.structure, depth_chosen=depth, blocks=None)
    return replace(fit, structure=structure)


def noted(fit):
    """With a note of which blocks are worth their description."""
    return replace(fit, structure=replace(fit.structure, blocks=worthwhile(fit)))


@pytest.fixture(scope="module")
def fitted():
    model = models.BayesianStack(
        plain_stack(), DIGITS, prior=priors.Normal(1.0), depth=priors.Cost(3.0)
    )
    fit = inference.fit(model, guides.MeanField(model, scale=0.02), DIGITS, **HOW)
    nothing(fit, 1)
    return at_depth(fit, 3)


@pytest.mark.parametrize(("share", "left"), [(0.9, (0, 2)), (1.1, (0, 1, 2))])
def test_a_block_goes_for_less_than_is_nothing_in_the_objective(fitted, share, left, monkeypatch):
    """Some nats of the rows, over the weight of the KL, and the three that a block costs."""
    nats = share * EQUAL * DIGITS.N / HOW["kl_weight"] + 3.0
    kls = iter([0.0, 1e6, nats, 1e6, 1e6, 1e6])
    monkeypatch.setattr(
        depth, "evidence", lambda *_, **__: SimpleNamespace(log_likelihood=0.0, kl=next(kls))
    )
    assert worthwhile(fitted) == left


def bound_by_hand(fit, blocks, draws=60):
    """Of some blocks, by draws of all weights, in words of torch alone."""
    own = fit.posterior.mean_network()
    net = nn.Sequential(own.stem, *(own.blocks[i] for i in blocks), own.head)
    parts = ["stem", *(f"blocks.{i}" for i in blocks), "head"]
    kl, drawn = 0.0, {}
    for site in fit.guide.sites:
        part = next((p for p in parts if site.startswith(f"{p}.")), None)
        if part is None:
            continue
        q = fit.guide.factor_of(site)()
        q = Normal(q.mean.detach(), q.stddev.detach())
        kl += float(kl_divergence(q, Normal(0.0, 1.0)).sum())
        drawn[f"{parts.index(part)}.{site.removeprefix(part + '.')}"] = q
    total = 0.0
    for _ in range(draws):
        weights = {name: q.sample() for name, q in drawn.items()}
        with torch.no_grad():
            out = functional_call(net, weights, (DIGITS.x_train,)).log_softmax(-1)
        total += float(out.gather(-1, DIGITS.y_train[:, None]).sum()) / draws
    # A block costs 3 nats beside its weights; the constant is that of every depth.
    cost = torch.arange(4) * -3.0
    return total / 0.02 - kl + float(cost.log_softmax(0)[len(blocks)])


def test_it_ends_where_all_subsets_say(fitted):
    torch.manual_seed(0)
    subsets = [s for n in range(4) for s in itertools.combinations(range(3), n)]
    bounds = {blocks: bound_by_hand(fitted, blocks) for blocks in subsets}
    best = max(bounds, key=bounds.__getitem__)
    assert best == (0, 2)
    assert bounds[0, 2] > bounds[0, 1, 2] + 100
    assert settled(fitted).model.start_network()[3].f is not None  # without a note all stay
    slim = noted(fitted)
    alone = settled(slim)
    assert slim.structure.blocks == best
    assert slim.structure.blocks_left == 2
    assert "blocks 1, 3" in str(slim.structure)
    found = inference.elbo.evidence(alone.model, alone.guide, DIGITS)
    prior = float(fitted.model.log_prior[2])
    ours = found.log_likelihood / 0.02 - found.kl + prior
    assert ours == pytest.approx(bounds[best], abs=8 * found.error / 0.02)
    assert slim.structure.to_json()["blocks"] == best


def test_the_price_of_numbers_decides(fitted):
    """A block that gains less than the prior says goes as well."""
    dear = models.BayesianStack(
        plain_stack(), DIGITS, prior=priors.Normal(1.0), depth=priors.Cost(1e6)
    )
    dear.load_state_dict(fitted.model.state_dict())
    assert worthwhile(replace(fitted, model=dear)) == ()


def test_what_is_left_is_cut_and_trained_on(fitted):
    x = DIGITS.x_test[:20]
    fitted = noted(fitted)
    small = inference.shrink(fitted, cut=inference.Thresholds(3.0))
    assert not any(
        name.startswith("3") for name in small.report.bits if name != "3"
    )  # stem, two, head
    again = inference.fit(
        *inference.narrow(fitted, cut=inference.Thresholds(3.0)), DIGITS, **{**HOW, "epochs": 1}
    )
    assert again.evaluate()["accuracy"] > 0.5
    assert small.net(x).shape == (20, 10)


def test_statistics_are_those_of_what_is_left():
    """Of batch normalisation behind a block that goes."""
    model = models.BayesianStack(odd_stack(64, 10), DIGITS, prior=priors.Normal(1.0))
    fit = inference.fit(model, guides.MeanField(model, scale=0.001), DIGITS, **HOW)
    with torch.no_grad():  # a large constant, which the next normalisation expects
        model.exits.blocks[1].f[2].bias.fill_(30.0)
    nothing(fit, 1)
    fit = at_depth(fit, 3)
    fit.structure = replace(fit.structure, blocks=(0, 2))
    alone = settled(fit)
    net = alone.posterior.mean_network()
    seen = {}
    for name, part in net.named_modules():
        if isinstance(part, nn.BatchNorm1d):
            part.register_forward_pre_hook(
                lambda module, args, name=name: seen.__setitem__(name, args[0].mean(0))
            )
    with torch.no_grad():
        net(DIGITS.x_train)
    assert len(seen) == 3
    for name, mean in seen.items():
        kept = net.get_submodule(name)
        off = (kept.running_mean - mean).abs() / (kept.running_var + 1e-5).sqrt()
        assert off.max() < 0.2, name


class Wider(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(12, 16)

    def forward(self, a):
        return self.f(a).relu()


def test_blocks_that_change_the_shape_stay():
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    blocks = [Plain(12), Wider(), Plain(16)]
    adapters = [nn.Linear(12, 16), nn.Linear(12, 16), None, None]
    stack = models.DepthStack(stem, blocks, nn.Linear(16, 10), adapters)
    assert stack.skippable(DIGITS.x_test[:2]) == (0, 2)
    model = models.BayesianStack(stack, DIGITS, prior=priors.Normal(1.0), depth=priors.Cost(1e6))
    fit = inference.fit(model, guides.MeanField(model), DIGITS, **{**HOW, "epochs": 1})
    fit = noted(at_depth(fit, 3))
    assert settled(fit).model.start_network()(DIGITS.x_test[:2]).shape == (2, 10)
    assert fit.structure.blocks == (1,)


def test_a_bound_that_is_not_finite_removes_nothing(fitted):
    fit = replace(fitted, guide=copy.deepcopy(fitted.guide))
    with torch.no_grad():
        fit.guide.factor_of("head.weight").centre.fill_(1e30)
    assert worthwhile(fit) == (0, 1, 2)


def test_where_the_last_random_block_is(fitted):
    """Another that is left has none."""
    model = models.BayesianStack(
        plain_stack(), DIGITS, prior=priors.Normal(1.0), depth=priors.Cost(1e6),
        layers=["blocks.0.f"],
    )  # fmt: skip
    fit = inference.fit(model, guides.MeanField(model), DIGITS, **{**HOW, "epochs": 1})
    assert 0 in worthwhile(at_depth(fit, 3))


def test_of_a_point_all_stay():
    model = models.BayesianStack(
        plain_stack(), DIGITS, prior=priors.Normal(1.0), depth=priors.Cost(1e6)
    )
    fit = inference.fit(model, guides.Delta(model), DIGITS, **{**HOW, "epochs": 1})
    assert worthwhile(at_depth(fit, 3)) == (0, 1, 2)


def test_where_only_blocks_are_random_one_stays():
    model = models.BayesianStack(
        plain_stack(), DIGITS, prior=priors.Normal(1.0), depth=priors.Cost(1e6),
        layers=lambda name, layer: name.startswith("blocks.") and isinstance(layer, nn.Linear),
    )  # fmt: skip
    fit = inference.fit(model, guides.MeanField(model), DIGITS, **{**HOW, "epochs": 1})
    assert len(worthwhile(at_depth(fit, 3))) == 1


@pytest.mark.parametrize("blocks", [(0, 3), (1, 0), (1, 1)])
def test_blocks_that_there_are_not(blocks):
    with pytest.raises(PyroccamError):
        plain_stack().at(3, blocks)


def test_a_stack_computes_without_a_block():
    stack = odd_stack(64, 10).eval()
    x = DIGITS.x_test[:6]
    whole = stack.at(3)
    with torch.no_grad():
        expected = whole[4](whole[3](whole[1](whole[0](x))))
        torch.testing.assert_close(stack.at(3, [0, 2])(x), expected)
    assert isinstance(stack.at(3, [0, 2])[1], Residual)
