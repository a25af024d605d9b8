"""What cannot be cut exactly is left whole, named or refused."""

import pytest
import torch
from cutting import NETWORKS, at_random, block, cut_exactly, exactly, first, keep, lenet_5, made
from plain import lenet_300_100, network
from pyroccam import inference
from pyroccam.inference.cutting.cost import count_parameters
from pyroccam.inference.cutting.masks import Mask, apply_masks, masked
from pyroccam.inference.cutting.surgery import cut, groups
from pyroccam.models.plain.description import describe, fill, rebuild, state
from pyroccam.models.plain.surgery import Edit, Plan, shrink
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune


def tied():
    net = network(
        lambda net, x: net.c(F.relu(net.b(F.relu(net.a(x))))),
        a=nn.Linear(6, 6), b=nn.Linear(6, 6), c=nn.Linear(6, 2),
    )  # fmt: skip
    net.b.weight = net.a.weight
    return net


def twice():
    return network(
        lambda net, x: net.c(F.relu(net.a(F.relu(net.a(x))))), a=nn.Linear(6, 6), c=nn.Linear(6, 2)
    )


@pytest.mark.parametrize(("build", "why"), [(twice, "more than once"), (tied, "shares")])
def test_shared_weights_are_left_whole(build, why):
    masks = {"a": Mask(inputs=keep(6, 0, 1, 2, 4)), "c": Mask(inputs=keep(6, 3, 4))}
    small, report = cut_exactly(made(build), torch.randn(5, 6).double(), masks)
    assert why in report.left_whole["a"]
    assert small.a.weight.shape == (6, 6)
    assert list(report.layers) == ["c"]
    assert report.layers["c"].inputs.tolist() == [3, 4]  # by a choice in front


def direct():
    """It uses the weight of a layer without calling it."""
    return network(
        lambda net, x: net.b(net.a(x)) + net.a.weight.sum(), a=nn.Linear(6, 5), b=nn.Linear(5, 2)
    )


def with_hook():
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    net[0].register_forward_hook(lambda module, args, out: out.flip(1))
    return net


@pytest.mark.parametrize(
    ("build", "name", "last", "why"),
    [(direct, "a", "b", "directly"), (with_hook, "0", "2", "hooks")],
)
def test_layers_used_in_other_ways_are_left_whole(build, name, last, why):
    masks = {name: Mask(outputs=keep(5, 0, 1)), last: Mask(inputs=keep(5, 0, 1, 3, 4))}
    small, report = cut_exactly(made(build), torch.randn(5, 6).double(), masks)
    assert why in report.left_whole[name]
    assert small.get_submodule(name).weight.shape == (5, 6)


@pytest.mark.parametrize(
    "between", [nn.LayerNorm(6), nn.Softmax(1), nn.PReLU(6), nn.GroupNorm(2, 6)], ids=str
)
def test_steps_that_mix_units_need_them_all(between):
    net = made(lambda: nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 3)))
    masks = {"0": Mask(outputs=keep(6, 0, 3, 4)), "2": Mask(inputs=keep(6, 1, 3, 5))}
    _, report = cut_exactly(net, torch.randn(5, 4).double(), masks)
    assert len(report.layers["0"].outputs) == 6
    assert report.layers["2"].inputs.tolist() == [1, 3, 5]


def test_depthwise_channels_go_with_the_ones_they_are_made_of():
    net = made(lambda: nn.Sequential(
        nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 3, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ))  # fmt: skip
    masks = {"0": Mask(outputs=keep(6, 0, 1, 2, 3)), "2": Mask(outputs=keep(6, 1, 2, 4))}
    small, report = cut_exactly(net, torch.randn(4, 2, 8, 8).double(), masks)
    assert small[2].groups == small[2].in_channels == small[0].out_channels == 2
    assert report.layers["2"].inputs.tolist() == report.layers["2"].outputs.tolist() == [1, 2]


def test_a_constant_depthwise_channel_uses_nothing():
    net = made(lambda: nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.GroupNorm(2, 4),
    ))  # fmt: skip
    net[0].bias.data[2] = 1.5
    x = torch.randn(4, 2, 8, 8).double()
    masks = {"0": Mask(inputs=keep(2, 1)), "1": Mask(outputs=keep(4, 0, 2, 3))}
    net[0].weight.data[2] = 0.0  # channel 2 is 1.5, and the normalisation needs all four
    small, report = cut(net, x, masks)
    assert report.layers["1"].outputs.tolist() == [0, 1, 2, 3]
    assert (small[0][1].weight[1] == 0).all()  # zero after the depthwise step, so unused before
    assert (small[0][1].bias[[1, 2]] == 0).all()
    torch.testing.assert_close(small[1].bias[2], 1.5 * net[1].weight[2].sum())
    assert (small(x) - masked(net, masks)(x)).abs().max() < 1e-10


