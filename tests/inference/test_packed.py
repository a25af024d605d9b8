"""One small file for a plain network: exact, small, and safe to read."""

import hashlib
import itertools
import math
import struct
from pathlib import Path

import numpy as np
import plain
import pytest
import torch
from pyroccam.inference.packing import packed_file
from pyroccam.inference.packing.bits import LayerBits
from pyroccam.inference.packing.packed import PackedFileError, is_described, read, write
from pyroccam.inference.packing.quantise import Codebook, FixedPoint, quantised
from pyroccam.models.description import DescriptionError
from torch import nn


def entropy_bits(symbols):
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def ideal_bits(tensor, digits):
    """Entropy of which are kept and of sign and exponent; the digits after the first in full."""
    values = tensor.detach().numpy().ravel()
    kept = values[values != 0]
    symbols = 2 * np.frexp(kept)[1] + (kept < 0)
    return entropy_bits(values != 0) + entropy_bits(symbols) + len(kept) * (digits - 1)


# -- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", plain.NETWORKS)
def test_a_file_gives_the_outputs_of_the_rounded_network(name, tmp_path):
    net, x = plain.trained(name)
    size = write(net, tmp_path / "net", bits=6, rest=torch.float16)
    again = read(tmp_path / "net")
    expected = quantised(net, 6, rest=torch.float16)
    assert plain.same(plain.outputs(again, x), plain.outputs(expected, x))
    assert not plain.same(plain.outputs(again, x), plain.outputs(net, x))
    assert not again.training
    assert {n for n, _ in again.named_parameters()} <= {n for n, _ in net.named_parameters()}
    assert size.total == (tmp_path / "net").stat().st_size
    assert size.description + size.tables + size.coded == size.total - 38


@pytest.mark.parametrize("name", [n for n in plain.NETWORKS if n != "resnet18"])
def test_nothing_is_lost_unless_asked(name, tmp_path):
    net, x = plain.trained(name)
    write(net, tmp_path / "net")
    again = read(tmp_path / "net")
    assert plain.same(plain.outputs(again, x), plain.outputs(net, x))
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for key, tensor in again.state_dict().items():
        if key in held:
            assert torch.equal(tensor, held[key])
            assert tensor.dtype == held[key].dtype


@pytest.mark.parametrize("bits", range(1, 25))
def test_every_number_of_bits(bits, tmp_path):
    torch.manual_seed(bits)
    net = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3)).eval()
    with torch.no_grad():
        net[0].weight *= torch.rand(20, 30) < 0.3
    x = torch.randn(5, 30)
    write(net, tmp_path / "net", bits=bits)
    assert torch.equal(read(tmp_path / "net")(x), quantised(net, bits)(x))
    if bits == 24:
        assert torch.equal(read(tmp_path / "net")(x), net(x))


@pytest.mark.parametrize("how", [Codebook(16), FixedPoint(6), LayerBits(3, 3)])
def test_other_roundings(how, tmp_path):
    net, x = plain.trained("lenet_5_caffe")
    size = write(net, tmp_path / "net", bits={"0": how, "7": how})
    again = read(tmp_path / "net")
    assert torch.equal(again(x), quantised(net, {"0": how, "7": how})(x))
    writings = {row.name: row.writing for row in size.tensors}
    assert writings["7.weight"] == ("codebook" if isinstance(how, Codebook) else "floats")
    values = len(again.get_submodule("7").weight.unique())
    assert values <= 17 or not isinstance(how, Codebook)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:]
)
def test_other_dtypes(dtype, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype).eval()
    net[0].register_buffer("flags", torch.tensor([True, False]))
    net[0].register_buffer("large", torch.tensor([2**40, -5]))
    write(net, tmp_path / "net", describe_net=False)
    fresh = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    fresh[0].register_buffer("flags", torch.tensor([False, False]))
    fresh[0].register_buffer("large", torch.tensor([0, 0]))
    again = read(tmp_path / "net", skeleton=fresh)
    for key, tensor in net.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor)
        assert again.state_dict()[key].dtype == tensor.dtype


def test_numbers_that_are_not_finite_come_back(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].bias.data = torch.tensor([float("inf"), float("nan")])
    write(net, tmp_path / "net")
    bias = read(tmp_path / "net").get_submodule("0").bias
    assert bias[0] == math.inf
    assert bias[1].isnan()


