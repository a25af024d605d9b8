"""A cut network computes what the masked one does, and what cannot be cut is left or refused."""

from itertools import pairwise

import pytest
import torch
from cutting import NETWORKS, at_random, block, cut_exactly, exactly, first, keep, made
from plain import lenet_300_100, network
from pyroccam.data import PyroccamError
from pyroccam.inference.cutting import Mask, count_parameters, cut, masked
from pyroccam.models.plain import is_select
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.utils import prune


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("keep", [0.1, 0.5, 2.0])
def test_a_cut_network_equals_the_masked_one(name, keep):
    build, shape = NETWORKS[name]
    net = made(build)
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
    if keep > 1 and name in ("lenet_5", "vgg"):
        assert str(small) == str(net)  # no choice that takes all
    allowed = {type(module) for module in net.modules()} | {nn.Sequential, nn.Module}
    graphs = [m for m in small.modules() if isinstance(m, fx.GraphModule)]
    assert {type(module) for module in small.modules() if module not in graphs} <= allowed
    assert isinstance(small, fx.GraphModule) == (name == "written_out" and keep < 1)
    assert all(is_select(one) for one in graphs if one is not small)
    exactly(fx.symbolic_trace(small), small, x)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions_are_cut_on_both_sides(dims):
    conv, back = (getattr(nn, f"{kind}{dims}d") for kind in ("Conv", "ConvTranspose"))
    net = made(lambda: nn.Sequential(conv(2, 6, 1), back(6, 5, 2, 2), nn.ReLU(), conv(5, 3, 1)))
    masks = {"0": Mask(outputs=keep(6, 0, 2)), "1": Mask(outputs=keep(5, 1, 3, 4))}
    x = torch.randn(3, 2, *[4] * dims).double()
    small, report = cut_exactly(net, x, masks)
    assert torch.equal(small[1].weight, net[1].weight[[0, 2]][:, [1, 3, 4]])
    assert (small[1].in_channels, small[1].out_channels) == (2, 3)
    found = report.layers["1"]
    assert (found.inputs.tolist(), found.outputs.tolist()) == ([0, 2], [1, 3, 4])
    assert (found.inputs_before, found.outputs_before) == (6, 5)
    cut_exactly(net, x, {"1": Mask(inputs=keep(6, 0, 2))})


def test_the_published_lenet_300_100_is_counted_right():
    net = made(lenet_300_100)
    masks = {"1": first(784, 278), "3": first(300, 98), "5": first(100, 13)}
    small, report = cut(net, torch.zeros(2, 1, 28, 28).double(), masks)
    assert report.architecture == "278-98-13"
    assert report.parameters_after == count_parameters(small) == 28_648 + 98 + 13 + 10


def test_sparse_weights_leave_exactly_the_units_on_a_path():
    sizes = [12, 10, 9, 8, 3]
    differed = 0
    for seed in range(12):
        torch.manual_seed(seed)
        layers = [nn.Linear(i, o).double() for i, o in pairwise(sizes)]
        net = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
        drop = {str(2 * k): torch.rand(layer.weight.shape) < 0.15 for k, layer in enumerate(layers)}
        drop["6"][:] = True
        sparse = masked(net, {name: Mask(weights=kept) for name, kept in drop.items()})
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
        small, report = cut_exactly(sparse, torch.randn(5, 12).double(), {})
        assert report.sizes == alive[:-1]
        alive[-1] = 3
        assert count_parameters(small) == sum(i * o + o for i, o in pairwise(alive))
        differed += alive[1:-1] != sizes[1:-1]
    assert differed > 4


# -- constants ------------------------------------------------------------------------------------


def test_constants_move_into_the_next_bias():
    net = made(lambda: nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softplus(), nn.Linear(3, 2, bias=False),
    ))  # fmt: skip
    net[1].weight.data[2] = 0.0  # which is a constant as well
    small, report = cut_exactly(net, torch.randn(5, 4).double(), {"0": Mask(outputs=keep(3, 0, 2))})
    assert report.layers["0"].outputs.tolist() == [0]
    scale = net[1].weight[1] * (net[1].running_var[1] + 1e-5).rsqrt()
    constants = F.softplus(torch.stack([net[1].bias[1] - net[1].running_mean[1] * scale,
                                        net[1].bias[2]]))  # fmt: skip
    torch.testing.assert_close(small[3].bias, net[3].weight[:, 1:] @ constants)


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


