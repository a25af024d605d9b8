"""A cut network computes what the masked one does, and nothing in it is left over."""

import json
from itertools import pairwise

import pytest
import torch
from pyroccam.inference.cutting.cut import cut, groups
from pyroccam.inference.cutting.masks import Mask, apply_masks, maskable, masked
from pyroccam.inference.prune import count_parameters, seconds_per_batch
from pyroccam.models.select import Select
from pyroccam.models.shrink import rebuild
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.utils import prune


def lenet_300_100():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


def lenet_5():
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


class WrittenOut(nn.Module):
    """LeNet-5 as many write it, with the size of the flatten in ``forward``."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.fc1, self.fc2 = nn.Linear(800, 500), nn.Linear(500, 10)
        self.drop = nn.Dropout2d()

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2), inplace=True)
        x = x.view(-1, 800)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def vgg(width=16):
    layers, channels = [], 3
    for w in (1, 1, "pool", 2, 2, "pool", 4, 4, "pool"):
        if w == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, w * width, 3, padding=1), nn.BatchNorm2d(w * width)]
            layers.append(nn.ReLU(inplace=True))
            channels = w * width
    hidden = [nn.Linear(channels * 4, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *hidden)


class Step(nn.Module):
    """A residual block with normalisation, as in torchvision."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if before != after:
            down = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(down, nn.BatchNorm2d(after))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.shortcut is None else self.shortcut(x)
        return self.relu(out)


def residual():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), Step(12, 12, 1), Step(12, 20, 2), Step(20, 20, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 10),
    )  # fmt: skip


