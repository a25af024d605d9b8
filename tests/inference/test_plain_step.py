"""The step of numbers beside the same training written out in torch."""

import copy

import pytest
import torch
from pyroccam.inference.fits.retraining import _losses
from pyroccam.inference.training.plain_step import PlainStep
from pyroccam.models.likelihoods import Classification, Regression
from torch import nn

ROWS, INPUTS, OUTPUTS = 24, 5, 3


def network(extra=nn.Identity):
    torch.manual_seed(0)
    first, last = nn.Linear(INPUTS, 8, bias=False), nn.Linear(8, OUTPUTS)
    net = nn.Sequential(first, nn.BatchNorm1d(8), extra(), nn.Tanh(), last).double()
    with torch.no_grad():
        net[0].weight[:2] = 0.0
        net[4].weight[:, 3] = 0.0
        net[4].bias[0] = 0.0
    return net


def batches(classes, count=50):
    """Of two sizes, with weights, and for some of them what a teacher says."""
    made = torch.Generator().manual_seed(1)
    for k in range(count):
        n = ROWS - 3 * (k % 2)
        x = torch.randn(n, INPUTS, generator=made).double()
        said = torch.randn(n, OUTPUTS, generator=made).double()
        y = said.argmax(-1) if classes else x[:, :OUTPUTS] ** 2
        yield x, y, torch.rand(n, generator=made).double(), said.softmax(-1) if classes else said


def written_out(net, like, batches, taught):
    """Losses by the formulas of densities, clipping by torch, zeros by hand."""
    free = [*net.parameters()]
    zeros = [(p, p == 0) for p in free if p.dim() > 1]
    groups = [{"params": free, "weight_decay": 0.01}]
    if noise := [*like.parameters()]:
        groups.append({"params": noise, "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups)
    for k, (x, y, w, says) in enumerate(batches):
        optimizer.zero_grad()
        out = net(x)
        if y.dim() == 1:
            labels = nn.functional.cross_entropy(out, y, reduction="none")
            theirs = -(says * out.log_softmax(-1)).sum(-1)
        else:
            sd = like.scale
            labels, theirs = (
                (0.5 * ((out - t) / sd).square() + sd.log() + 0.9189385332046727).sum(-1)
                for t in (y, says)
            )
        losses = (labels + theirs) / 2 if taught else labels
        ((w * losses).mean() if taught else losses.mean()).backward()
        nn.utils.clip_grad_norm_(free, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + k)
        optimizer.step()
        for p, zero in zeros:
            p.data.masked_fill_(zero, 0.0)


def stepped(step, batches, taught):
    for k, (x, y, w, says) in enumerate(batches):
        step(x, y, *((w, says) if taught else (None, None)), 0.01 / (1 + k))


class ByValue(nn.Module):
    """A choice that no graph can hold, between the two sizes of batches: rows are normalised, and 6
    of 8 units are not zero."""

    def forward(self, x):
        return x if float(x.detach().square().sum()) > 135 else 2 * x


@pytest.mark.parametrize("extra", [nn.Identity, ByValue])
@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("classes", [True, False])
def test_a_step_is_that_of_an_ordinary_training(classes, taught, extra):
    """Graphs of both sizes of batches, and steps as they are before them, without them, or for a
    network that cannot be a graph."""
    like = (Classification(OUTPUTS) if classes else Regression(OUTPUTS)).double()
    net, own, expected = network(extra), network(extra), copy.deepcopy(like)
    step = PlainStep(net, like, _losses)
    torch.manual_seed(2)
    stepped(step, batches(classes), taught)
    torch.manual_seed(2)
    written_out(own, expected, batches(classes), taught)
    assert (step.untraceable is not None) == (extra is ByValue)
    for (name, ours), theirs in zip(
        net.state_dict().items(), own.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=name)
    assert not net[0].weight[:2].any()
    assert net[4].bias[0]
    if not classes:
        assert float((like.log_scale - expected.log_scale).abs().max().detach()) < 1e-9
        assert float(like.log_scale.detach()[0]) != pytest.approx(
            float(Regression(1).log_scale.detach())
        )


def test_a_restart_is_a_new_training():
    net, like = network(), Regression(OUTPUTS).double()
    before = copy.deepcopy(net.state_dict())
    step = PlainStep(net, like, _losses)
    ends = []
    for _ in range(2):
        step.restart()
        for name, t in net.state_dict().items():
            assert torch.equal(t, before[name]), name
        stepped(step, batches(False), False)
        ends.append(copy.deepcopy(net.state_dict()))
    for name, t in ends[0].items():
        torch.testing.assert_close(t, ends[1][name], rtol=1e-9, atol=1e-11, msg=name)
        assert not name.endswith("weight") or not torch.equal(t, before[name])


def test_units_are_dropped_anew_in_a_graph():
    """Of a network of one linear layer, whose gradient is zero where an input was dropped."""
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(400, 1)).double()
    step = PlainStep(net, Regression(1).double(), _losses)
    x, y = torch.ones(1, 400).double(), torch.ones(1, 1).double()
    seen = []
    for _ in range(30):
        step(x, y, None, None, 0.0)
        seen.append(step._flats[0].grad[0, :400] == 0)
    assert step._graphs
    assert not torch.equal(seen[-1], seen[-2])
    share = torch.stack(seen[21:]).double().mean()  # of 9 graphs, with 400 inputs each
    assert float(share) == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 3600) ** 0.5)


class Counts(nn.Module):
    """Adds the number of its passes in training, in a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()).double(), persistent=False)

    def forward(self, x):
        if self.training:
            self.passes += 1
        return x + 0.01 * self.passes


def test_a_restart_puts_back_what_is_not_saved():
    net = nn.Sequential(Counts(), nn.Linear(INPUTS, OUTPUTS)).double()
    step = PlainStep(net, Regression(OUTPUTS).double(), _losses)
    stepped(step, batches(False, count=3), False)
    assert net[0].passes == 3
    step.restart()
    assert net[0].passes == 0


@pytest.mark.parametrize("likelihood", [Classification(OUTPUTS), Regression(OUTPUTS)])
def test_of_a_frozen_network_only_the_noise_is_learnt(likelihood):
    net, like = network().requires_grad_(False), likelihood.double()
    before = copy.deepcopy((net.state_dict(), like.state_dict()))
    step = PlainStep(net, like, _losses)
    stepped(step, batches(isinstance(like, Classification), count=30), False)
    for name, p in net.named_parameters():
        assert torch.equal(p, before[0][name]), name
    for name, p in like.named_parameters():
        assert not torch.equal(p, before[1][name]), name
