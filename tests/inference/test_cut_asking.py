"""Operations that no rule names, between a convolution and a linear layer."""

import math

import pytest
import torch
import torch.nn.functional as F
from cutting import cut_exactly, made
from fitting import fit_weights, images
from plain import network
from pyroccam import inference
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.inference.posterior import mean_network
from pyroccam.inference.shrinking.decision import decide
from pyroccam.models import priors
from torch import nn


class ActAfter(nn.BatchNorm2d):
    """A normalisation with what comes next in it, as timm has it."""

    def forward(self, x):
        return F.hardswish(super().forward(x))


class Ours(nn.Linear):
    """A linear layer of another class."""

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Doubled(nn.Linear):
    """A layer that computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


class Bordered(nn.Conv2d):
    """A convolution of what it gives a border, which depends on its size."""

    def forward(self, x):
        x = F.pad(x, (x.shape[-1] % 2, 1, 0, 1))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Standardised(nn.Conv2d):
    """A convolution whose filters have no mean."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias)


class Transposed(nn.Module):
    """A linear layer as GPT-2 has it."""

    def __init__(self, before, after):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(before, after))
        self.bias = nn.Parameter(torch.randn(after))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


PASSING = {
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "last place": lambda x: x[..., -1],
    "einsum, square": lambda x: torch.einsum("bchw,bchw->bc", x, x),
    "channels flipped": lambda x: x.flip(1),
    "gate": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "stacked": lambda x: torch.stack([x, 2 * x], 2).sum(2),
    "norm of another class": ActAfter(12),
    "slopes": nn.PReLU(12),
}

MIXING = {
    "softmax": lambda x: x.softmax(1),
    "shuffled": nn.PixelShuffle(2),
    "tied to places": lambda x: x.view(-1, 12, 6, 6),
    "size of another": lambda x: x.amax((2, 3), keepdim=True).expand_as(x) - x,
    "less the other rows": lambda x: x - x.sum(0, keepdim=True),
}


def placed(operation):
    """Whether zeros are put into their places behind a convolution, for an operation that needs
    them; of its twelve channels those six are left that are not at zero."""

    def between(net, x):
        x = net.operation(torch.tanh(net.conv(x)))
        return x.flatten(2).mean(2) if x.dim() > 2 else x

    torch.manual_seed(0)
    parts = {"conv": nn.Conv2d(8, 12, 3), "operation": operation}
    wide = between(network(None, **parts), torch.zeros(2, 8, 8, 8)).shape[1]
    net = made(lambda: network(
        lambda net, x: net.head(between(net, x)), **parts, head=nn.Linear(wide, 3)
    ))  # fmt: skip
    masks = {"conv": Mask(outputs=torch.arange(12) % 5 > 1)}
    x = torch.randn(6, 8, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    small, report = cut(net, x, masks)
    for rows in (x, 100.0 * x, 0.01 * x, torch.zeros_like(x)):
        expected = masked(net, masks)(rows)
        torch.testing.assert_close(small(rows), expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(report.layers["conv"].outputs, masks["conv"].outputs.nonzero()[:, 0])
    return isinstance(small.conv, nn.Sequential)


@pytest.mark.parametrize("name", PASSING)
def test_channels_go_through_what_keeps_them_apart(name):
    assert not placed(PASSING[name])


@pytest.mark.parametrize("name", MIXING)
def test_zeros_are_put_before_what_makes_channels_of_each_other_or_is_not_followed(name):
    assert placed(MIXING[name])


def fitted(after, width, **options):
    """Of a convolution, one with an operation after it, and a linear layer."""
    return fit_weights(priors.GroupNormalJeffreys(), lambda: network(
        lambda net, x: net.head(after(net.conv(net.stem(x).tanh())).mean((2, 3))),
        stem=nn.Conv2d(1, width, 3), conv=nn.Conv2d(width, 12, 3, **options), head=nn.Linear(12, 2),
    ), images(), epochs=1)  # fmt: skip


@pytest.mark.filterwarnings("ignore:The cut by")
def test_a_pair_goes_on_with_zeros_in_their_places():
    fit = fitted(lambda x: x.softmax(1), 4)  # of all channels
    rows = fit.data
    with torch.no_grad():
        fit.guide.factors["conv/scale"].log_scale[::2] = 9.0
    at = inference.Thresholds({"stem": math.inf, "conv": 3.0, "head": math.inf})
    for _ in range(2):
        expected = decide(fit, at).net(rows.x_train)
        pair = inference.narrow(fit, cut=at)
        assert pair[0].names == {"stem": "stem", "conv": "conv.0", "head": "head"}
        assert len(pair[0].layers["conv.0"].start["weight"]) == 6
        net = mean_network(*pair)
        torch.testing.assert_close(net(rows.x_train), expected, rtol=1e-4, atol=1e-5)
        fit = inference.fit(*pair, rows, epochs=1, progress=False, device="cpu")
        at = inference.Thresholds(math.inf)


@pytest.mark.filterwarnings("ignore:The cut by")
def test_a_pair_goes_on_with_fewer_in_each_group():
    fit = fitted(torch.tanh, 8, groups=2)
    rows = fit.data
    with torch.no_grad():
        fit.guide.factors["stem/scale"].log_scale[[0, 1, 5]] = 9.0
        fit.guide.factors["conv/scale"].log_scale[[0, 1, 2, 9]] = 9.0
    at = inference.Thresholds(dict.fromkeys(("stem", "conv"), 3.0) | {"head": math.inf})
    decision, pair = decide(fit, at), inference.narrow(fit, cut=at)
    (own,) = [one for name, one in pair[0].layers.items() if name.startswith("conv")]
    assert own.start["weight"].shape == (10, 3, 3, 3)
    net = mean_network(*pair)
    torch.testing.assert_close(net(rows.x_train), decision.net(rows.x_train), rtol=1e-4, atol=1e-5)
    small = inference.shrink(fit, cut=at)
    assert small.report.rates.nonzero_percent < 75


@pytest.mark.parametrize(("kind", "left"), [(Ours, 5), (Doubled, 8)])
def test_a_subclass_is_the_layer_that_it_computes_as(kind, left):
    net = made(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), kind(8, 3)))
    masks = {"0": Mask(outputs=torch.arange(8) > 2)}
    _, report = cut_exactly(net, torch.randn(9, 4).double(), masks)
    assert len(report.layers["0"].outputs) == left
    assert ("2" in report.layers) == (kind is Ours)
    assert ("2" in report.left_whole) == (kind is Doubled)