def around(a, b, after=lambda out: out):
    """A sum around a branch, which has constants at half its height."""
    return made(lambda: network(lambda net, x: after(x + net.b(torch.sigmoid(net.a(x)))), a=a, b=b))


def test_a_dead_branch_still_adds_its_constants():
    torch.manual_seed(0)
    x, net = torch.randn(5, 3).double(), around(nn.Linear(3, 4), nn.Linear(4, 3))
    assert cut_exactly(net, x, {"a": Mask(inputs=keep(3))})[1].sizes == [1, 1]
    convolutions = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)
    net = around(*convolutions, lambda out: out.flatten(1))
    net.b.weight.data[:, 1] = -net.b.weight.data[:, 0]  # both channels are 1/2, and cancel
    cut_exactly(net, torch.randn(4, 1, 5, 5).double(), {"a": Mask(outputs=keep(2))})


# -- what is tied ---------------------------------------------------------------------------------


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
    assert report.layers["two"].outputs.tolist() == [2, 3]  # behind it, zeros are put before them
    assert report.layers["one"].inputs.tolist() == [0, 1, 2]  # 3 of the stem is zero
    assert small.two[1].index.tolist() == [2, 2, 0, 1]
    assert (small.stem.weight[3] == 0).all()  # a place for one would cost more than it does
    again, second = cut(small, x)
    assert second.parameters_after == report.parameters_after
    torch.testing.assert_close(again(x), small(x))
    dead = {"one": Mask(inputs=keep(6)), "two": Mask(inputs=keep(5))}
    small, report = cut_exactly(net, x, dead)
    assert len(report.layers["one"].outputs) == len(report.layers["one"].inputs) == 1
    assert len(report.layers["two"].inputs) == 1
    assert (small.two.weight == 0).all()


@pytest.mark.parametrize("border", [0, 1])
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_keep_as_much_each(groups, border):
    """Those that nothing reads, or that read nothing, go; others have zeros."""
    net = made(lambda: nn.Sequential(
        nn.Conv2d(2, 16, 1), nn.Tanh(), nn.Conv2d(16, 8, 3, padding=border, groups=groups),
        nn.Sigmoid(), nn.Conv2d(8, 3, 1),
    ))  # fmt: skip
    x = torch.randn(4, 2, 8, 8).double()
    masks = {"0": Mask(outputs=keep(16, 0, 2, 3, 8, 14)), "2": Mask(outputs=keep(8, 0, 3, 4))}
    small, report = cut_exactly(net, x, masks)
    cut_again = cut(small, x).report
    assert cut_again.parameters_after == report.parameters_after
    conv = next(one for one in small[2].modules() if isinstance(one, nn.Conv2d))
    assert (conv.groups, conv.in_channels, conv.out_channels) == {
        2: (2, 6, 4), 4: (2, 6, 2)
    }[groups]  # fmt: skip
    assert report.layers["0"].outputs.tolist() == [0, 2, 3, 8, 14][: 5 if groups == 2 else 4]


def test_grouped_convolutions_are_masked_by_input():
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, 3, groups=2)))
    masks = {"1": Mask(inputs=keep(4, 0, 3))}
    weight = masked(net, masks)[1].weight
    kept = [(weight[o, i] != 0).all().item() for o, i in [(0, 0), (0, 1), (5, 0), (5, 1)]]
    assert kept == [True, False, False, True]
    _, report = cut_exactly(net, torch.randn(4, 2, 8, 8).double(), masks)
    assert report.left_whole == {}
    assert len(report.layers["0"].outputs) == 2


# -- what is left whole ---------------------------------------------------------------------------


def with_layers(forward, name="Net", **parts):
    torch.manual_seed(0)
    layers = {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "c": nn.Linear(6, 2), **parts}
    return made(lambda: network(forward, name, **layers))


def tied():
    net = with_layers(lambda net, x: net.c(F.relu(net.b(F.relu(net.a(x))))))
    net.b.weight = net.a.weight
    return net


def along_two_axes():
    def forward(net, x):
        return net.c(net.a(net.b(x)) + net.a(net.b(x).transpose(1, 2)))

    return with_layers(forward)


