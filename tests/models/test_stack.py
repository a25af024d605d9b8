import copy

import pytest
import torch
from pyroccam import models
from pyroccam.data import PyroccamError, TooLarge, allowing
from pyroccam.models.networks import (
    DepthBatchNorm,
    lenet_5_caffe,
    perceptron,
    residual_conv,
    residual_mlp,
    resnet,
    take_apart,
    with_dropout,
)
from torch import nn


def plain_stack(D=4, width=6, outputs=3):
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(D)]
    return models.DepthStack(nn.Linear(5, width), blocks, nn.Linear(width, outputs)).double()


def lived_in(stack, x):
    """The stack with parameters and running statistics that are all different, in eval mode."""
    for name, p in stack.named_parameters():
        with torch.no_grad():
            p.add_(0.1 * torch.randn_like(p))
        assert p.requires_grad, name
    stack.train()
    for scale in (0.5, 1.0, 2.0):
        stack.outputs(scale * x + torch.randn_like(x))
    for name, b in stack.named_buffers():
        if name.endswith("running_var"):
            b.mul_(1 + torch.rand_like(b))
    return stack.eval()


def make(name):
    """A stack and a batch of inputs."""
    if name == "mlp":
        return residual_mlp((5,), 3, width=7, max_depth=5), torch.randn(9, 5)
    if name == "conv":
        net = residual_conv((2, 9, 9), 4, width=6, inner=3, max_depth=4, pool=2)
        return net, torch.randn(5, 2, 9, 9)
    return resnet((1, 16, 16), 3, variant="resnet18", small=True), torch.randn(3, 1, 16, 16)


STACKS = ["mlp", "conv", "resnet"]


# -- outputs ----------------------------------------------------------------------------------


def test_outputs_and_gradients_equal_a_loop_that_calls_the_head_at_each_depth():
    torch.manual_seed(0)
    stack = plain_stack()
    x, a = torch.randn(8, 5, dtype=torch.float64), None
    expected = []
    for part in (stack.stem, *stack.blocks):
        a = part(x if a is None else a)
        expected.append(stack.head(a))
    found = stack.outputs(x)
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-14)
    torch.testing.assert_close(stack(x), expected[-1], rtol=0, atol=1e-14)
    assert stack.max_depth == 4
    weights = torch.randn(5, 8, 3, dtype=torch.float64)
    got, loop = (
        torch.autograd.grad((weights * outputs).sum(), list(stack.parameters()))
        for outputs in (found, torch.stack(expected))
    )
    for g, e in zip(got, loop, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)


# -- cutting ----------------------------------------------------------------------------------


def parameters(net):
    return sum(p.numel() for p in net.parameters())


# -- adapters ---------------------------------------------------------------------------------


def test_match_adapters_share_one_for_each_stage_and_leave_the_modules_alone():
    stem = nn.Conv2d(1, 4, 3, padding=1)
    blocks = [
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
        nn.Conv2d(4, 8, 3, stride=2, padding=1).eval(),
        nn.Conv2d(8, 8, 3, padding=1),
    ]
    before = copy.deepcopy(blocks[0].state_dict())
    adapters = models.networks.match_adapters(stem, blocks, torch.randn(2, 1, 8, 8))
    assert adapters[0] is adapters[1] is not None
    assert adapters[2] is adapters[3] is None
    assert [m.training for m in (stem, *blocks)] == [True, True, False, True]
    for key, value in blocks[0].state_dict().items():
        assert torch.equal(value, before[key])
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    stack = models.DepthStack(stem, blocks, head, adapters)
    assert stack.outputs(torch.randn(5, 1, 8, 8)).shape == (4, 5, 3)
    norm = next(m for m in stack.adapters[0] if isinstance(m, DepthBatchNorm))
    assert norm.depths == 2  # statistics for the two depths that share it


@pytest.mark.parametrize(
    "refused",
    [
        lambda: take_apart(nn.Linear(1, 1), torch.zeros(1, 1)),
        lambda: plain_stack().truncated(5),
        lambda: models.DepthStack(nn.Identity(), [nn.Identity()] * 2, nn.Identity(), [None, None]),
    ],
)
def test_what_cannot_be(refused):
    with pytest.raises(PyroccamError):
        refused()


def test_resnet_keeps_the_weights_of_torchvision():
    """The deepest exit is the network itself."""
    import torchvision

    net = torchvision.models.resnet18(num_classes=5).eval()
    x = torch.randn(2, 3, 40, 40)  # stages of 10, 5, 3 and 2 pixels a side
    with torch.no_grad():
        torch.testing.assert_close(take_apart(net, x).eval()(x), net(x))