def test_the_network_itself_is_not_changed(tmp_path):
    net, _ = plain.trained("vgg")
    net.train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    write(net, tmp_path / "net", bits=3, rest=torch.float16)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


# -- size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [5, 8, 10, 14])
@pytest.mark.parametrize("share", [1.0, 0.05])
def test_the_whole_file_is_little_larger_than_the_entropy_of_its_weights(bits, share, tmp_path):
    """Of the pruned LeNet-300-100 of the published table, dense, and of one with single zeros."""
    torch.manual_seed(bits)
    net = nn.Sequential(nn.Linear(278, 98), nn.ReLU(), nn.Linear(98, 13), nn.ReLU())
    net.append(nn.Linear(13, 10))
    with torch.no_grad():
        for layer in (net[0], net[2], net[4]):
            layer.weight.normal_().mul_(0.1 * torch.randn(layer.in_features).exp())
            layer.weight.mul_(torch.rand_like(layer.weight) < share)
    size = write(net, tmp_path / "net", bits=bits, rest=torch.float16)
    rounded = quantised(net, bits, rest=torch.float16)
    weights = sum(ideal_bits(rounded[i].weight, bits) for i in (0, 2, 4))
    biases = 16 * (98 + 13 + 10)
    assert 8 * size.coded <= 1.002 * weights + biases + 3 * 96
    assert size.total <= 1.01 * weights / 8 + biases / 8 + 450  # the 450: head, JSON, tables
    assert size.description <= 120
    assert abs(sum(row.bits for row in size.tensors) / 8 - size.coded) <= 8
    by_name = {row.name: row for row in size.tensors}
    assert by_name["0.weight"].nonzero == rounded[0].weight.count_nonzero()
    assert size.rate(266_200) == 4 * 266_200 / size.total


def test_fewer_bits_make_a_smaller_file(tmp_path):
    net, _ = plain.trained("lenet_5_caffe")
    sizes = [write(net, tmp_path / "net", bits=b).total for b in (1, 3, 6, 12, 24)]
    assert sizes == sorted(sizes)
    # By the bits that were taken off, within the gain that the first digits give.
    for (b, small), (c, large) in itertools.pairwise(zip((1, 3, 6, 12, 24), sizes, strict=True)):
        assert (large - small) * 8 / 430_500 == pytest.approx(c - b, rel=0.08)


# -- networks without description -----------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.bias = self.a.bias

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


def test_a_skeleton_is_filled(tmp_path):
    net, path = Branching(), tmp_path / "net"
    with pytest.raises(DescriptionError, match=r"(?s)Branching cannot be described.*skeleton="):
        write(net, path)
    write(net, path, bits=4, describe_net=False)
    with pytest.raises(PackedFileError, match=r"without a description.*read\(path, skeleton=net\)"):
        read(path)
    fresh = Branching().train()
    before = fresh.a.weight.clone()
    again = read(path, skeleton=fresh)
    rounded = quantised(net, 4)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert torch.equal(again(x), rounded(x))
    assert again.b.bias is again.a.bias
    assert not again.training
    assert fresh.training
    assert torch.equal(fresh.a.weight, before)


def test_a_skeleton_that_does_not_fit(tmp_path):
    write(Branching(), tmp_path / "net", describe_net=False)
    with pytest.raises(PackedFileError, match="the skeleton has other tensors: 0.bias, 0.weight"):
        read(tmp_path / "net", skeleton=nn.Sequential(nn.Linear(3, 3)))
    wide = Branching()
    wide.a = nn.Linear(4, 3)
    wide.b.bias = wide.a.bias
    with pytest.raises(PackedFileError, match=r"skeleton's a.weight is \(3, 4\)"):
        read(tmp_path / "net", skeleton=wide)


def test_a_described_file_fills_a_skeleton_too(tmp_path):
    net, x = plain.trained("lenet_5_caffe")
    write(net, tmp_path / "net")
    again = read(tmp_path / "net", skeleton=plain.lenet_5_caffe())
    assert isinstance(again, nn.Sequential)
    assert torch.equal(again(x), net(x))


# -- files that are not what they should be -------------------------------------------------------


