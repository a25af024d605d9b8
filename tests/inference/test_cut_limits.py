"""What cannot be cut exactly is left whole, named or refused."""

import pytest
import torch
from cutting import cut_exactly, exactly, first, keep, lenet_5, made
from plain import lenet_300_100, network
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.cutting.masks import Mask, apply_masks, masked
from pyroccam.inference.cutting.surgery import cut
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
    with pytest.raises(RuntimeError, match="Hidden cannot be cut"):
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
    with pytest.raises(PyroccamError):
        cut(branches, torch.zeros(2, 3))


CROSSED = {"1": Mask(outputs=keep(300, 1, 2)), "3": Mask(inputs=keep(300, 3, 4))}


@pytest.mark.parametrize(
    "masks",
    [
        {"1": first(784, 5), "3": Mask(inputs=keep(300))},
        {"5": Mask(outputs=keep(10))},
        CROSSED,
        {"0": Mask()},
        {"3": Mask(inputs=keep(50))},
        {"3": Mask(outputs=torch.ones(100))},
    ],
)
def test_masks_that_do_not_fit_or_leave_no_path(masks):
    with pytest.raises(PyroccamError):
        cut(made(lenet_300_100), torch.zeros(2, 1, 28, 28).double(), masks)


def test_other_errors():
    net = lenet_5()
    with pytest.raises(PyroccamError):
        cut(net, torch.zeros(2, 3, 28, 28))
    with pytest.raises(PyroccamError):
        apply_masks(net, {"3": keep(5)})
    with pytest.raises(PyroccamError):
        shrink(net, Plan({"fc": Edit(outputs=[0])}))
    prune.l1_unstructured(net[0], "weight", 0.5)
    with pytest.raises(PyroccamError):
        cut(net, torch.zeros(2, 1, 28, 28), {"0": Mask(outputs=keep(20, 1))})


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