class Mixed(nn.Module):
    """Concatenation, depthwise and grouped convolutions, means, a gate, a sequence axis."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 6, 3, bias=False)
        self.deep = nn.Conv2d(14, 14, 3, groups=14, bias=False)
        self.gate = nn.Linear(14, 14)
        self.grouped = nn.Conv2d(14, 8, 3, groups=2)
        self.wide, self.last = nn.Linear(5, 5), nn.Linear(8 * 5, 3)

    def forward(self, x):
        x = torch.cat([torch.tanh(self.left(x)), F.leaky_relu(self.right(x))], dim=1)
        x = F.avg_pool2d(self.deep(x), 2)
        x = 0.5 * x + torch.sigmoid(self.gate(x.mean((2, 3))))[..., None, None]
        x = self.wide(self.grouped(x).mean(3))  # (B, 8, 5): mixes positions, not channels
        return self.last(torch.flatten(x, 1))


NETWORKS = {
    "lenet_300_100": (lenet_300_100, (1, 28, 28)),
    "lenet_5": (lenet_5, (1, 28, 28)),
    "written_out": (WrittenOut, (1, 28, 28)),
    "vgg": (vgg, (3, 16, 16)),
    "residual": (residual, (3, 16, 16)),
    "mixed": (Mixed, (3, 18, 18)),
}


def made(build, seed=0):
    """In double precision, with statistics and shifts of batch normalisation that matter."""
    torch.manual_seed(seed)
    net = build().double().eval()
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(module.bias, mean=1.0)
            module.bias.data[::4] = -5.0  # ReLU makes some constants zero, which can be cut
        elif isinstance(module, nn.Conv2d):
            module.weight.data *= 3  # or only the shifts would be left after many layers
    return net


def at_random(net, keep, least=1):
    """Masks on the outputs of convolutions and the inputs of linear layers."""
    masks = {}
    for name, layer in maskable(net).items():
        side = "inputs" if isinstance(layer, nn.Linear) else "outputs"
        size = layer.in_features if side == "inputs" else layer.out_channels
        kept = torch.rand(size) < keep
        kept[1 : 4 * least : 4] = True  # not those that made() lets ReLU kill
        masks[name] = Mask(**{side: kept})
    return masks


def exactly(cut_net, masked_net, x, tolerance=1e-10):
    with torch.no_grad():
        for scale in (1.0, 10.0):
            found, expected = cut_net(scale * x), masked_net(scale * x)
            assert expected.std(0).min() > 0, "the test needs outputs that depend on the input"
            assert (found - expected).abs().max() <= tolerance * expected.abs().max()


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
    x = torch.randn(3, 3, 32, 32).double()
    masks = at_random(net, 0.5)
    small, report = cut(net, x[:2], masks)
    exactly(small, masked(net, masks), x)
    assert report.left_whole == {}
    assert len(report.layers) == 21
    assert report.parameters_after < 0.75 * report.parameters_before


@pytest.mark.parametrize("name", NETWORKS)
def test_only_torch_modules_and_select_are_left(name):
    build, shape = NETWORKS[name]
    net = made(build)
    x = torch.randn(2, *shape).double()
    small = cut(net, x, at_random(net, 0.4, least=3)).net
    allowed = {type(module) for module in net.modules()} | {Select, nn.Sequential, nn.Module}
    found = {type(module) for module in small.modules() if not isinstance(module, fx.GraphModule)}
    assert found <= allowed
    traced = fx.symbolic_trace(small)
    exactly(traced, small, x)
    assert isinstance(small, fx.GraphModule) == (name == "written_out")


def test_everything_kept_changes_nothing():
    for build, shape in (NETWORKS["lenet_5"], NETWORKS["vgg"]):
        net = made(build)
        x = torch.randn(2, *shape).double()
        small, report = cut(net, x, at_random(net, 2.0))
        assert report.parameters_after == report.parameters_before
        assert str(small) == str(net)  # no Select that selects all
        assert all(
            torch.equal(a, b) for a, b in zip(small.parameters(), net.parameters(), strict=True)
        )


def first(size, kept):
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size)[:kept]] = True
    return Mask(inputs=mask)


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
            with pytest.raises(ValueError, match="No path is left"):
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
    net = made(
        lambda: nn.Sequential(
            nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softplus(), nn.Linear(3, 2, bias=False)
        )
    )
    x = torch.randn(5, 4).double()
    outputs = torch.tensor([True, False, True])
    small, report = cut(net, x, {"0": Mask(outputs=outputs)})
    assert report.layers["0"].outputs.tolist() == [0, 2]
    constant = F.softplus(
        net[1].bias[1]
        - net[1].running_mean[1] * net[1].weight[1] * (net[1].running_var[1] + 1e-5).rsqrt()
    )
    torch.testing.assert_close(small[3].bias, net[3].weight[:, 1] * constant)
    exactly(small, masked(net, {"0": Mask(outputs=outputs)}), x)


@pytest.mark.parametrize(
    ("padding", "mode", "kept"), [(0, "zeros", [1]), (1, "zeros", [1, 3]), (1, "circular", [1])]
)
def test_constants_in_front_of_a_border_of_zeros_become_one(padding, mode, kept):
    net = made(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 3, 3, padding=padding, padding_mode=mode)
        )
    )
    net[0].bias.data[3] = 2.0
    net[0].weight.data[3] = 0.0  # a constant that is not masked
    x = torch.randn(4, 1, 9, 9).double()
    masks = {"0": Mask(outputs=keep(4, 1, 3))}  # sigmoid(0) is not zero
    small, report = cut(net, x, masks)
    assert report.layers["0"].outputs.tolist() == kept
    exactly(small, masked(net, masks), x)
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
    net = made(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.Sigmoid(), pool, nn.Flatten(), nn.LazyLinear(2)
        )
    )
    x = torch.randn(4, 1, 9, 9).double()
    net(x)
    masks = {"0": Mask(outputs=keep(3, 0, 2))}
    small, report = cut(net, x, masks)
    assert len(report.layers["0"].outputs) == kept
    exactly(small, masked(net, masks), x)


def test_a_normalisation_that_scales_by_zero_makes_a_constant():
    net = made(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    net[1].weight.data[2] = 0.0
    x = torch.randn(5, 4).double()
    small, report = cut(net, x)
    assert report.layers["0"].outputs.tolist() == [0, 1]
    torch.testing.assert_close(small[2].bias, net[2].bias + net[2].weight[:, 2] * net[1].bias[2])
    exactly(small, net, x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(6, 3)
        self.one, self.two = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 6, 3, padding=1)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.two(F.relu(self.one(x))))
        return self.head(x.mean([-2, -1]))


def keep(size, *indices):
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(indices)] = True
    return mask


def test_a_residual_sum_ties_its_channels():
    net = made(Block)
    x = torch.randn(4, 1, 7, 7).double()
    masks = {
        "stem": Mask(outputs=keep(6, 0, 1, 2)),
        "two": Mask(outputs=keep(6, 2, 3)),
        "head": Mask(inputs=keep(6, 0, 1, 2, 3, 4)),
    }
    small, report = cut(net, x, masks)
    # Channels 4 and 5 are zero on both sides, 5 is not read either. The others are needed by one.
    assert report.layers["stem"].outputs.tolist() == [0, 1, 2, 3]
    assert report.layers["two"].outputs.tolist() == [0, 1, 2, 3]
    assert report.layers["one"].inputs.tolist() == [0, 1, 2]  # 3 of the stem is zero
    assert (small.two.weight[:2] == 0).all()
    assert (small.stem.weight[3] == 0).all()
    exactly(small, masked(net, masks), x)


def test_a_branch_may_die_where_a_sum_goes_around_it():
    net = made(Block)
    x = torch.randn(4, 1, 7, 7).double()
    masks = {"one": Mask(inputs=keep(6)), "two": Mask(inputs=keep(5))}
    small, report = cut(net, x, masks)
    assert len(report.layers["one"].outputs) == len(report.layers["one"].inputs) == 1
    assert len(report.layers["two"].inputs) == 1
    assert (small.two.weight == 0).all()
    exactly(small, masked(net, masks), x)


def test_a_dead_branch_still_adds_its_constants():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x):
            return x + self.b(torch.sigmoid(self.a(x)))

    net = made(Around)
    x = torch.randn(5, 3).double()
    masks = {"a": Mask(inputs=keep(3))}
    small, report = cut(net, x, masks)
    assert report.sizes == [1, 1]
    exactly(small, masked(net, masks), x)


def test_merged_constants_may_cancel():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)

        def forward(self, x):
            return (x + self.b(torch.sigmoid(self.a(x)))).flatten(1)

    net = made(Around)
    net.b.weight.data[:, 1] = -net.b.weight.data[:, 0]
    x = torch.randn(4, 1, 5, 5).double()
    masks = {"a": Mask(outputs=keep(2))}  # both channels are 1/2
    exactly(cut(net, x, masks).net, masked(net, masks), x)


def test_a_channel_that_is_there_for_others_but_unread_feeds_nobody():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)
            self.c, self.d = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x, z):
            a, b = self.a(x), self.b(z)
            return self.c(a) + self.d(a + b)

    net = made(Two)
    x, z = torch.randn(4, 4).double(), torch.randn(4, 5).double()
    masks = {"d": Mask(inputs=keep(3, 0)), "b": Mask(inputs=keep(5, 1, 2))}
    small, report = cut(net, (x, z), masks)
    assert report.layers["b"].outputs.tolist() == [0, 1, 2]  # a + b needs its shape
    assert (small.b[1].weight[1:] == 0).all()
    assert (small.b[1].bias[1:] == 0).all()
    torch.testing.assert_close(small(x, z), masked(net, masks)(x, z), rtol=0, atol=1e-12)


class Twice(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.relu = nn.ReLU()
        self.tied = tied
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x):
        x = self.relu(self.a(x))
        return self.c(self.relu(self.b(x) if self.tied else self.a(x)))


@pytest.mark.parametrize("tied", [False, True])
def test_shared_weights_are_left_whole(tied):
    net = made(lambda: Twice(tied))
    x = torch.randn(5, 6).double()
    masks = {"a": Mask(inputs=keep(6, 0, 1, 2, 4)), "c": Mask(inputs=keep(6, 3, 4))}
    small, report = cut(net, x, masks)
    assert (
        "shares" in report.left_whole["a"] if tied else "more than once" in report.left_whole["a"]
    )
    assert small.a.weight.shape == (6, 6)
    assert list(report.layers) == ["c"]
    assert report.layers["c"].inputs.tolist() == [3, 4]  # by a Select in front
    exactly(small, masked(net, masks), x)


class Direct(nn.Module):
    """Uses the weight of a layer without calling it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.b(self.a(x)) + self.a.weight.sum()