@pytest.fixture(name="content")
def small_file(tmp_path):
    torch.manual_seed(0)
    write(nn.Sequential(nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 2)), tmp_path / "net", bits=5)
    return (tmp_path / "net").read_bytes()


def refused(content, folder, words, **options):
    path = Path(folder) / "changed"
    path.write_bytes(content)
    with pytest.raises(PackedFileError, match=words) as caught:
        read(path, **options)
    assert str(path) in str(caught.value)


def test_every_cut_off_file_is_an_error(content, tmp_path):
    for length in range(len(content)):
        refused(content[:length], tmp_path, "not a packed network|damaged or cut off")
    refused(content + b"\0", tmp_path, "damaged or cut off")


def test_every_changed_byte_is_an_error(content, tmp_path):
    words = "not a packed network|of version|damaged or cut off"
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        refused(bytes(changed), tmp_path, words)


def test_other_files(content, tmp_path):
    for other in (b"", b"PK\3\4" + content, b"hello" * 20):
        refused(other, tmp_path, "it is not a packed network")
    refused(content[:4] + b"\2\0" + content[6:], tmp_path, "of version 2, and this reads version 1")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")


def resealed(content, at, new):
    """A file with some bytes replaced and a checksum that fits: not damage but intent."""
    changed = content[:at] + new + content[at + len(new) :]
    body = changed[14:]
    return changed[:6] + hashlib.blake2b(body, digest_size=8).digest() + body


def test_intent_is_an_error_too_and_never_a_crash(content, tmp_path):
    """Any byte changed under a fitting checksum: an error, or the same network (unused bits)."""
    rng = np.random.default_rng(0)
    path, outcomes = tmp_path / "changed", {"error": 0, "read": 0}
    for at in range(14, len(content)):
        changed = resealed(content, at, bytes([content[at] ^ int(rng.integers(1, 256))]))
        path.write_bytes(changed)
        try:
            read(path, max_elements=10**6)
            outcomes["read"] += 1
        except PackedFileError:
            outcomes["error"] += 1
    assert outcomes["error"] > 0.9 * (len(content) - 14)


def test_lengths_are_checked_before_room_is_made(content, tmp_path):
    huge = struct.pack("<I", 2**32 - 1)
    for part, words in enumerate(
        ["shorter than its parts", "wants 4294967295 bytes", "shorter than", "wants 4294967295"]
    ):
        refused(resealed(content, 22 + 4 * part, huge), tmp_path, words)
    (length,) = struct.unpack_from("<I", content, 26)
    refused(resealed(content, 26, struct.pack("<I", length - 1)), tmp_path, "another length")
    refused(content, tmp_path, "more than max_elements=50", max_elements=50)
    parts = packed_file.split(content)
    vast = {"tensors": [["a", "float32", [2**40, 2**40]]]}
    refused(packed_file.join(vast, b"", b"", bytes(8)), tmp_path, "more than max_elements")
    for header in ({}, {"tensors": 3}, [], {"tensors": [["a", "float32", [-1]]]}):
        refused(packed_file.join(header, b"", b"", bytes(8)), tmp_path, "cannot be read")
    refused(
        packed_file.join(parts.header, parts.tables, parts.coded, bytes(8)),
        tmp_path,
        "decode to other numbers",
    )


def test_a_description_cannot_smuggle_code(content, tmp_path):
    parts = packed_file.split(content)
    parts.header["description"]["nodes"][0]["target"] = "x=__import__('os').abort()"
    refused(packed_file.join(*parts[:4]), tmp_path, "is not a name")


def test_the_usual_text_belongs_to_the_version():
    """Files are read with it. If it must change, the version must change too."""
    digest = hashlib.blake2b(packed_file._USUAL_TEXT, digest_size=8).hexdigest()
    assert (packed_file.VERSION, digest) == (1, "4125e73b59ea54e8")


def test_whether_a_file_says_how_its_network_is_built(tmp_path):
    write(Branching(), tmp_path / "tensors", describe_net=False)
    write(nn.Linear(2, 2), tmp_path / "network")
    assert not is_described(tmp_path / "tensors")
    assert is_described(tmp_path / "network")
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(PackedFileError):
        is_described(tmp_path / "other")
