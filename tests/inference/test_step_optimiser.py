"""Rows that an optimiser moves: as the parameters would move alone."""

import copy
import random

import pyro
import pytest
import torch
from plain import network
from pyroccam import inference
from pyroccam.data import PyroccamError
from pyroccam.inference.training import fused
from stepping import (
    assert_close,
    batches,
    build,
    linear,
    stacked,
    step_of,
    tensors,
)
from torch import nn
from torch.optim import SGD, Adam, AdamW


def ordinary(model, guide, sequence, make, clip=None, hold=0):
    """The same training with torch's own optimiser, parameter by parameter."""
    loss = inference.elbo.bound(model, guide, max_plate_nesting=1)
    groups = [
        {"params": [p for p in model.stack.parameters() if p.requires_grad]},
        {"params": list(model.likelihood.parameters()), "weight_decay": 0.0},
        {"params": [guide.logits], "lr": 0.3, "weight_decay": 0.0},
    ]
    optimizer = make([group for group in groups if group["params"]])
    for i, (x, y) in enumerate(sequence):
        optimizer.zero_grad()
        (loss(x, y) / model.size).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(list(model.parameters()), clip)
        if i < hold:
            guide.logits.grad = None
        optimizer.step()
    return tensors(model, guide)


OPTIMISERS = {
    "sgd": lambda groups: SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adam": lambda groups: Adam(groups, lr=0.05, weight_decay=0.1),
    "adamw": lambda groups: AdamW(groups, lr=0.05, weight_decay=0.1),
}


def spare():
    """A block that has a parameter which nothing uses."""
    spare = nn.Parameter(torch.ones(3))
    return [network(lambda net, a: a + net.f(a).tanh(), f=linear(), spare=spare)]


@pytest.mark.parametrize("hold", [0, 2])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_rows_move_as_parameters_do_under_an_ordinary_optimiser(name, hold):
    more = {"optimizer": name, "weight_decay": 0.1, "guide_lr": 0.3, "clip_norm": 0.5}
    model, guide = build(spare)
    sequence = batches(count=6)
    step = step_of((model, guide), **more)
    for i, (x, y) in enumerate(sequence):
        step(x, y, progress=i / 6, hold=hold / 6)
    step.release()
    theirs = build(spare)
    expected = ordinary(*theirs, sequence, OPTIMISERS[name], clip=0.5, hold=hold)
    assert_close(tensors(model, guide), expected)
    start = build(spare)[0]
    assert torch.equal(model.stack.blocks[0].spare, start.stack.blocks[0].spare)


def test_plain_gradients_have_no_mean_of_squares():
    with pytest.raises(PyroccamError):
        inference.Settings(optimizer="sgd", beta2=0.9)


def test_each_replicate_is_clipped_by_its_own_norm():
    pairs = [build(seed=0), build(seed=1), build(seed=2)]
    with torch.no_grad():  # a huge gradient, a tiny one, and one that is not finite
        pairs[0][0].stack.head.weight.mul_(50)
        for p in pairs[1][0].stack.parameters():
            p.mul_(1e-2)
        pairs[2][0].stack.head.bias[0] = float("nan")
    sequence = batches(count=1)
    expected = []
    for model, guide in copy.deepcopy(pairs):
        with pyro.validation_enabled(False):
            (inference.elbo.bound(model, guide)(*sequence[0]) / 54).backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.2))
        expected.append((norm, [p.grad for p in model.parameters()], guide.logits.grad))
    assert expected[0][0] > 0.2 > expected[1][0]
    step = step_of(*pairs, clip_norm=0.2)
    step.fallback = "this test is about what follows"
    x, y = stacked(*[sequence] * 3)[0]
    step.prepare(*sequence[0])
    with pyro.validation_enabled(False):
        step.evaluate(x, y)
    step._update._clip(0.2)
    for (model, guide), (_, grads, logits) in zip(pairs, expected, strict=True):
        for p, g in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-6, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(guide.logits.grad, logits, equal_nan=True)  # not clipped


def skips():
    """A block with a layer that is left out now and then, as Python's random numbers have it."""

    def forward(net, a):
        a = a + net.f(a).tanh()
        return a + net.g(a) if random.random() < 0.5 else a

    return [network(forward, f=linear(), g=linear())]


def test_parameters_that_the_first_batch_does_not_need_are_trained_too():
    """Without weight decay, and by their momentum where a batch leaves them out."""
    sequence = batches(count=8)
    model, guide = build(skips)
    step = step_of((model, guide), weight_decay=0.1, guide_lr=0.3, clip_norm=0.2)
    random.seed(5)  # 0.62, 0.74, 0.80, 0.94 ...: the layer is skipped in preparation
    step.prepare(*sequence[0])
    random.seed(0)
    for x, y in sequence:
        step(x, y)
    step.release()
    start = build(skips)[0]
    assert not torch.equal(model.stack.blocks[0].g.weight, start.stack.blocks[0].g.weight)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("make", [Adam, AdamW, SGD])
def test_a_fused_step_is_torchs_to_the_last_bit(make):
    """With a parameter that has its first gradient late, one without, and a state taken up."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(n, dtype=d)) for n, d in ((7, None), (3, torch.float64))]
    ours += [nn.Parameter(torch.randn(2)) for _ in range(2)]
    theirs = copy.deepcopy(ours)
    one, other = (
        make([{"params": [p], "lr": 0.1 * (i + 1), "weight_decay": 0.1 * i}
              for i, p in enumerate(ps)], fused=True)
        for ps in (ours, theirs)
    )  # fmt: skip
    for t in range(6):
        for p, q in zip(ours[:3], theirs[:3], strict=True):
            p.grad = torch.randn_like(p) if p is not ours[2] or t % 4 == 2 else None
            q.grad = None if p.grad is None else p.grad.clone()
        if t == 3:
            one.load_state_dict(copy.deepcopy(one.state_dict()))
        fused.step(one)
        other.step()
        assert all(map(torch.equal, ours, theirs))
    ours, theirs = one.state_dict()["state"], other.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[i][k], theirs[i][k]) for i in ours for k in ours[i])