def with_hook():
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    net[0].register_forward_hook(lambda module, args, out: out.flip(1))
    return net


@pytest.mark.parametrize(
    ("build", "name", "why"), [(Direct, "a", "directly"), (with_hook, "0", "hooks")]
)
def test_layers_used_in_other_ways_are_left_whole(build, name, why):
    net = made(build)
    x = torch.randn(5, 6).double()
    last = "b" if name == "a" else "2"
    masks = {name: Mask(outputs=keep(5, 0, 1)), last: Mask(inputs=keep(5, 0, 1, 3, 4))}
    small, report = cut(net, x, masks)
    assert why in report.left_whole[name]
    assert small.get_submodule(name).weight.shape == (5, 6)
    exactly(small, masked(net, masks), x)


@pytest.mark.parametrize(
    "between", [nn.LayerNorm(6), nn.Softmax(1), nn.PReLU(6), nn.GroupNorm(2, 6)], ids=str
)
def test_steps_that_mix_units_need_them_all(between):
    net = made(lambda: nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 3)))
    x = torch.randn(5, 4).double()
    masks = {"0": Mask(outputs=keep(6, 0, 3, 4)), "2": Mask(inputs=keep(6, 1, 3, 5))}
    small, report = cut(net, x, masks)
    assert len(report.layers["0"].outputs) == 6
    assert report.layers["2"].inputs.tolist() == [1, 3, 5]
    exactly(small, masked(net, masks), x)


