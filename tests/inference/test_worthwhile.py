"""Blocks that are not worth their description, in the middle of a stack."""

import copy
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from plain import network
from pyroccam import data, guides, inference, models
from pyroccam.inference.posterior import EQUAL
from pyroccam.inference.shrinking import depth, settled, worthwhile
from pyroccam.models import priors
from stacks import odd_stack
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

DIGITS = data.load("digits", test_fraction=0.5)
HOW = {"epochs": 8, "lr": 5e-3, "batch_size": 100, "progress": False, "kl_weight": 0.02}


def plain_stack(width=12, depth=3):
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Flatten(), nn.Linear(64, width))
    blocks = [
        network(lambda net, a: a + net.f(a).relu(), f=nn.Linear(width, width)) for _ in range(depth)
    ]
    return models.DepthStack(stem, blocks, nn.Linear(width, 10))


def model_of(stack=None, cost=1e6, **options):
    stack = plain_stack() if stack is None else stack
    prior, depth = priors.Normal(1.0), priors.Cost(cost)
    return models.BayesianStack(stack, DIGITS, prior=prior, depth=depth, **options)


def fit_of(model, guide=guides.MeanField, **how):
    """A fit, at the whole depth."""
    fit = inference.fit(model, guide(model), DIGITS, **{**HOW, "epochs": 1, **how})
    return replace(fit, structure=replace(fit.structure, depth_chosen=3, blocks=None))


def nothing(fit, block):
    """Weights of a block that do nothing, and that are known well."""
    with torch.no_grad():
        for site in fit.guide.sites:
            if site.startswith(f"blocks.{block}."):
                factor = fit.guide.factor_of(site)
                factor.centre.zero_()
                factor.log_scale.fill_(math.log(0.01))


def noted(fit, blocks=None):
    """With a note of which blocks are worth their description."""
    blocks = worthwhile(fit) if blocks is None else blocks
    return replace(fit, structure=replace(fit.structure, blocks=blocks))


@pytest.fixture(scope="module")
def fitted():
    fit = fit_of(model_of(cost=3.0), lambda m: guides.MeanField(m, scale=0.02), epochs=8)
    nothing(fit, 1)
    return fit


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
    assert slim.structure.blocks == slim.structure.to_json()["blocks"] == best
    assert slim.structure.blocks_left == 2
    assert "blocks 1, 3" in str(slim.structure)
    found = inference.elbo.evidence(alone.model, alone.guide, DIGITS)
    ours = found.log_likelihood / 0.02 - found.kl + float(fitted.model.log_prior[2])
    assert ours == pytest.approx(bounds[best], abs=8 * found.error / 0.02)
    # What is left is cut and trained on.
    cut = inference.Thresholds(3.0)
    assert inference.shrink(slim, cut=cut).net(DIGITS.x_test[:20]).shape == (20, 10)
    again = inference.fit(*inference.narrow(slim, cut=cut), DIGITS, **{**HOW, "epochs": 1})
    assert again.evaluate()["accuracy"] > 0.5


def test_statistics_are_those_of_what_is_left():
    """Of batch normalisation behind a block that goes."""
    model = models.BayesianStack(odd_stack(64, 10), DIGITS, prior=priors.Normal(1.0))
    fit = fit_of(model, lambda m: guides.MeanField(m, scale=0.001), epochs=8)
    with torch.no_grad():  # a large constant, which the next normalisation expects
        model.exits.blocks[1].f[2].bias.fill_(30.0)
    nothing(fit, 1)
    net = settled(noted(fit, (0, 2))).posterior.mean_network()
    seen = {}
    for part in net.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.register_forward_pre_hook(lambda one, args: seen.update({one: args[0].mean(0)}))
    with torch.no_grad():
        net(DIGITS.x_train)
    assert len(seen) == 3
    for kept, mean in seen.items():
        off = (kept.running_mean - mean).abs() / (kept.running_var + 1e-5).sqrt()
        assert off.max() < 0.2


def test_what_decides_beside_the_bound(fitted):
    """The price of numbers; and a bound that is not finite, a point, and the last random block
    remove nothing."""
    dear = model_of()
    dear.load_state_dict(fitted.model.state_dict())
    assert worthwhile(replace(fitted, model=dear)) == ()
    endless = replace(fitted, guide=copy.deepcopy(fitted.guide))
    with torch.no_grad():
        endless.guide.factor_of("head.weight").centre.fill_(1e30)
    for fit in (endless, fit_of(model_of(), guides.Delta)):
        assert worthwhile(fit) == (0, 1, 2)
    assert 0 in worthwhile(fit_of(model_of(layers=["blocks.0.f"])))
    every = [f"blocks.{k}.f" for k in range(3)]
    assert len(worthwhile(fit_of(model_of(layers=every)))) == 1
