"""Operations that no rule names, between a convolution and a linear layer."""

import pytest
import torch
import torch.nn.functional as F
from cutting import made
from pyroccam.inference.cutting import Mask, cut, masked
from torch import nn


class Between(nn.Module):
    """A convolution of 12 channels, an operation, and a linear layer of what is left of it."""

    def __init__(self, operation, width=None):
        super().__init__()
        self.conv, self.operation = nn.Conv2d(2, 12, 3), operation
        with torch.no_grad():
            out = self.between(torch.zeros(2, 2, 8, 8))
        self.head = nn.Linear(out.shape[1], 3)

    def between(self, x):
        x = self.operation(torch.tanh(self.conv(x)))
        return x.flatten(2).mean(2) if x.dim() > 2 else x

    def forward(self, x):
        return self.head(self.between(x))


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


PASSING = {
    "amax": lambda x: x.amax((2, 3)),
    "amin": lambda x: torch.amin(x, (2, 3), keepdim=True),
    "std": lambda x: x.std((2, 3)),
    "var": lambda x: torch.var(x, (2, 3)),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=(2, 3)),
    "sum": lambda x: x.sum((2, 3)),
    "cumsum": lambda x: x.cumsum(3),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "zero pad": nn.ZeroPad2d(2),
    "cropped": lambda x: x[:, :, 1:-1, ::2],
    "last place": lambda x: x[..., -1],
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "bilinear": nn.Upsample(scale_factor=1.5, mode="bilinear"),
    "double": lambda x: x.to(x.dtype),
    "einsum": lambda x: torch.einsum("bchw->bc", x),
    "einsum, square": lambda x: torch.einsum("bchw,bchw->bc", x, x),
    "permuted": lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2),
    "moved": lambda x: x.movedim(1, -1).movedim(-1, 1),
    "flipped": lambda x: x.flip(3),
    "rolled": lambda x: x.roll(1, 2),
    "channels flipped": lambda x: x.flip(1),
    "unfold": lambda x: x.unfold(2, 2, 2).mean(-1),
    "gate": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "lerp": lambda x: torch.lerp(x, x * x, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "atan2": lambda x: torch.atan2(x, x + 2.0),
    "erf": lambda x: torch.erf(x),
    "hypot": lambda x: torch.hypot(x, x),
    "log1p": lambda x: torch.log1p(x * x),
    "round": lambda x: x.round(decimals=1) + x,
    "lp pool": nn.LPPool2d(2, 2),
    "average": lambda x: F.avg_pool2d(x, 2, stride=1),
    "threshold": nn.Threshold(0.1, 0.0),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.5),
    "rrelu": nn.RReLU(),
    "celu": lambda x: torch.celu(x),
    "stacked": lambda x: torch.stack([x, 2 * x], 2).sum(2),
    "side by side": lambda x: torch.cat([x, x], 3),
    "norm of another class": ActAfter(12),
}

MIXING = {
    "softmax": lambda x: x.softmax(1),
    "glu": lambda x: F.glu(x, 1),
    "shuffled": nn.PixelShuffle(2),
    "padded channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, 1)),
    "normalised": lambda x: F.normalize(x, dim=1),
    "cumsum of channels": lambda x: x.cumsum(1),
    "local response": nn.LocalResponseNorm(3),
    "tied to places": lambda x: x.view(-1, 12, 6, 6),
    "sorted": lambda x: x.flatten(2).sort(2).values,
    "condition": lambda x: torch.where(x > 0, x, 0.1 * x),
    "size of another": lambda x: x.amax((2, 3), keepdim=True).expand_as(x) - x,
    "sorted channels": lambda x: x.sort(1).values,
    "shares of places": lambda x: x.flatten(2).softmax(-1),
    "sum of places that is no zero": lambda x: x.logsumexp((2, 3)),
    "less the other rows": lambda x: x - x.sum(0, keepdim=True),
    "Gram": lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
}


def network(operation):
    net = made(lambda: Between(operation))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2.0)
    return net


def cut_at(net):
    """The network with five channels at zero, and what is left of it."""
    kept = torch.arange(12) % 5 > 1
    masks = {"conv": Mask(outputs=kept)}
    x = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(0)).to(net.conv.weight)
    small, report = cut(net, x, masks)
    for rows in (x, 100.0 * x, 0.01 * x, torch.zeros_like(x)):
        expected = masked(net, masks)(rows)
        torch.testing.assert_close(small(rows), expected, rtol=1e-9, atol=1e-9)
    return int(kept.sum()), len(report.layers["conv"].outputs)


@pytest.mark.parametrize("name", PASSING)
def test_channels_go_through_what_keeps_them_apart(name):
    kept, left = cut_at(network(PASSING[name]))
    assert left == kept


@pytest.mark.parametrize("name", MIXING)
def test_channels_stay_before_what_makes_them_of_each_other_or_is_not_followed(name):
    assert cut_at(network(MIXING[name]))[1] == 12


def test_a_subclass_is_the_layer_that_it_computes_as():
    for kind, left in ((Ours, 5), (Doubled, 8)):
        net = made(lambda kind=kind: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), kind(8, 3)))
        x, masks = torch.randn(9, 4).double(), {"0": Mask(outputs=torch.arange(8) > 2)}
        small, report = cut(net, x, masks)
        assert len(report.layers["0"].outputs) == left
        assert ("2" in report.layers) == (kind is Ours)
        assert ("2" in report.left_whole) == (kind is Doubled)
        torch.testing.assert_close(small(x), masked(net, masks)(x))


def test_zero_behind_a_gate_is_zero_whatever_the_gate():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.value, self.gate, self.head = nn.Linear(3, 6), nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.value(x) * self.gate(x).sigmoid())

    net, x = made(Gated), torch.randn(9, 3).double()
    masks = {"value": Mask(outputs=torch.arange(6) > 1)}
    small, report = cut(net, x, masks)
    assert [len(report.layers[name].outputs) for name in ("value", "gate")] == [4, 4]
    torch.testing.assert_close(small(x), masked(net, masks)(x))