def test_depthwise_channels_go_with_the_ones_they_are_made_of():
    net = made(
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 3, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
    )  # fmt: skip
    x = torch.randn(4, 2, 8, 8).double()
    masks = {"0": Mask(outputs=keep(6, 0, 1, 2, 3)), "2": Mask(outputs=keep(6, 1, 2, 4))}
    small, report = cut(net, x, masks)
    assert small[2].groups == small[2].in_channels == small[0].out_channels == 2
    assert report.layers["2"].inputs.tolist() == report.layers["2"].outputs.tolist() == [1, 2]
    exactly(small, masked(net, masks), x)


def test_a_constant_depthwise_channel_uses_nothing():
    net = made(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.GroupNorm(2, 4)
        )
    )
    net[0].bias.data[2] = 1.5
    x = torch.randn(4, 2, 8, 8).double()
    masks = {"0": Mask(inputs=keep(2, 1)), "1": Mask(outputs=keep(4, 0, 2, 3))}
    net[0].weight.data[2] = 0.0  # channel 2 is 1.5, and the normalisation needs all four
    small, report = cut(net, x, masks)
    assert report.layers["1"].outputs.tolist() == [0, 1, 2, 3]
    assert (small[0][1].weight[1] == 0).all()  # zero after the depthwise step, so unused before
    assert (small[0][1].bias[[1, 2]] == 0).all()
    torch.testing.assert_close(small[1].bias[2], 1.5 * net[1].weight[2].sum())
    found, expected = small(x), masked(net, masks)(x)
    assert (found - expected).abs().max() < 1e-10


