"""The file of a draw: what is read is what was written, and damage is found."""

import numpy as np
import plain
import pytest
import torch
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.inference.coding.codes import CODES
from pyroccam.inference.coding.integers import BitReader, BitWriter
from pyroccam.inference.coding.scales import deviation, nearest, scaled
from pyroccam.inference.files.architecture import read_network, tensors, write_network
from pyroccam.inference.files.draw_file import Sent, decoded, encoded_draw
from pyroccam.inference.files.packed import PackedFileError
from pyroccam.models.plain.feature_choice import select
from torch import nn


class Branches(nn.Module):
    """No chain: an input goes two ways; with statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.first(x) + self.second(x).tanh())


def narrowed():
    return nn.Sequential(
        nn.Conv2d(1, 3, 5), nn.MaxPool2d(2), nn.Sequential(nn.ReLU(inplace=True), nn.Dropout()),
        nn.Flatten(), nn.Sequential(select([0, 5, 6, 40]), nn.Linear(4, 3, bias=False)),
        nn.Tanh(), nn.Linear(3, 2),
    )  # fmt: skip


NETWORKS = {
    "chain": (narrowed, (1, 12, 12), True),
    "another stride": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2)), (1, 9, 9), True),
    "dilated": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)), (1, 9, 9), False),
    "branches": (Branches, (4,), False),
}


@pytest.mark.parametrize("word", NETWORKS)
def test_a_network_is_built_again(word):
    make, shape, chain = NETWORKS[word]
    torch.manual_seed(0)
    net = make().eval()
    out = BitWriter()
    empty = write_network(net, out)
    found = read_network(BitReader(out.content()))
    assert isinstance(found, nn.Sequential) == chain
    for built in (empty, found):
        own, theirs = tensors(built, built), tensors(net, empty)
        assert [t.shape for t in own.values()] == [t.shape for t in theirs.values()]
        for tensor, value in zip(own.values(), theirs.values(), strict=True):
            tensor.copy_(value)
        x = torch.randn(5, *shape)
        assert torch.equal(built(x), net(x))
    if chain:
        assert len(out) < 220


def drawn(net, **given):
    noise = np.random.default_rng(0)
    scales = {name: 100 + 5 * i for i, (name, _) in enumerate(net.named_parameters())}
    settings = {"code": "minimal-random", "seed": 12, "bits": 6} | given
    return Sent(scales, indices=noise.integers(0, 64, 9).tolist(), **settings)


@pytest.mark.parametrize("code", ["minimal-random", "ordered-random", "a-star"])
@pytest.mark.parametrize("word", ["chain", "branches"])
def test_what_is_read_is_what_was_written(word, code, monkeypatch):
    """Also by a code that is no longer written."""
    monkeypatch.setitem(CODES, "a-star", CODES["ordered-random"])
    torch.manual_seed(1)
    net = NETWORKS[word][0]().eval()
    content, sent = encoded_draw(net, drawn(net, code=code))
    assert encoded_draw(plain.reordered(net), drawn(NETWORKS[word][0](), code=code))[0] == content
    found = decoded(content)
    for ours, theirs in zip(sent.state_dict().values(), found.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    if word == "branches":
        assert torch.equal(found.norm.running_var, net.norm.running_var)
        assert not torch.equal(found.first.weight, net.first.weight)
    assert word != "chain" or type(found) is nn.Sequential


def test_weights_of_a_file_are_these():
    """On every machine, with every version of torch and numpy."""
    net = nn.Sequential(nn.Linear(2, 2))
    draw = Sent({"0.weight": 120, "0.bias": 120}, "minimal-random", 3, 4, [7, 0])
    content, _ = encoded_draw(net, draw)
    assert content.hex() == "704411010b629e31888e00cd9cd1cf"
    found = decoded(content)
    assert found[0].weight.flatten().tolist() == [
        -0.02382802776992321, 0.11745069175958633, 0.11949621886014938, -0.6402153968811035
    ]  # fmt: skip


def test_order_of_the_tensors_may_be_another():
    net = Branches().eval()
    draw = drawn(net)
    turned = Sent(dict(reversed(draw.scales.items())), draw.code, 12, 6, draw.indices)
    content, sent = encoded_draw(net, turned)
    assert torch.equal(decoded(content).first.weight, sent.first.weight)
    assert not torch.equal(encoded_draw(net, draw)[1].first.weight, sent.first.weight)


@pytest.mark.parametrize("word", ["chain", "branches"])
def test_damage_is_found(word):
    torch.manual_seed(1)
    net = NETWORKS[word][0]().eval()
    content, _ = encoded_draw(net, drawn(net))
    for length in range(len(content)):
        with pytest.raises((PackedFileError, TooLarge)):
            decoded(content[:length])
    for place in range(0, 8 * len(content), 5 if word == "branches" else 1):
        altered = bytearray(content)
        altered[place // 8] ^= 1 << place % 8
        with pytest.raises((PackedFileError, TooLarge)):
            decoded(bytes(altered))
    with pytest.raises(PackedFileError):
        decoded(content + b"\0")


def test_what_cannot_be_coded_is_refused():
    net = nn.Sequential(nn.Linear(2, 2)).double()
    with pytest.raises(ValueError, match="0.weight"):
        encoded_draw(net, drawn(net))


def test_deviations_lie_on_a_grid():
    values = [deviation(byte) for byte in range(256)]
    np.testing.assert_allclose(values, 2.0 ** ((np.arange(256) - 128) / 8), rtol=1e-15)
    assert deviation(128) == 1.0
    assert [nearest(1.04 * value) for value in values[:-1]] == [*range(255)]
    assert scaled(np.array([2.0], np.float32), 120).tolist() == [1.0]
    with pytest.raises(PyroccamError):
        nearest(1e-9)
    with pytest.raises(PyroccamError):
        deviation(256)
