import copy
import itertools

import pytest
import torch
from pyroccam import models
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.data.limits import allowing
from pyroccam.models.networks.normalisation import DepthBatchNorm
from pyroccam.models.networks.ready import residual_conv, residual_mlp, resnet, take_apart
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


def test_adapters_may_be_none_one_for_all_or_one_for_each_depth():
    torch.manual_seed(0)
    stem, head = nn.Linear(2, 3), nn.Linear(4, 2)
    blocks, early = [nn.Linear(3, 3), nn.Linear(3, 4)], nn.Linear(3, 4)
    stack = models.DepthStack(stem, blocks, head, [early, early, None])
    x = torch.randn(5, 2)
    a0 = stem(x)
    a1 = blocks[0](a0)
    expected = torch.stack([head(early(a0)), head(early(a1)), head(blocks[1](a1))])
    torch.testing.assert_close(stack.outputs(x), expected)
    assert len(stack.adapters) == 1  # the same module is held, and trained, once
    shared = models.DepthStack(stem, [nn.Linear(3, 3)], head, early)
    torch.testing.assert_close(shared.outputs(x)[0], head(early(a0)))


def test_outputs_keep_further_dimensions_of_the_head():
    head = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (3, 2)))
    stack = models.DepthStack(nn.Linear(2, 6), [nn.Linear(6, 6)], head)
    assert stack.outputs(torch.randn(5, 2)).shape == (2, 5, 3, 2)


def test_a_stack_without_blocks_has_one_depth():
    head = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    stack = models.DepthStack(nn.Linear(2, 3), [], head)
    x = torch.randn(6, 2)
    torch.testing.assert_close(stack.outputs(x)[0], stack.head(stack.stem(x)))
    assert stack.max_depth == 0


def test_wrong_number_of_adapters_is_named():
    with pytest.raises(PyroccamError):
        models.DepthStack(nn.Identity(), [nn.Identity()] * 2, nn.Identity(), [None, None])


def test_activations_that_do_not_fit_the_head_are_named():
    stack = models.DepthStack(nn.Linear(2, 3), [nn.Linear(3, 4)], nn.Linear(4, 2))
    with pytest.raises(PyroccamError):
        stack.outputs(torch.randn(5, 2))