@pytest.mark.parametrize("side", [14, 28, 30])
def test_match_adapters_reach_resolutions_that_do_not_divide(side):
    halve = [nn.Conv2d(1, 1, 3, stride=2, padding=1) for _ in range(3)]  # 28 -> 14 -> 7 -> 4
    adapters = models.networks.match_adapters(nn.Identity(), halve, torch.randn(2, 1, side, side))
    stack = models.DepthStack(nn.Identity(), halve, nn.Flatten(), adapters)
    last = -(-side // 8)
    assert stack.outputs(torch.randn(2, 1, side, side)).shape == (4, 2, last * last)


# -- ready networks ---------------------------------------------------------------------------


def test_residual_mlp_by_hand():
    torch.manual_seed(0)
    stack = residual_mlp((2, 3), 4, width=5, max_depth=2).double().eval()
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    a = stack.stem[1](x.flatten(1))
    for d, block in enumerate(stack.blocks):
        torch.testing.assert_close(stack.outputs(x)[d], stack.head(a))
        linear, _, norm = block.f
        r = linear(a).clamp_min(0)  # normalisation after the ReLU; fresh statistics are 0 and 1
        a = a + r / (1 + norm.eps) ** 0.5
    torch.testing.assert_close(stack.outputs(x)[2], stack.head(a))


def test_residual_conv_has_the_number_of_parameters_of_the_source():
    # Antoran et al. 2020, D = 50 on MNIST: 691,453 with a residual exit of the same width.
    stack = residual_conv((1, 28, 28), 10, max_depth=50)
    block = 64 * 2 + (64 * 32 + 32) + 2 * (32 * 2) + (32 * 32 * 9 + 32) + (32 * 64 + 64)
    exit_ = (64 * 64 + 64) + 64 * 2 + (64 * 10 + 10)
    assert parameters(stack) == (25 * 64 + 64) + 50 * block + exit_


@pytest.mark.parametrize("name", STACKS)
def test_a_description_rebuilds_the_network(name):
    stack, _ = make(name)
    for one in (stack, stack.truncated(2)):
        rebuilt, shapes = (
            {k: v.shape for k, v in net.state_dict().items()}
            for net in (models.networks.build(one.description), one)
        )
        assert rebuilt == shapes
    assert stack.description["max_depth"] == stack.max_depth


def test_a_block_that_changes_its_input_in_place_is_refused():
    """It would change what the exit before it sees: outputs()[d] and at(d) would differ."""
    blocks = [nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))]
    stack = models.DepthStack(nn.Linear(2, 4), blocks, nn.Linear(4, 2))
    with pytest.raises(PyroccamError):
        stack.outputs(torch.randn(3, 2))
    harmless = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))  # not on its own input
    stack = models.DepthStack(nn.Linear(2, 4), [harmless], nn.Linear(4, 2))
    assert stack.outputs(torch.randn(3, 2)).shape == (2, 3, 2)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (residual_mlp, {"width": 10**9}),
        (residual_mlp, {"width": 10**30}),
        (residual_mlp, {"max_depth": 10**9}),
        (models.networks.perceptron, {"hidden": [1] * 100_000}),
        (models.networks.perceptron_graph, {"vertices": 10**9}),
        (models.networks.vgg, {"width": 1e300}),
    ],
)
def test_a_network_asks_for_its_size_before_it_is_built(make, sizes):
    shape = (3, 32, 32) if make is models.networks.vgg else (2,)
    with allowing("100MB"), pytest.raises(TooLarge, match="of memory"):
        make(shape, 3, **sizes)


@pytest.mark.parametrize("name", STACKS)
def test_shorter_stacks_and_single_exits_are_rows_of_the_full_one(name):
    """Each shares nothing with it, and single exits are plain and smaller."""
    torch.manual_seed(1)
    stack, x = make(name)
    stack = lived_in(stack, x)
    D, before = stack.max_depth, copy.deepcopy(stack.state_dict())
    with torch.no_grad():
        full = stack.outputs(x)
        spread = (full[1:] - full[:-1]).abs().amax((1, 2))
        assert (spread > 1e-2).all()  # or an exit mistaken for its neighbour would pass
        sizes = []
        for d in range(D + 1):
            short, exit_ = stack.truncated(d), stack.at(d)
            assert short.max_depth == d
            torch.testing.assert_close(short.outputs(x), full[: d + 1], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(exit_(x), full[d], rtol=1e-5, atol=1e-5)
            assert not any(isinstance(m, DepthBatchNorm) for m in exit_.modules())
            sizes.append(parameters(exit_))
            for cut in (short, exit_):
                for t in cut.state_dict().values():
                    t.fill_(7)
        assert sizes == sorted({*sizes})
    for key, value in stack.state_dict().items():
        assert torch.equal(value, before[key])


# -- dropout in front of layers -----------------------------------------------------------------


def rates(net):
    return {n: m.p for n, m in net.named_modules() if isinstance(m, nn.Dropout)}


def test_where_dropout_goes():
    net = perceptron((4,), 2, hidden=(8, 6))
    dropped = with_dropout(net, 0.3)
    assert rates(dropped) == {"3.0": 0.3, "5.0": 0.3}
    assert rates(net) == {}
    x = torch.randn(5, 4)
    torch.testing.assert_close(dropped.eval()(x), net.eval()(x))
    assert rates(with_dropout(lenet_5_caffe((1, 28, 28), 10))) == {"5.0": 0.5, "7.0": 0.5}
    assert rates(with_dropout(net, 0.3, "1")) == {"1.0": 0.3}
    assert rates(with_dropout(nn.Linear(3, 2), 0.3, [""])) == {"0": 0.3}
    for wrong, layers in ((net, ["2"]), (nn.Sequential(nn.Conv1d(2, 3, 3)), None)):
        with pytest.raises(PyroccamError):
            with_dropout(wrong, layers=layers)
