"""One small file for a plain network: exact, small, and safe to read."""

import hashlib
import itertools
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import plain
import pytest
import torch
from both_readers import read
from pyroccam.data.errors import TooLarge
from pyroccam.data.limits import allowing
from pyroccam.inference.coding import entropy
from pyroccam.inference.files import packed, packed_file
from pyroccam.inference.files.packed import PackedFileError, is_described, write
from pyroccam.inference.rounding.bits import LayerBits
from pyroccam.inference.rounding.quantise import Codebook, FixedPoint, quantised
from pyroccam.models.plain.description import DescriptionError
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
    write(plain.reordered(net), tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == (tmp_path / "net").read_bytes()
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
    net[0].bias.data = torch.tensor([math.inf, math.nan])
    write(net, tmp_path / "net")
    assert read(tmp_path / "net").get_submodule("0").bias.isnan().tolist() == [False, True]
    assert read(tmp_path / "net").get_submodule("0").bias[0] == math.inf


def test_the_network_itself_is_not_changed(tmp_path):
    net, _ = plain.trained("vgg")
    net.train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    write(net, tmp_path / "net", bits=3, rest=torch.float16)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_file_that_would_be_read_as_another_network_is_not_written(tmp_path, monkeypatch):
    (tmp_path / "net").write_bytes(b"before")
    monkeypatch.setattr(packed, "fill", lambda *given: None)  # a reader that leaves zeros
    with pytest.raises(PackedFileError, match="other numbers"):
        write(nn.Sequential(nn.Linear(2, 3)), tmp_path / "net")
    assert (tmp_path / "net").read_bytes() == b"before"


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


def branching(**more):
    parts = {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), **more}
    net = plain.network(lambda n, x: n.a(x) if x.sum() > 0 else n.b(x), "Branching", **parts)
    net.b.bias = net.a.bias
    return net


