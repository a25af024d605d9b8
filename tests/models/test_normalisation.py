import copy

import pytest
import torch
from pyroccam import models
from pyroccam.data import PyroccamError
from pyroccam.models.networks import DepthBatchNorm, without_statistics
from torch import nn

K, B, C = 3, 7, 5


def separate(norm):
    """K ordinary normalisations with statistics of their own and one affine part."""
    norms = [copy.deepcopy(norm) for _ in range(K)]
    for other in norms[1:]:
        other.weight, other.bias = norms[0].weight, norms[0].bias
    return norms


def case(kind, **options):
    torch.manual_seed(3)
    norm = kind(C, **options).double()
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    shape = (B, C) if kind is nn.BatchNorm1d else (B, C, 4, 2)
    draws = range(4)
    batches = [[(k + 1) * torch.randn(shape).double() + k for k in range(K)] for _ in draws]
    return norm, batches


@pytest.mark.parametrize(("kind", "options"), [
    (nn.BatchNorm1d, {}), (nn.BatchNorm2d, {}), (nn.BatchNorm2d, {"momentum": 0.3, "eps": 1e-2}),
    (nn.BatchNorm1d, {"momentum": None}), (nn.BatchNorm2d, {"affine": False}),
    (nn.BatchNorm1d, {"track_running_stats": False}),
])  # fmt: skip
def test_equals_separate_normalisations_that_share_their_affine_part(kind, options):
    norm, batches = case(kind, **options)
    theirs, mine = separate(norm), DepthBatchNorm(copy.deepcopy(norm), K)
    for train in (True, True, False, True):
        mine.train(train)
        xs = [x.requires_grad_() for x in batches.pop()]
        expected = torch.cat([m.train(train)(x) for m, x in zip(theirs, xs, strict=True)])
        got = mine(torch.cat(xs))
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        upstream = torch.randn_like(expected)
        inputs = xs + ([theirs[0].weight, theirs[0].bias] if norm.affine else [])
        ours = xs + ([mine.weight, mine.bias] if norm.affine else [])
        wanted = torch.autograd.grad((upstream * expected).sum(), inputs)
        found = torch.autograd.grad((upstream * got).sum(), ours)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)
    if norm.track_running_stats:
        for name in ("running_mean", "running_var"):
            want = torch.stack([getattr(m, name) for m in theirs])
            torch.testing.assert_close(getattr(mine, name), want, rtol=1e-12, atol=1e-12)
        assert int(mine.num_batches_tracked) == 3
    with pytest.raises(PyroccamError):  # rows that do not divide
        mine(got[1:])


@pytest.mark.parametrize("rows", [[0], [2], [0, 1], [1, 2]])
def test_select_keeps_the_statistics_of_the_depths_it_is_asked_for(rows):
    norm, batches = case(nn.BatchNorm1d, momentum=0.3, eps=1e-2)
    full = DepthBatchNorm(norm, K)
    for xs in batches:
        full(torch.cat(xs))
    full.eval()
    some = full.select(rows)
    assert isinstance(some, DepthBatchNorm if len(rows) > 1 else nn.BatchNorm1d)
    assert not some.training
    assert int(some.num_batches_tracked) == 4
    xs = batches[0]
    expected = full(torch.cat(xs)).chunk(K)
    got = some(torch.cat([xs[k] for k in rows])).chunk(len(rows))
    for row, k in enumerate(rows):
        torch.testing.assert_close(got[row], expected[k], rtol=1e-12, atol=1e-12)
    assert some.weight.data_ptr() != full.weight.data_ptr()


def test_a_head_of_another_stack_is_refused_and_the_original_stays_what_it_was():
    """Statistics of two depths must not be taken for those of four."""
    head = nn.Sequential(nn.BatchNorm1d(C), nn.Linear(C, 2))
    stack = models.DepthStack(nn.Identity(), [nn.Identity()], head)
    with pytest.raises(PyroccamError):
        models.DepthStack(nn.Identity(), [nn.Identity()] * 3, stack.head)
    assert type(head[0]) is nn.BatchNorm1d
    assert models.DepthStack(nn.Identity(), [nn.Identity()] * 3, head).head[0].depths == 4


# -- why it is there: the head that all depths share ------------------------------------------


@pytest.mark.parametrize("options", [{}, {"eps": 0.1}, {"affine": False}, {"momentum": None}])
def test_a_scale_and_a_shift_say_what_statistics_did(options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, **options), nn.ReLU())
    for _ in range(5):
        net(5.0 + 3.0 * torch.randn(16, 2, 6, 6))
    if options.get("affine", True):
        nn.init.normal_(net[1].weight)  # of both signs
        nn.init.normal_(net[1].bias)
    net, x = net.double().eval(), torch.randn(4, 2, 6, 6, dtype=torch.float64)
    before = net(x)
    after = without_statistics(copy.deepcopy(net))
    torch.testing.assert_close(after(x), before, rtol=1e-12, atol=1e-12)
    gone = not after[1].running_mean.any() and (after[1].running_var == 1).all()
    assert bool(gone and after[1].num_batches_tracked == 0) == options.get("affine", True)


class _FromOne(nn.BatchNorm1d):
    """Its scale is 1 + weight, which the name of its class does not say."""

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        return nn.functional.batch_norm(x, mean, var, 1 + self.weight, self.bias, self.training)


def tied():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    net[2].weight = net[0].weight
    return net


@pytest.mark.parametrize(
    "net",
    [
        _FromOne(3),
        nn.BatchNorm1d(3, affine=False),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.utils.parametrize.register_parametrization(nn.BatchNorm1d(3), "weight", nn.Softplus()),
        tied(),
    ],
)
def test_what_says_more_than_a_scale_and_a_shift_stays(net):
    torch.manual_seed(0)
    for _ in range(5):
        net(5.0 + 3.0 * torch.randn(16, 3))
    x = torch.randn(4, 3)
    before = net.eval()(x)
    torch.testing.assert_close(without_statistics(net)(x), before)