def test_grouped_convolutions_are_left_whole_and_masked_by_input():
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, 3, groups=2)))
    masks = {"1": Mask(inputs=keep(4, 0, 3))}
    weight = masked(net, masks)[1].weight
    kept = [(weight[o, i] != 0).all().item() for o, i in [(0, 0), (0, 1), (5, 0), (5, 1)]]
    assert kept == [True, False, False, True]
    _, report = cut_exactly(net, torch.randn(4, 2, 8, 8).double(), masks)
    assert report.left_whole == {"1": "it has groups"}
    assert len(report.layers["0"].outputs) == 4


def test_what_writes_in_place_is_seen():
    def forward(net, x):
        x = net.a(x)
        y = F.relu_(x)
        return net.b(torch.cat([x, y], 1))  # both are the rectified ones

    net = made(lambda: network(forward, a=nn.Linear(4, 3), b=nn.Linear(6, 2)))
    net.a.bias.data[1] = -1.0
    net.a.weight.data[1] = 0.0  # so unit 1 is -1, and 0 after
    cut_exactly(net, torch.randn(5, 4).double(), {})


def test_what_a_trace_hides_is_refused():
    def forward(net, x):
        kept = out = net.a(x)
        out += net.b(x)
        return net.c(kept)

    parts = {"a": nn.Linear(4, 3), "b": nn.Linear(4, 3), "c": nn.Linear(3, 2)}
    message = r"Hidden cannot be cut.*of size .* differ by.*read again.*masked\(net"
    with pytest.raises(RuntimeError, match=message):
        cut(made(lambda: network(forward, "Hidden", **parts)), torch.randn(5, 4).double())


def test_a_large_output_does_not_hide_that_others_are_wrong():
    def forward(net, x):
        kept = out = net.a(x)
        out += 0.1 * torch.tanh(net.b(x))
        return kept * 1.0

    x = torch.randn(8, 4)
    x[0] *= 1e4
    with pytest.raises(RuntimeError, match="Hidden cannot be cut"):
        cut(network(forward, "Hidden", a=nn.Linear(4, 3, bias=False), b=nn.Linear(4, 3)), x)


@pytest.mark.parametrize("last", [torch.zeros_like, torch.log, lambda x: 1 / (0 * x), torch.mean])
def test_outputs_that_are_zero_or_not_finite_or_one_number_can_be_compared(last):
    def build():
        inner = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        return network(lambda whole, x: last(whole.net(x)), net=inner)

    net = made(build)
    x = torch.randn(8, 4).double()
    masks = {"net.0": Mask(inputs=keep(4, 1, 2)), "net.2": Mask(inputs=keep(6, 0, 5))}
    small, report = cut(net, x, masks)
    assert report.sizes == [2, 2]
    torch.testing.assert_close(small(x), masked(net, masks)(x), equal_nan=True)


def test_a_path_that_depends_on_the_data_is_refused():
    branches = network(lambda net, x: x if x.sum() > 0 else -x, "Branches")
    with pytest.raises(ValueError, match="Branches cannot be traced by torch.fx"):
        cut(branches, torch.zeros(2, 3))


CROSSED = {"1": Mask(outputs=keep(300, 1, 2)), "3": Mask(inputs=keep(300, 3, 4))}


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (
            {"1": first(784, 5), "3": Mask(inputs=keep(300))},
            "Layer '3' keeps 0 of its 300 inputs.*prunes less",
        ),
        ({"5": Mask(outputs=keep(10))}, "'5' keeps 0 of its 10 outputs"),
        (CROSSED, "at layer '3' .its mask keeps 2 of 300 inputs"),
    ],
)
def test_a_layer_without_groups_is_named(masks, message):
    with pytest.raises(ValueError, match=message):
        cut(made(lenet_300_100), torch.zeros(2, 1, 28, 28).double(), masks)