def test_grouped_convolutions_are_left_whole_and_masked_by_input():
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, 3, groups=2)))
    x = torch.randn(4, 2, 8, 8).double()
    masks = {"1": Mask(inputs=keep(4, 0, 3))}
    weight = masked(net, masks)[1].weight
    assert [(weight[o, i] != 0).all().item() for o, i in [(0, 0), (0, 1), (5, 0), (5, 1)]] == [
        *(True, False, False, True)
    ]
    small, report = cut(net, x, masks)
    assert report.left_whole == {"1": "it has groups"}
    assert len(report.layers["0"].outputs) == 4
    exactly(small, masked(net, masks), x)


def test_what_writes_in_place_is_seen():
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(6, 2)

        def forward(self, x):
            x = self.a(x)
            y = F.relu_(x)
            return self.b(torch.cat([x, y], 1))  # both are the rectified ones

    net = made(Overwrites)
    net.a.bias.data[1] = -1.0
    net.a.weight.data[1] = 0.0  # so unit 1 is -1, and 0 after
    x = torch.randn(5, 4).double()
    exactly(cut(net, x).net, net, x)


def test_what_a_trace_hides_is_refused():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            kept = out = self.a(x)
            out += self.b(x)
            return self.c(kept)

    with pytest.raises(RuntimeError, match="Hidden cannot be cut.*read again"):
        cut(made(Hidden), torch.randn(5, 4).double())


def test_a_path_that_depends_on_the_data_is_refused():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match="Branches cannot be traced by torch.fx"):
        cut(Branches(), torch.zeros(2, 3))


def test_a_layer_without_groups_is_named():
    net, x = made(lenet_300_100), torch.zeros(2, 1, 28, 28).double()
    with pytest.raises(ValueError, match="Layer '3' keeps 0 of its 300 inputs.*prunes less"):
        cut(net, x, {"1": first(784, 5), "3": Mask(inputs=keep(300))})
    with pytest.raises(ValueError, match="'5' keeps 0 of its 10 outputs"):
        cut(net, x, {"5": Mask(outputs=keep(10))})
    crossed = {"1": Mask(outputs=keep(300, 1, 2)), "3": Mask(inputs=keep(300, 3, 4))}
    with pytest.raises(ValueError, match="at layer '3' .its mask keeps 2 of 300 inputs"):
        cut(net, x, crossed)


@pytest.mark.parametrize(
    ("masks", "error", "message"),
    [
        ({"fc9": Mask()}, ValueError, "no linear or convolutional layer 'fc9'.*has '0', '3', '7'"),
        ({"1": Mask()}, ValueError, "layer '1' to mask"),
        ({"0": keep(20)}, TypeError, "mask of '0' must be a Mask, got Tensor"),
        ({"7": Mask(inputs=keep(50))}, ValueError, r"'7' has shape \(50,\), expected \(800,\)"),
        ({"0": Mask(outputs=keep(1))}, ValueError, r"outputs mask of '0' .*expected \(20,\)"),
        ({"0": Mask(outputs=torch.ones(20))}, TypeError, "tensor of bools, got torch.float32"),
        ({"0": Mask(inputs=[True])}, TypeError, "tensor of bools, got list"),
    ],
)
def test_masks_that_do_not_fit(masks, error, message):
    with pytest.raises(error, match=message):
        cut(lenet_5(), torch.zeros(2, 1, 28, 28), masks)


def test_other_errors():
    net = lenet_5()
    with pytest.raises(ValueError, match=r"cannot run on the example of shape \(2, 3, 28, 28\)"):
        cut(net, torch.zeros(2, 3, 28, 28))
    with pytest.raises(ValueError, match=r"'3' has shape \(5,\), expected the shape of its weight"):
        apply_masks(net, {"3": keep(5)})
    with pytest.raises(ValueError, match="format 1, this one has 2"):
        rebuild(net, {"format": 2})
    with pytest.raises(ValueError, match="cannot be read"):
        rebuild(net, {"format": 1, "edits": {"0": {"rows": []}}, "reshapes": {}})
    edits = {"fc": {"outputs": [0]}}
    with pytest.raises(ValueError, match="do not fit Sequential at 'fc'"):
        rebuild(net, {"format": 1, "edits": edits, "reshapes": {}})
    prune.l1_unstructured(net[0], "weight", 0.5)
    with pytest.raises(ValueError, match="it holds computed tensors .in '0'"):
        cut(net, torch.zeros(2, 1, 28, 28), {"0": Mask(outputs=keep(20, 1))})


