"""Batch normalisation in the weights of the layer before it."""

import copy

import pytest
import torch
from pyroccam.inference.files import fused
from torch import nn
from torchvision.models.resnet import BasicBlock


def with_statistics(net):
    """Numbers of a normalisation that are none of those with which it begins."""
    torch.manual_seed(0)
    for part in net.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            for name in ("weight", "bias", "running_mean", "running_var"):
                if getattr(part, name) is not None:
                    getattr(part, name).data.uniform_(0.3, 1.7)
    return net.eval()


def normalisations(net):
    return sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())


class Twice(nn.Module):
    """Uses what one layer gives in two places, and calls another twice."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.second, self.own = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.third, self.last = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        a = self.first(x)
        a = a + self.norm(a)
        a = self.own(self.second(self.second(a)))
        return self.last(self.third(a)) * self.third.weight.sum()


class Own(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).relu()


def conv(*more, **options):
    return nn.Sequential(nn.Conv2d(3, 6, 3, **options), nn.BatchNorm2d(6), *more)


class Between(nn.Module):
    """What stands between a convolution and its normalisation, or reads the latter."""

    def __init__(self, how):
        super().__init__()
        (self.conv, self.bn), self.how = conv(), how

    def forward(self, x):
        if self.how == "values" and x.sum() > 1e9:
            x = -x
        x = self.conv(x)
        if self.how == "in place":
            x[..., :2] = 0.0
        return self.bn(x) * (self.bn.eps > 0 if self.how == "read" else 1)


def hooked():
    net = nn.Sequential(*conv(), nn.Conv2d(6, 2, 1), nn.BatchNorm2d(2))
    net[0].register_forward_hook(lambda module, args, out: 2 * out)
    return net


IMAGES, ROWS = (4, 3, 8, 8), (4, 5)
KINDS = {  # how many normalisations of how many are left
    "convolution": (conv(nn.ReLU()), IMAGES, 0),
    "strides and groups": (conv(stride=2, padding=1, groups=3, bias=False), IMAGES, 0),
    "linear": (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU()), ROWS, 0),
    "linear over places": (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)), (4, 7, 5), 1),
    "no scale": (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7, affine=False)), ROWS, 1),
    "residual": (nn.Sequential(BasicBlock(3, 3), nn.Flatten()), IMAGES, 0),
    "after a step": (nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.BatchNorm1d(7)), ROWS, 1),
    "no statistics": (
        nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7, track_running_stats=False)), ROWS, 1,
    ),
    "used elsewhere": (Twice(), IMAGES, 3),
    "written to": (Between("in place"), IMAGES, 1),
    "read": (Between("read"), IMAGES, 1),
    "behind a hook": (hooked(), IMAGES, 1),
    "a path that values decide": (Between("values"), IMAGES, 1),
    "of one's own": (nn.Sequential(Own(3, 4, 1), nn.BatchNorm2d(4)), IMAGES, 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_is_computed(kind):
    net, shape, left = KINDS[kind]
    net = with_statistics(net)
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    small = fused(net, x)
    assert normalisations(small) == left
    other = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(small(other), net(other), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], t) for name, t in net.state_dict().items())


def test_what_single_precision_cannot_hold_stays():
    """Large means over small deviations: what is exported is then the network as it is."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        net[0].bias.fill_(5e4)
        net[1].running_mean.fill_(5e4)
        net[1].running_var.fill_(1e-8)
    assert normalisations(fused(net.eval(), torch.randn(6, 3))) == 1