def direct():
    return with_layers(lambda net, x: net.c(net.a(x)) + net.a.weight.sum(), b=None)


def hooked():
    net = with_layers(lambda net, x: net.c(F.relu(net.a(x))), b=None)
    net.a.register_forward_hook(lambda module, args, out: out.flip(1))
    return net


@pytest.mark.parametrize(
    ("build", "why"),
    [(tied, "shares"), (direct, "directly"), (hooked, "hooks")],
)
def test_layers_used_in_other_ways_are_left_whole(build, why):
    masks = {"a": Mask(inputs=keep(6, 0, 1, 2, 4)), "c": Mask(inputs=keep(6, 3, 4))}
    small, report = cut_exactly(build(), torch.randn(5, 6).double(), masks)
    assert why in report.left_whole["a"]
    assert small.a.weight.shape == (6, 6)
    assert list(report.layers) == ["c"]
    assert report.layers["c"].inputs.tolist() == [3, 4]  # by a choice in front


def test_a_layer_that_reads_another_axis_the_next_time_is_left_whole():
    masks = {"b": Mask(outputs=keep(6, 0, 1, 4)), "a": Mask(outputs=keep(6, 1, 2))}
    _, report = cut_exactly(along_two_axes(), torch.randn(5, 6, 6).double(), masks)
    assert "more than once" in report.left_whole["a"]


def again_and_again(conv):
    """Two layers that are called three times, around a sum, in front of the first of which other
    things are constant each time."""

    def forward(net, x):
        x = net.stem(x)
        for _ in range(3):
            x = net.a(torch.sigmoid(net.down(F.relu(net.up(x))))) + x
        return net.head(x)

    def layer(inputs, outputs, groups=1):
        if conv:
            return nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups)
        return nn.Linear(inputs, outputs)

    layers = {"stem": layer(4, 8), "up": layer(8, 12), "down": layer(12, 8, 2), "a": layer(8, 8)}
    return made(lambda: network(forward, **layers, head=layer(8, 2)))


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_layer_that_is_called_again_loses_what_all_its_calls_can_spare(conv, seed):
    net = again_and_again(conv)
    x = torch.randn(3, 4, *[5, 5][: 2 * conv]).double()
    torch.manual_seed(seed)
    random = at_random(net, 0.4, least=2)
    cut_exactly(net, x, {name: mask for name, mask in random.items() if name != "head"})
    inner = {"up": Mask(outputs=keep(12, 1, 4, 5, 7, 8, 11)), "a": Mask(inputs=keep(8, 0, 2, 4, 6))}
    small, report = cut_exactly(net, x, inner)
    assert not report.left_whole
    assert (len(report.layers["up"].outputs), len(report.layers["a"].inputs)) == (6, 4)
    assert len(small.up.weight) == 6


def test_what_a_trace_hides_is_refused():
    """One row that is large does not hide that others are wrong."""
    net = with_layers(lambda net, x: net.c(net.a(x)) + 1e-3 * net.a.out_features, "Hidden", b=None)
    x = torch.randn(8, 6).double()
    x[0] *= 1e4
    with pytest.raises(PyroccamError):
        cut(net, x, {"a": Mask(outputs=keep(6, 1, 2))})


def pruned():
    net = lenet_300_100()
    prune.l1_unstructured(net[1], "weight", 0.5)
    return net


@pytest.mark.parametrize(
    ("build", "masks"),
    [
        (lenet_300_100, {"1": Mask(outputs=keep(300, 1, 2)), "3": Mask(inputs=keep(300, 3, 4))}),
        (lenet_300_100, {"5": Mask(outputs=keep(10))}),
        (lenet_300_100, {"0": Mask()}),
        (lenet_300_100, {"3": Mask(inputs=keep(50))}),
        (lenet_300_100, {"3": Mask(outputs=torch.ones(100))}),
        (pruned, {"1": first(784, 5)}),
        (lambda: network(lambda net, x: x if x.sum() > 0 else -x), {}),
    ],
)
def test_what_cannot_be_cut_is_refused(build, masks):
    with pytest.raises(PyroccamError):
        cut(build(), torch.zeros(2, 1, 28, 28), masks)
