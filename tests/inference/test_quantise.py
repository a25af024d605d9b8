"""Rounding a whole network, and the codebook."""

import pytest
import torch
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.rounding.bits import LayerBits, round_fixed_point, round_significand
from pyroccam.inference.rounding.quantise import (
    Codebook,
    FixedPoint,
    Significand,
    cluster,
    quantised,
)
from torch import nn


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    nn.init.normal_(net[1].running_mean)
    return net.train()


def test_every_layer_its_own_rounding():
    net = network()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    out = quantised(
        net, {"0": LayerBits(5, 3), "3.weight": FixedPoint(6), "3.bias": Significand(2)}
    )
    assert not out.training
    assert net.training
    assert torch.equal(out[0].weight, round_significand(before["0.weight"], 5))
    assert torch.equal(out[3].weight, round_fixed_point(before["3.weight"], 6))
    assert torch.equal(out[3].bias, round_significand(before["3.bias"], 2))
    for name in ("0.bias", "1.weight", "1.running_mean", "1.num_batches_tracked"):
        assert torch.equal(out.state_dict()[name], before[name])
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_one_number_rounds_the_weights_and_rest_the_rest():
    net = network()
    out = quantised(net, 4, rest=torch.float16)
    assert torch.equal(out[3].weight, round_significand(net[3].weight, 4))
    for name in ("0.bias", "1.running_mean", "3.bias"):
        old, new = net.state_dict()[name], out.state_dict()[name]
        assert torch.equal(new, old.half().float())
        assert not torch.equal(new, old)
    same = quantised(net, None)
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in same.state_dict().items())


def test_what_cannot_be_rounded_is_named():
    net = network()
    with pytest.raises(PyroccamError):
        quantised(net, {"fc": 3})
    with pytest.raises(PyroccamError):
        quantised(net, 0)
    net[3].bias.data[0] = 1e6
    with pytest.raises(PyroccamError):
        quantised(net, 5, rest=torch.float16)
    net[3].weight.data[0, 0] = float("nan")
    with pytest.raises(PyroccamError):
        quantised(net, 5)


def test_an_empty_layer_needs_no_bits():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    net[1].weight = nn.Parameter(torch.zeros(0, 3))
    assert quantised(net, {"1": LayerBits(0, 0, 0)})[1].weight.shape == (0, 3)


def test_a_codebook_keeps_zeros():
    w = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    w[w.abs() < 0.5] = 0
    out = Codebook(8)(w)
    assert torch.equal(out == 0, w == 0)
    assert len(out[out != 0].unique()) <= 8
    assert not Codebook(4)(torch.zeros(3)).any()


@pytest.mark.parametrize("size", [1, 2, 5, 32])
def test_clusters_are_a_fixed_point_of_k_means(size):
    w = torch.randn(3000, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    book, index = cluster(w, size)
    assert torch.equal(book, book.sort().values)
    assert torch.equal((w[:, None] - book).abs().argmin(1), index)  # each to its nearest
    for k in range(len(book)):  # and each centre the mean of its own
        assert w[index == k].mean() == pytest.approx(book[k].item(), abs=1e-12)
    if size > 1:
        grid = torch.linspace(w.min(), w.max(), size, dtype=w.dtype)
        assert (book[index] - w).square().sum() < (w[:, None] - grid).square().min(1).values.sum()


def test_few_values_are_their_own_clusters():
    w = torch.tensor([[0.1, 0.3], [0.3, -2.0]])
    book, index = cluster(w, 3)
    assert torch.equal(book[index], w)
    with pytest.raises(PyroccamError):
        cluster(w / 0, 3)
