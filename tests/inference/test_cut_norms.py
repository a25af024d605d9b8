"""Units of a residual stream, which normalisations over all of them read."""

import pytest
import torch
from cutting import cut_exactly
from plain import network
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.models.plain import PaddedLayerNorm, describe, fill, rebuild, state, torch_only
from torch import nn

KEPT = torch.arange(16) % 3 > 0


class Written(nn.Module):
    """A normalisation by its mean square, as Hugging Face has it."""

    def __init__(self, size, **options):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), 0.1

    def forward(self, x):
        x = x.double()
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1)


class Derived(nn.LayerNorm):
    """Torch's, by another name."""

    def forward(self, x):
        return super().forward(x)


def stream(norm, **options):
    """A residual block whose stream is read through normalisations alone."""

    def forward(net, x):
        x = net.into(x)
        x = x + net.two(net.one(net.first(x)).tanh())
        return net.head(net.last(x))

    torch.manual_seed(0)
    net = network(
        forward, into=nn.Linear(5, 16), one=nn.Linear(16, 12), two=nn.Linear(12, 16),
        head=nn.Linear(16, 3), first=norm(16, **options), last=norm(16, **options),
    ).double()  # fmt: skip
    for p in net.parameters():
        nn.init.normal_(p)
    return net.eval(), torch.randn(20, 5).double()


READ = {"one": Mask(inputs=KEPT), "head": Mask(inputs=KEPT)}
WRITTEN = {"into": Mask(outputs=KEPT), "two": Mask(outputs=KEPT)}


@pytest.mark.parametrize(
    ("norm", "options"),
    [(nn.LayerNorm, {}), (nn.LayerNorm, {"elementwise_affine": False}), (Derived, {"bias": False}),
     (nn.RMSNorm, {"eps": 0.1}), (nn.RMSNorm, {}), (Written, {})],
)  # fmt: skip
def test_units_that_are_zero_go_exactly_and_others_only_where_training_follows(norm, options):
    net, x = stream(norm, **options)
    small, report = cut_exactly(net, x, READ | WRITTEN)
    assert [len(report.layers[name].outputs) for name in ("into", "two")] == [10, 10]
    assert not report.left_whole
    assert len(cut(net, x, READ).report.layers["into"].outputs) == 16
    rough, one = cut(net, x, READ, exact=False)
    assert one.parameters_after <= report.parameters_after + 20
    assert type(rough.first) is (nn.RMSNorm if norm in (nn.RMSNorm, Written) else nn.LayerNorm)
    # Of a stream of many units the mean and variance are those of any part of them.
    assert (rough(x) - masked(net, READ)(x)).std() < 0.6 * masked(net, READ)(x).std()
    # Again, with what is left: a normalisation that was cut is one that can be.
    less = {"one": Mask(inputs=torch.arange(10) > 2), "head": Mask(inputs=torch.arange(10) > 2)}
    less |= {name: Mask(outputs=torch.arange(10) > 2) for name in WRITTEN}
    smaller, report = cut_exactly(small, x, less)
    assert len(report.layers["into"].outputs) == 7
    words = describe(smaller)
    fill(again := rebuild(words), words, state(smaller, words))
    assert torch.equal(again(x), smaller(x))
    alone = torch_only(smaller, x)
    assert all(type(module) is not PaddedLayerNorm for module in alone.modules())
    torch.testing.assert_close(alone(x), smaller(x))


def test_what_is_constant_and_not_zero_stays_in_a_norm_and_a_read_unit_moves_others():
    net, x = stream(nn.LayerNorm)
    weights = {name: Mask(weights=KEPT[:, None].expand(net.get_submodule(name).weight.shape))
               for name in WRITTEN}  # fmt: skip
    assert len(cut_exactly(net, x, READ | weights)[1].layers["into"].outputs) == 16
    assert len(cut_exactly(net, x, WRITTEN)[1].layers["head"].inputs) == 16


class OfChannels(nn.GroupNorm):
    """Of rows of two axes one over their features."""

    def __init__(self, size):
        super().__init__(1, size)


def test_a_norm_of_another_class_is_torchs_only_where_it_is_over_the_last_axis():
    nets = [nn.Sequential(nn.Linear(8, 8), kind(8)) for kind in (OfChannels, Derived, Written)]
    found = [type(masked(net, {})[1]) for net in nets]
    assert found == [OfChannels, nn.LayerNorm, nn.RMSNorm]


def test_counts_are_multiples_of_what_is_asked_for():
    net, x = stream(nn.LayerNorm)
    masks = READ | WRITTEN | {"one": Mask(inputs=KEPT, outputs=torch.arange(12) > 2)}
    for round_to, widths in ((1, (10, 9)), (4, (12, 12)), (3, (12, 9)), (64, (16, 12))):
        small, report = cut(net, x, masks, round_to=round_to)
        torch.testing.assert_close(small(x), masked(net, masks)(x))
        assert (len(report.layers["into"].outputs), len(report.layers["one"].outputs)) == widths


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_of_constants_is_a_constant(norm):
    def forward(net, x):
        return net.head(torch.cat([net.other(x), net.norm(net.into(x).relu()).sin()], -1))

    net = network(
        forward, into=nn.Linear(5, 8), norm=norm(8), other=nn.Linear(5, 4), head=nn.Linear(12, 3)
    ).double()  # fmt: skip
    for p in net.parameters():
        nn.init.normal_(p)
    masks = {"into": Mask(weights=torch.zeros(8, 5).bool())}
    _, report = cut_exactly(net, torch.randn(20, 5).double(), masks)
    assert report.layers["head"].inputs.tolist() == [0, 1, 2, 3]