@pytest.mark.parametrize(
    ("masks", "error", "message"),
    [
        ({"fc9": Mask()}, ValueError, "no linear or convolutional layer 'fc9'.*has '0', '3', '7'"),
        ({"1": Mask()}, ValueError, "layer '1' to mask"),
        ({"0": keep(20)}, ValueError, "mask of '0' must be a Mask, got Tensor"),
        ({"7": Mask(inputs=keep(50))}, ValueError, r"'7' has shape \(50,\), expected \(800,\)"),
        ({"0": Mask(outputs=keep(1))}, ValueError, r"outputs mask of '0' .*expected \(20,\)"),
        ({"0": Mask(outputs=torch.ones(20))}, ValueError, "tensor of bools, got torch.float32"),
        ({"0": Mask(inputs=[True])}, ValueError, "tensor of bools, got list"),
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
    with pytest.raises(ValueError, match="do not fit Sequential at 'fc'"):
        shrink(net, Plan({"fc": Edit(outputs=[0])}))
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


class Optional(nn.Module):
    """Parameters with defaults decide the path, and the batch is counted by ``len``."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 5, 3), nn.Linear(5 * 16, 3)

    def forward(self, x, double=False, other=None, *, power=1):
        x = torch.relu(self.conv(x))
        if other is not None:
            x = x + other.mean()
        if double:
            x = 2 * x
        if power > 1:
            x = x**power
        return self.head(x.view(len(x), -1))


class Sized(Optional):
    """The same with a size that a cut has to change."""

    def forward(self, x, double=False, other=None):
        x = torch.relu(self.conv(x)) if not double else x
        if other is not None:
            x = x + other.mean()
        return self.head(x.view(-1, 80))


@pytest.mark.parametrize("kind", [Optional, Sized])
def test_parameters_with_defaults_and_the_length_of_the_batch(kind):
    net = made(kind)
    masks = {"conv": Mask(outputs=keep(5, 1, 3))}
    small, report = cut_exactly(net, torch.randn(4, 1, 6, 6).double(), masks)
    assert report.architecture == "2-32"
    one = torch.randn(1, 1, 6, 6).double()
    torch.testing.assert_close(small(one), masked(net, masks)(one))
    assert "len" not in globals()


def test_what_is_given_is_no_default():
    whole = network(lambda whole, x, other=None: whole.net(x, other=other), net=made(Sized)).eval()
    x, other = torch.randn(3, 1, 6, 6).double(), torch.randn(3, 2).double()
    masks = {"net.conv": Mask(outputs=keep(5, 1, 3))}
    small, _ = cut(whole, (x, other), masks)
    torch.testing.assert_close(small(x, other), masked(whole, masks)(x, other))
    assert not torch.allclose(small(x, other), masked(whole, masks)(x))


def test_transposed_convolutions_with_groups_keep_zeros():
    net = made(lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 2, groups=2), nn.Conv1d(6, 3, 1)))
    masks = {"0": Mask(inputs=keep(4, 0, 3), outputs=keep(6, 0, 1, 5))}
    zeros = masked(net, masks)
    weight = torch.zeros_like(net[0].weight)
    weight[0, :2], weight[3, 2] = net[0].weight[0, :2], net[0].weight[3, 2]
    assert torch.equal(zeros[0].weight, weight)
    assert torch.equal(zeros[0].bias != 0, keep(6, 0, 1, 5))
    small, report = cut_exactly(net, torch.randn(3, 4, 5).double(), masks)
    assert report.left_whole == {"0": "it has groups"}
    assert torch.equal(small[0].weight, weight)


def test_a_layer_that_is_the_whole_network_keeps_zeros():
    net = made(lambda: nn.Linear(4, 3))
    masks = {"": Mask(inputs=keep(4, 0, 3))}
    x = torch.randn(3, 4).double()
    small, report = cut_exactly(net, x, masks)
    assert report.left_whole == {"": "it is the whole network (in an nn.Sequential it can be cut)"}
    assert torch.equal(small.weight[:, 1:3], torch.zeros(3, 2).double())
    inside, _ = cut(nn.Sequential(net), x, {"0": masks[""]})
    assert count_parameters(inside) == 3 * 2 + 3
    exactly(inside, small, x)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_cut_network_is_rebuilt_from_plain_data(name, tmp_path):
    build, shape = NETWORKS[name]
    net = made(build)
    x = torch.randn(3, *shape).double()
    small = cut(net, x, at_random(net, 0.4, least=3)).net
    fresh = inference.load(inference.save(small, tmp_path))
    exactly(fresh, small, x, tolerance=0.0)


def test_groups_follow_units_through_the_network():
    found = groups(lenet_5(), torch.zeros(2, 1, 28, 28))
    assert torch.equal(found["3"].inputs, found["0"].outputs)
    assert torch.equal(found["7"].inputs, found["3"].outputs.repeat_interleave(16))
    assert torch.equal(found["9"].inputs, found["7"].outputs)
    labels = torch.cat([found[name].outputs for name in found])
    assert len(labels.unique()) == 20 + 50 + 500 + 10
    tied = groups(block(), torch.zeros(2, 1, 7, 7))
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


class WithConstants(nn.Module):
    """Makes constants in its forward, and uses a part of a buffer."""

    def __init__(self, written_out):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 2)
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, 10).reshape(2, 5))
        self.written_out = written_out

    def forward(self, x):
        h = torch.relu(self.a(x)) * torch.tensor(0.5) + self.shift[:1]
        return self.b(h.view(-1, 5) if self.written_out else h)


@pytest.mark.parametrize("written_out", [False, True])
def test_constants_made_in_forward(written_out):
    net = made(lambda: WithConstants(written_out))
    members = set(vars(net))
    masks = {"a": Mask(outputs=keep(5, 0, 3)), "b": Mask(inputs=keep(5, 0, 3))}
    x = torch.randn(4, 6).double()
    small, _ = cut_exactly(net, x, masks)
    assert set(vars(net)) == members
    again, _ = cut(small, x)
    exactly(again, small, x)
    for one in (small, again):
        description = describe(one)  # of the whole network it was no trouble either
        rebuilt = rebuild(description)
        fill(rebuilt, description, state(one, description))
        exactly(rebuilt, small, x)
