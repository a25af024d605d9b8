"""A cut network computes what the masked one does, and nothing in it is left over."""

from itertools import pairwise

import pytest
import torch
from cutting import NETWORKS, at_random, block, cut_exactly, exactly, first, keep, lenet_5, made
from plain import lenet_300_100, network
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.cutting.cost import count_parameters
from pyroccam.inference.cutting.masks import Mask, apply_masks, masked
from pyroccam.inference.cutting.surgery import cut
from pyroccam.models.plain.feature_choice import is_select
from torch import fx, nn
from torch.nn import functional as F


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95])
def test_a_cut_network_equals_the_masked_one(name, keep):
    build, shape = NETWORKS[name]
    for seed in range(4):
        net = made(build, seed)
        before = {key: value.clone() for key, value in net.state_dict().items()}
        x = torch.randn(3, *shape).double()
        masks = at_random(net, keep, least=3)
        small, report = cut(net, x[:2], masks)
        exactly(small, masked(net, masks), x)
        assert count_parameters(small) == report.parameters_after <= report.parameters_before
        assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
        again, second = cut(small, x[:2])
        assert second.parameters_after == report.parameters_after
        exactly(again, small, x)


def test_resnet18():
    torchvision = pytest.importorskip("torchvision")
    net = made(lambda: torchvision.models.resnet18(num_classes=10))
    _, report = cut_exactly(net, torch.randn(3, 3, 32, 32).double(), at_random(net, 0.5))
    assert report.left_whole == {}
    assert len(report.layers) == 21
    assert report.parameters_after < 0.75 * report.parameters_before


@pytest.mark.parametrize("name", NETWORKS)
def test_only_torch_modules_are_left(name):
    build, shape = NETWORKS[name]
    net = made(build)
    x = torch.randn(2, *shape).double()
    small = cut(net, x, at_random(net, 0.4, least=3)).net
    allowed = {type(module) for module in net.modules()} | {nn.Sequential, nn.Module}
    found = {type(module) for module in small.modules() if not isinstance(module, fx.GraphModule)}
    assert found <= allowed
    traced = fx.symbolic_trace(small)
    exactly(traced, small, x)
    assert isinstance(small, fx.GraphModule) == (name == "written_out")
    graphs = [m for m in small.modules() if isinstance(m, fx.GraphModule) and m is not small]
    assert all(map(is_select, graphs))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions_are_cut_on_both_sides(dims):
    conv, back = (getattr(nn, f"{kind}{dims}d") for kind in ("Conv", "ConvTranspose"))
    net = made(lambda: nn.Sequential(conv(2, 6, 1), back(6, 5, 2, 2), nn.ReLU(), conv(5, 3, 1)))
    masks = {"0": Mask(outputs=keep(6, 0, 2)), "1": Mask(outputs=keep(5, 1, 3, 4))}
    x = torch.randn(3, 2, *[4] * dims).double()
    small, report = cut_exactly(net, x, masks)
    assert small[1].weight.shape == (2, 3, *[2] * dims)
    assert torch.equal(small[1].weight, net[1].weight[[0, 2]][:, [1, 3, 4]])
    assert (small[1].in_channels, small[1].out_channels) == (2, 3)
    found = report.layers["1"]
    assert (found.inputs.tolist(), found.outputs.tolist()) == ([0, 2], [1, 3, 4])
    assert (found.inputs_before, found.outputs_before) == (6, 5)
    assert (found.weights_before, found.weights_after) == (30 * 2**dims, 6 * 2**dims)
    cut_exactly(net, x, {"1": Mask(inputs=keep(6, 0, 2))})


@pytest.mark.parametrize("name", ["lenet_5", "vgg"])
def test_everything_kept_changes_nothing(name):
    build, shape = NETWORKS[name]
    net = made(build)
    small, report = cut(net, torch.randn(2, *shape).double(), at_random(net, 2.0))
    assert report.parameters_after == report.parameters_before
    assert str(small) == str(net)  # no choice that takes all
    assert all(map(torch.equal, small.parameters(), net.parameters()))