def test_weights_can_be_dropped_one_by_one():
    net = made(lenet_300_100)
    kept = torch.rand(100, 300) < 0.1
    kept[7] = False
    found = apply_masks(net, {"3": kept})
    assert found.nonzero == {"1": 300 * 784, "3": int(kept.sum()), "5": 1000}
    assert found.total == {"1": 300 * 784, "3": 30_000, "5": 1000}
    assert torch.equal(found.net[3].weight, net[3].weight * kept)
    report = cut(found.net, torch.zeros(2, 784).double()).report
    assert 7 not in report.layers["3"].outputs  # a constant now
    assert report.sizes == [784, 300, 99]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_cut_network_is_rebuilt_from_plain_data(name):
    build, shape = NETWORKS[name]
    net = made(build)
    x = torch.randn(3, *shape).double()
    small, report = cut(net, x, at_random(net, 0.4, least=3))
    fresh = rebuild(made(build, seed=1), json.loads(json.dumps(report.description)))
    fresh.load_state_dict(small.state_dict())
    exactly(fresh, small, x, tolerance=0.0)


def test_groups_follow_units_through_the_network():
    found = groups(lenet_5(), torch.zeros(2, 1, 28, 28))
    assert torch.equal(found["3"].inputs, found["0"].outputs)
    assert torch.equal(found["7"].inputs, found["3"].outputs.repeat_interleave(16))
    assert torch.equal(found["9"].inputs, found["7"].outputs)
    labels = torch.cat([found[name].outputs for name in found])
    assert len(labels.unique()) == 20 + 50 + 500 + 10
    tied = groups(Block(), torch.zeros(2, 1, 7, 7))
    assert torch.equal(tied["stem"].outputs, tied["two"].outputs)
    assert torch.equal(tied["stem"].outputs, tied["head"].inputs)
    assert not set(tied["one"].outputs.tolist()) & set(tied["two"].outputs.tolist())


def test_settings_of_the_layers_survive():
    net = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, dilation=2, bias=False), nn.Conv2d(6, 2, 1))
    net[0].weight.requires_grad_(False)
    x = torch.randn(2, 4, 16, 16)
    state = torch.get_rng_state()
    small = cut(net, x, {"0": Mask(outputs=keep(6, 1, 2), inputs=keep(4, 0, 3))}).net
    assert torch.equal(state, torch.get_rng_state())
    front, conv = small[0]
    assert front.index.tolist() == [0, 3]
    assert (conv.stride, conv.dilation, conv.bias) == ((2, 2), (2, 2), None)
    assert not conv.weight.requires_grad
    assert small[1].weight.requires_grad
    assert torch.equal(conv.weight, net[0].weight[[1, 2]][:, [0, 3]])


def test_speed_is_printed():
    """Timings say nothing on a busy machine, so none is asserted."""
    for name, kept in (("lenet_300_100", 0.3), ("lenet_5", 0.3), ("vgg", 0.3)):
        build, shape = NETWORKS[name]
        net = made(build).float()
        x = torch.randn(128, *shape)
        nets = {"full": net, "cut": cut(net, x[:2], at_random(net, kept)).net}
        seconds = seconds_per_batch(nets, x, rounds=3, least_seconds=1e-3)
        assert set(seconds) == set(nets)
        print(f"{name}: {seconds['full'] / seconds['cut']:.1f} times faster")