@pytest.mark.parametrize("kind", [Bordered, Standardised, Transposed])
def test_layers_of_other_classes_are_cut_on_both_sides(kind):
    linear = kind is Transposed
    first, last = (nn.Linear,) * 2 if linear else (nn.Conv2d,) * 2
    more = () if linear else (3,)
    net = made(lambda: nn.Sequential(
        first(3, 8, *more[:1]), nn.Sigmoid(), kind(8, 6, *more), nn.ReLU(), last(6, 2, *more[:1]),
    ))  # fmt: skip
    masks = {"0": Mask(outputs=torch.arange(8) > 2), "2": Mask(outputs=torch.arange(6) > 1)}
    x = torch.randn(5, 3, *[] if linear else [9, 8]).double()
    small, report = cut_exactly(net, x, masks)
    assert len(report.layers["2"].outputs) == 4
    # Sigmoid has constants, which a border of zeros keeps in one channel.
    assert len(report.layers["2"].inputs) == 5 + (kind is Bordered)
    assert type(small[2]) is {Standardised: nn.Conv2d, Transposed: nn.Linear}.get(kind, kind)


@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": 4}, {"dilation": 2}])
def test_a_layer_that_does_not_compute_by_its_attributes_stays(options):
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 4, 1), Standardised(4, 3, 3, **options)))
    small, _ = cut_exactly(net, torch.randn(3, 2, 9, 9).double(), {})
    assert type(small[1]) is Standardised
    x = torch.randn(3, 2, 12, 12).double()
    torch.testing.assert_close(small(x), net(x))


def test_a_layer_with_a_border_of_its_own_is_random():
    rows = images()
    net = nn.Sequential(Bordered(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    net(rows.x_train[:1])
    fit = fit_weights(priors.GroupNormalJeffreys(), lambda: net, rows, epochs=1)
    assert list(fit.model.layers) == ["0", "3"]
    small = inference.shrink(fit, cut=inference.Thresholds(math.inf)).net
    assert type(small[0]) is Bordered


def test_zero_behind_a_gate_is_zero_whatever_the_gate():
    net = made(lambda: network(
        lambda net, x: net.head(net.value(x) * net.gate(x).sigmoid()),
        value=nn.Linear(3, 6), gate=nn.Linear(3, 6), head=nn.Linear(6, 2),
    ))  # fmt: skip
    masks = {"value": Mask(outputs=torch.arange(6) > 1)}
    _, report = cut_exactly(net, torch.randn(9, 3).double(), masks)
    assert [len(report.layers[name].outputs) for name in ("value", "gate")] == [4, 4]