def test_the_published_lenet_300_100_is_counted_right():
    net = made(lenet_300_100)
    masks = {"1": first(784, 278), "3": first(300, 98), "5": first(100, 13)}
    small, report = cut(net, torch.zeros(2, 1, 28, 28).double(), masks)
    assert report.architecture == "278-98-13"
    weights = 278 * 98 + 98 * 13 + 13 * 10
    assert report.weights_after == weights == 28_648
    assert report.weights_before == 266_200
    assert report.parameters_after == count_parameters(small) == weights + 98 + 13 + 10
    assert torch.equal(report.layers["1"].inputs, masks["1"].inputs.nonzero()[:, 0])
    assert torch.equal(report.layers["1"].outputs, masks["3"].inputs.nonzero()[:, 0])
    assert small[1][0].index.tolist() == report.layers["1"].inputs.tolist()
    assert "1: 278 of 784 inputs, 98 of 300 outputs" in str(report)


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.8])
def test_lenet_5_is_counted_right(keep):
    for seed in range(3):
        net = made(lenet_5, seed)
        masks = at_random(net, keep)
        channels = masks["3"].outputs
        # A unit lives if it is kept and its channel is; a channel if one of its 16 units is.
        units = [u for u in range(800) if masks["7"].inputs[u] and channels[u // 16]]
        if not units:
            continue
        alive = len({u // 16 for u in units})
        stem, hidden = int(masks["0"].outputs.sum()), int(masks["9"].inputs.sum())
        weights = 25 * stem + 25 * stem * alive + len(units) * hidden + hidden * 10
        small, report = cut(net, torch.zeros(2, 1, 28, 28).double(), masks)
        assert report.sizes == [stem, alive, len(units), hidden]
        assert report.weights_after == weights
        assert count_parameters(small) == weights + stem + alive + hidden + 10


def test_sparse_weights_leave_exactly_the_units_on_a_path():
    sizes = [12, 10, 9, 8, 3]
    differed = 0
    for seed in range(30):
        torch.manual_seed(seed)
        layers = [nn.Linear(i, o).double() for i, o in pairwise(sizes)]
        net = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
        drop = {str(2 * k): torch.rand(layer.weight.shape) < 0.15 for k, layer in enumerate(layers)}
        drop["6"][:] = True
        sparse = apply_masks(net, drop).net
        weights = [(sparse[2 * k].weight != 0) for k in range(4)]
        fed, read = [torch.ones(12).bool()], [torch.ones(3).bool()]
        for w in weights:
            fed.append((w & fed[-1]).any(1))
        for w in reversed(weights):
            read.insert(0, (w & read[0][:, None]).any(0))
        alive = [int((f & r).sum()) for f, r in zip(fed, read, strict=True)]
        if min(alive) == 0:
            with pytest.raises(PyroccamError):
                cut(sparse, torch.zeros(2, 12).double())
            continue
        small, report = cut(sparse, torch.zeros(2, 12).double())
        assert report.sizes == alive[:-1]
        x = torch.randn(5, 12).double()
        assert (small(x) - sparse(x)).abs().max() < 1e-12
        alive[-1] = 3
        assert count_parameters(small) == sum(i * o + o for i, o in pairwise(alive))
        differed += alive[1:-1] != sizes[1:-1]
    assert differed > 10


def test_constants_move_into_the_next_bias():
    net = made(lambda: nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softplus(), nn.Linear(3, 2, bias=False),
    ))  # fmt: skip
    x = torch.randn(5, 4).double()
    small, report = cut_exactly(net, x, {"0": Mask(outputs=keep(3, 0, 2))})
    assert report.layers["0"].outputs.tolist() == [0, 2]
    scale = net[1].weight[1] * (net[1].running_var[1] + 1e-5).rsqrt()
    constant = F.softplus(net[1].bias[1] - net[1].running_mean[1] * scale)
    torch.testing.assert_close(small[3].bias, net[3].weight[:, 1] * constant)


@pytest.mark.parametrize(
    ("padding", "mode", "kept"), [(0, "zeros", [1]), (1, "zeros", [1, 3]), (1, "circular", [1])]
)
def test_constants_in_front_of_a_border_of_zeros_become_one(padding, mode, kept):
    net = made(lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 3, 3, padding=padding, padding_mode=mode),
    ))  # fmt: skip
    net[0].bias.data[3] = 2.0
    net[0].weight.data[3] = 0.0  # a constant that is not masked
    x = torch.randn(4, 1, 9, 9).double()
    masks = {"0": Mask(outputs=keep(4, 1, 3))}  # sigmoid(0) is not zero
    small, report = cut_exactly(net, x, masks)
    assert report.layers["0"].outputs.tolist() == kept
    assert cut(small, x).report.parameters_after == report.parameters_after


@pytest.mark.parametrize(
    ("pool", "kept"),
    [
        (nn.AvgPool2d(3, padding=1), 3),  # zeros at the border count
        (nn.AvgPool2d(3, padding=1, count_include_pad=False), 2),
        (nn.AvgPool2d(3), 2),
        (nn.MaxPool2d(3, padding=1), 2),
        (nn.AdaptiveMaxPool2d(2), 2),
    ],
    ids=str,
)
def test_pooling_keeps_a_constant_unless_it_pads_it(pool, kept):
    net = made(lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Sigmoid(), pool, nn.Flatten(), nn.LazyLinear(2),
    ))  # fmt: skip
    x = torch.randn(4, 1, 9, 9).double()
    net(x)
    _, report = cut_exactly(net, x, {"0": Mask(outputs=keep(3, 0, 2))})
    assert len(report.layers["0"].outputs) == kept


