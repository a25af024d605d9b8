"""The file of a draw: what is read is what was written, and damage is found."""

from dataclasses import replace

import numpy as np
import plain
import pytest
import torch
from pyroccam.data import PyroccamError, TooLarge
from pyroccam.inference.coding import BitReader, BitWriter, PackedFileError, cosine_waves
from pyroccam.inference.files import Sent, encoded_draw
from pyroccam.inference.files.architecture import read_network, tensors, write_network
from pyroccam.inference.files.draw_file import decoded
from pyroccam.models.plain import select
from torch import nn


def branches():
    """No chain: an input goes two ways; with statistics."""
    return plain.network(
        lambda net, x: net.norm(net.first(x) + net.second(x).tanh()),
        first=nn.Linear(4, 3), second=nn.Linear(4, 3), norm=nn.BatchNorm1d(3),
    )  # fmt: skip


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
    "branches": (branches, (4,), False),
}


def made(word):
    torch.manual_seed(0)
    return NETWORKS[word][0]().eval()


@pytest.mark.parametrize("word", NETWORKS)
def test_a_network_is_built_again(word):
    net, (_, shape, chain) = made(word), NETWORKS[word]
    out = BitWriter()
    empty = write_network(net, out)
    found = read_network(BitReader(out.content()))
    assert isinstance(found, nn.Sequential) == (word != "branches")
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
    return Sent(scales, 12, 6, noise.integers(0, 64, 9).tolist(), **given)


GRIDS = {"chain": {"0.weight": (5, 5), "4.1.weight": (2, 1)}, "branches": {}}


@pytest.mark.parametrize("word", GRIDS)
def test_what_is_read_is_what_was_written(word):
    """Also with the tensors in another order, and of frequencies."""
    net = made(word)
    draw = drawn(net, grids=GRIDS[word])
    turned = replace(draw, scales=dict(reversed(draw.scales.items())))
    contents = []
    for one in (draw, turned):
        content, sent = encoded_draw(net, one)
        found = decoded(content)
        for ours, theirs in zip(
            sent.state_dict().values(), found.state_dict().values(), strict=True
        ):
            assert torch.equal(ours, theirs)
        contents.append(content)
    assert contents[0] != contents[1]
    assert encoded_draw(plain.reordered(net), draw)[0] == contents[0]
    if word == "branches":
        assert torch.equal(found.norm.running_var, net.norm.running_var)
        assert not torch.equal(found.first.weight, net.first.weight)
    else:
        assert type(found) is nn.Sequential


def test_what_is_sent_are_amplitudes_of_waves():
    """Of the same draw, weights by one grid and by none."""
    net = nn.Sequential(nn.Conv2d(2, 3, (3, 2)), nn.Flatten(), nn.Linear(12, 4))
    grids = {"0.weight": (3, 2), "2.weight": (2, 3)}
    amplitudes, found = (
        encoded_draw(net, drawn(net, grids=g))[1].state_dict() for g in ({}, grids)
    )
    for name, (height, width) in grids.items():
        parts = amplitudes[name].double().reshape(-1, height, width)
        waves = [torch.from_numpy(cosine_waves(n)) for n in (height, width)]
        own = torch.einsum("nuv,ui,vj->nij", parts, *waves).reshape(found[name].shape)
        torch.testing.assert_close(found[name].double(), own, rtol=1e-6, atol=1e-7)
    assert torch.equal(found["2.bias"], amplitudes["2.bias"])


def test_weights_of_a_file_are_these():
    """On every machine, with every version of torch and numpy."""
    net = nn.Sequential(nn.Linear(2, 2))
    draw = Sent({"0.weight": 120, "0.bias": 120}, 3, 4, [7, 0])
    content, _ = encoded_draw(net, draw)
    assert content.hex() == "704428085b14f0c62238009fbea921"
    found = decoded(content)
    assert found[0].weight.flatten().tolist() == [
        -0.02382802776992321, 0.11745069175958633, 0.11949621886014938, -0.6402153968811035
    ]  # fmt: skip
    with pytest.raises(PyroccamError):
        encoded_draw(net.double(), draw)


@pytest.mark.parametrize("word", ["chain", "branches"])
def test_damage_is_found(word):
    net = made(word)
    content, _ = encoded_draw(net, drawn(net))
    wrong = [content[:length] for length in range(0, len(content), 3)] + [content + b"\0"]
    for place in range(0, 8 * len(content), 11):
        altered = bytearray(content)
        altered[place // 8] ^= 1 << place % 8
        wrong.append(bytes(altered))
    for one in wrong:
        with pytest.raises((PackedFileError, TooLarge)):
            decoded(one)