def test_a_skeleton_is_filled(tmp_path):
    net, path = branching(), tmp_path / "net"
    with pytest.raises(DescriptionError):
        write(net, path)
    write(net, path, bits=4, describe_net=False)
    with pytest.raises(PackedFileError):
        read(path)
    fresh = branching().train()
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
    write(branching(), tmp_path / "net", describe_net=False)
    with pytest.raises(PackedFileError, match="the skeleton has other tensors: 0.bias, 0.weight"):
        read(tmp_path / "net", skeleton=nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(PackedFileError, match=r"skeleton's a.weight is \(3, 4\)"):
        read(tmp_path / "net", skeleton=branching(a=nn.Linear(4, 3)))


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
    refused(content[:4] + b"\3\0" + content[6:], tmp_path, "of version 3, and this reads 1 to 2")
    with pytest.raises(PackedFileError, match="missing cannot be read: there is no such file"):
        read(tmp_path / "missing")
    with pytest.raises(PackedFileError, match="cannot be read: it is no file"):
        is_described(tmp_path)


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
            with allowing("20MB"):
                read(path)
            outcomes["read"] += 1
        except (PackedFileError, TooLarge):
            outcomes["error"] += 1
    assert outcomes["error"] > 0.9 * (len(content) - 14)


def too_large(content, folder, words, most="2GB"):
    path = Path(folder) / "changed"
    path.write_bytes(content)
    with allowing(most), pytest.raises(TooLarge, match=words) as caught:
        read(path)
    assert str(path) in str(caught.value)


def joined(header, tables=b"", coded=b"", digest=bytes(8)):
    return packed_file.join(header, tables, coded, digest)


def test_lengths_are_checked_before_room_is_made(content, tmp_path):
    huge = struct.pack("<I", 2**32 - 1)
    refused(resealed(content, 22, huge), tmp_path, "shorter than its parts")
    refused(resealed(content, 30, huge), tmp_path, "shorter than its parts")
    too_large(resealed(content, 26, huge), tmp_path, "a part of it asks for 4 GB")
    too_large(resealed(content, 34, huge), tmp_path, "a part of it asks for 4 GB")
    (length,) = struct.unpack_from("<I", content, 26)
    refused(resealed(content, 26, struct.pack("<I", length - 1)), tmp_path, "another length")
    parts = packed_file.split(content)
    refused(joined(*parts[:3]), tmp_path, "decode to other numbers")


def test_memory_is_asked_for_before_it_is_taken(content, tmp_path):
    too_large(content, tmp_path, "The description asks for", most="50kB")
    too_large(content, tmp_path, f"it asks for {len(content)} bytes", most="200")
    vast = [["a", "float32", [2**40, 2**20]]]
    too_large(joined({"tensors": vast}), tmp_path, "it asks for .* than any machine")
    many = [[f"a{i}", "float32", [2**10, 2**10]] for i in range(1000)]
    too_large(joined({"tensors": many}), tmp_path, "it asks for 7.8")
    # One symbol for all takes no bits: 12 bytes of tables are 400 MB of numbers.
    tables = bytes([0, 0, 3, *[0] * 3, 2, 1, 0])
    bomb = joined({"tensors": [["a", "float32", [10**8]]]}, tables)
    too_large(bomb, tmp_path, "it asks for 3.7")
    # Spaces of JSON: 10^8 bytes in 10^5.
    text = zlib.compressobj(9, zdict=packed_file.USUAL_TEXT)
    packed = text.compress(b" " * 10**8) + text.flush()
    lengths = struct.pack("<4I", len(packed), 10**8, 8, 0)
    body = bytes(8) + lengths + packed + zlib.compress(b"")
    sealed = b"POcc\1\0" + hashlib.blake2b(body, digest_size=8).digest() + body
    too_large(sealed, tmp_path, "its description asks for 2.9")


@pytest.mark.parametrize(
    "header",
    [
        {}, [], {"tensors": 3}, {"tensors": [["a", "float32", [-1]]]}, {"tensors": [3]},
        {"tensors": [["a", "float32", [True]]]}, {"tensors": [["a", "float32", "3"]]},
        {"tensors": [["a", "float32"]]}, {"tensors": [["a", "nn", [1]]]},
        {"tensors": [[3, "float32", [1]]]}, {"tensors": [["a", "quint8", [1]]]},
        {"tensors": [["a", "float32", [0]], ["a", "float32", [0]]]}, {"description": 3},
        {"description": None}, {"description": {"format": 1}}, {"tensors": [["a", 10**30, [1]]]},
    ],
)  # fmt: skip
def test_headers_of_another_kind(header, tmp_path):
    refused(joined(header), tmp_path, "cannot be read: ")
    with pytest.raises(PackedFileError) as caught:
        read(tmp_path / "changed")
    for internal in ("NoneType", "object is not", "KeyError", "TypeError", "attribute"):
        assert internal not in str(caught.value)


def test_a_tensor_of_many_pieces(tmp_path, monkeypatch):
    """Decoding is by pieces; the numbers are the same whatever their length."""
    torch.manual_seed(1)
    nets = {"floats": torch.randn(700), "raw": torch.randn(7)}
    sparse = torch.randn(60, 40) * (torch.rand(60, 40) < torch.rand(40))
    for name, tensor in {**nets, "columns": sparse, "rows": sparse.T.contiguous(),
                         "book": torch.randn(9)[torch.randint(9, (800,))]}.items():  # fmt: skip
        net = nn.ParameterDict({"a": tensor})
        for rounding in (None, {"a": 5}):
            write(net, tmp_path / name, bits=rounding, describe_net=False)
            whole = read(tmp_path / name, skeleton=net)["a"]
            with monkeypatch.context() as patch:
                patch.setattr(entropy, "_PIECE", 37)
                assert torch.equal(read(tmp_path / name, skeleton=net)["a"], whole)
            assert rounding or torch.equal(whole, tensor)


def test_a_description_cannot_smuggle_code(content, tmp_path):
    parts = packed_file.split(content)
    parts.header["description"]["nodes"][0]["target"] = "x=__import__('os').abort()"
    refused(packed_file.join(*parts[:4]), tmp_path, "is not a name")


def test_the_usual_text_belongs_to_the_version():
    """Files are read with it. If it must change, the version must change too."""
    digest = hashlib.blake2b(packed_file.USUAL_TEXT, digest_size=8).hexdigest()
    assert (packed_file.VERSION, digest) == (2, "4125e73b59ea54e8")  # of both versions


def test_whether_a_file_says_how_its_network_is_built(tmp_path):
    write(branching(), tmp_path / "tensors", describe_net=False)
    write(nn.Linear(2, 2), tmp_path / "network")
    assert not is_described(tmp_path / "tensors")
    assert is_described(tmp_path / "network")
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(PackedFileError, match="other cannot be read: it is not a packed network"):
        is_described(tmp_path / "other")