def test_a_normalisation_that_scales_by_zero_makes_a_constant():
    net = made(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    net[1].weight.data[2] = 0.0
    x = torch.randn(5, 4).double()
    small, report = cut_exactly(net, x, {})
    assert report.layers["0"].outputs.tolist() == [0, 1]
    torch.testing.assert_close(small[2].bias, net[2].bias + net[2].weight[:, 2] * net[1].bias[2])


def test_a_residual_sum_ties_its_channels():
    net = made(block)
    x = torch.randn(4, 1, 7, 7).double()
    masks = {
        "stem": Mask(outputs=keep(6, 0, 1, 2)),
        "two": Mask(outputs=keep(6, 2, 3)),
        "head": Mask(inputs=keep(6, 0, 1, 2, 3, 4)),
    }
    small, report = cut_exactly(net, x, masks)
    # Channels 4 and 5 are zero on both sides, 5 is not read either. The others are needed by one.
    assert report.layers["stem"].outputs.tolist() == [0, 1, 2, 3]
    assert report.layers["two"].outputs.tolist() == [0, 1, 2, 3]
    assert report.layers["one"].inputs.tolist() == [0, 1, 2]  # 3 of the stem is zero
    assert (small.two.weight[:2] == 0).all()
    assert (small.stem.weight[3] == 0).all()


def test_a_branch_may_die_where_a_sum_goes_around_it():
    net = made(block)
    x = torch.randn(4, 1, 7, 7).double()
    masks = {"one": Mask(inputs=keep(6)), "two": Mask(inputs=keep(5))}
    small, report = cut_exactly(net, x, masks)
    assert len(report.layers["one"].outputs) == len(report.layers["one"].inputs) == 1
    assert len(report.layers["two"].inputs) == 1
    assert (small.two.weight == 0).all()


def around(a, b, after=lambda out: out):
    """A sum around a branch, which has constants at half its height."""
    return network(lambda net, x: after(x + net.b(torch.sigmoid(net.a(x)))), a=a, b=b)


def test_a_dead_branch_still_adds_its_constants():
    net = made(lambda: around(nn.Linear(3, 4), nn.Linear(4, 3)))
    _, report = cut_exactly(net, torch.randn(5, 3).double(), {"a": Mask(inputs=keep(3))})
    assert report.sizes == [1, 1]


def test_merged_constants_may_cancel():
    net = made(lambda: around(
        nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1), lambda out: out.flatten(1),
    ))  # fmt: skip
    net.b.weight.data[:, 1] = -net.b.weight.data[:, 0]
    masks = {"a": Mask(outputs=keep(2))}  # both channels are 1/2
    cut_exactly(net, torch.randn(4, 1, 5, 5).double(), masks)


def test_a_channel_that_is_there_for_others_but_unread_feeds_nobody():
    net = made(lambda: network(
        lambda net, x, z: net.c(net.a(x)) + net.d(net.a(x) + net.b(z)),
        a=nn.Linear(4, 3), b=nn.Linear(5, 3), c=nn.Linear(3, 2), d=nn.Linear(3, 2),
    ))  # fmt: skip
    x, z = torch.randn(4, 4).double(), torch.randn(4, 5).double()
    masks = {"d": Mask(inputs=keep(3, 0)), "b": Mask(inputs=keep(5, 1, 2))}
    small, report = cut(net, (x, z), masks)
    assert report.layers["b"].outputs.tolist() == [0, 1, 2]  # a + b needs its shape
    assert (small.b[1].weight[1:] == 0).all()
    assert (small.b[1].bias[1:] == 0).all()
    torch.testing.assert_close(small(x, z), masked(net, masks)(x, z), rtol=0, atol=1e-12)