# -- cutting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STACKS)
def test_truncated_and_single_exits_equal_the_rows_of_the_full_stack(name):
    torch.manual_seed(1)
    stack, x = make(name)
    stack = lived_in(stack, x)
    D = stack.max_depth
    with torch.no_grad():
        full = stack.outputs(x)
        spread = (full[1:] - full[:-1]).abs().amax((1, 2))
        assert (spread > 1e-2).all()  # or an exit mistaken for its neighbour would pass
        for k in sorted({0, 1, D // 2, D - 1, D}):
            short = stack.truncated(k)
            assert short.max_depth == k
            torch.testing.assert_close(short.outputs(x), full[: k + 1], rtol=1e-5, atol=1e-5)
        for d in range(D + 1):
            torch.testing.assert_close(stack.at(d)(x), full[d], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", STACKS)
def test_cut_networks_share_no_storage(name):
    torch.manual_seed(1)
    stack, _ = make(name)
    mine = {t.untyped_storage().data_ptr() for t in stack.state_dict().values()}
    k = stack.max_depth - 1
    for cut in (stack.truncated(k), stack.at(k), stack.truncated(0)):
        theirs = {t.untyped_storage().data_ptr() for t in cut.state_dict().values()}
        assert not mine & theirs
    before = copy.deepcopy(stack.state_dict())
    short = stack.truncated(k)
    assert len(stack.blocks) == k + 1  # the original keeps its blocks
    with torch.no_grad():
        for p in short.parameters():
            p.fill_(7.0)
    for key, value in stack.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


def parameters(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("name", STACKS)
def test_single_exits_are_plain_and_smaller(name):
    stack, _ = make(name)
    D = stack.max_depth
    sizes = [parameters(stack.at(d)) for d in range(D + 1)]
    assert all(a < b for a, b in itertools.pairwise(sizes))
    assert parameters(stack.truncated(1)) < parameters(stack)
    for d in range(D + 1):
        assert not any(isinstance(m, DepthBatchNorm) for m in stack.at(d).modules())


def test_cut_networks_can_be_trained_on():
    torch.manual_seed(0)
    stack, x = make("conv")
    short = stack.truncated(2).train()
    short.outputs(x).square().mean().backward()
    assert all(p.grad is not None for p in short.parameters())
    assert all(p.grad is None for p in stack.parameters())


def test_truncating_twice_equals_truncating_once():
    torch.manual_seed(2)
    stack, x = make("resnet")
    stack = lived_in(stack, x)
    with torch.no_grad():
        once, twice = stack.truncated(3).outputs(x), stack.truncated(5).truncated(3).outputs(x)
    torch.testing.assert_close(once, twice, rtol=0, atol=0)


@pytest.mark.parametrize("depth", [-1, 6])
def test_a_depth_that_is_not_there(depth):
    stack, _ = make("mlp")
    for cut in (stack.truncated, stack.at):
        with pytest.raises(PyroccamError):
            cut(depth)


# -- adapters ---------------------------------------------------------------------------------


def stages():
    stem = nn.Conv2d(1, 4, 3, padding=1)
    blocks = [
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, padding=1),
    ]
    return stem, blocks


def test_match_adapters_share_one_for_each_stage_and_leave_the_modules_alone():
    torch.manual_seed(0)
    stem, blocks = stages()
    blocks[1].eval()
    before = copy.deepcopy(blocks[0].state_dict())
    adapters = models.networks.match_adapters(stem, blocks, torch.randn(2, 1, 8, 8))
    assert adapters[0] is adapters[1] is not None
    assert adapters[2] is adapters[3] is None
    assert stem.training
    assert blocks[0].training
    assert not blocks[1].training
    for key, value in blocks[0].state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    out = adapters[0](torch.randn(2, 4, 8, 8))
    assert out.shape == (2, 8, 4, 4)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    stack = models.DepthStack(stem, blocks, head, adapters)
    assert stack.outputs(torch.randn(5, 1, 8, 8)).shape == (4, 5, 3)
    norm = next(m for m in stack.adapters[0] if isinstance(m, DepthBatchNorm))
    assert norm.depths == 2  # statistics for the two depths that share it


def test_match_adapters_refuse_what_they_cannot_match():
    with pytest.raises(PyroccamError):
        models.networks.match_adapters(nn.Linear(2, 3), [nn.Linear(3, 4)], torch.randn(2, 2))
    halve = [nn.Conv2d(1, 2, 3, stride=2)]
    with pytest.raises(PyroccamError):
        models.networks.match_adapters(nn.Identity(), halve, torch.randn(2, 1, 9, 9))


@pytest.mark.parametrize("side", [7, 14, 28, 30, 32])
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


@pytest.mark.parametrize(
    "refused",
    [
        lambda: residual_conv((1, 5, 5), 2),
        lambda: residual_conv((7,), 2),
        lambda: residual_mlp((2,), 2, width=0),
        lambda: residual_mlp((2,), 2, max_depth=-1),
        lambda: residual_mlp((2,), 2, width=2.5),
        lambda: models.networks.build({"network": "lstm"}),
    ],
)
def test_networks_that_cannot_be(refused):
    with pytest.raises(PyroccamError):
        refused()


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


def test_resnet_keeps_the_weights_of_torchvision_and_refuses_others():
    import torchvision

    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=5).eval()
    x = torch.randn(2, 3, 40, 40)  # stages of 10, 5, 3 and 2 pixels a side
    with torch.no_grad():
        expected = net(x)
        # the deepest exit is the network itself
        torch.testing.assert_close(take_apart(net, x).eval()(x), expected)
    with pytest.raises(PyroccamError):
        take_apart(torchvision.models.vgg11(), x)
    with pytest.raises(PyroccamError):
        resnet((1, 16, 16), 2, variant="resnet19")


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


@pytest.mark.parametrize("make", [residual_mlp, residual_conv, models.networks.cell_graph])
def test_what_a_network_asks_changes_no_bits(make):
    torch.manual_seed(0)
    plain = make.__wrapped__((1, 8, 8), 3).state_dict()
    torch.manual_seed(0)
    asked = make((1, 8, 8), 3).state_dict()
    assert all(torch.equal(asked[name], value) for name, value in plain.items())
