"""One small file for a plain network: exact, small, and safe to read."""

import hashlib
import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import plain
import pytest
import torch
from both_readers import read
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroccam import data, inference
from pyroccam.data import TooLarge, allowing
from pyroccam.inference import Small
from pyroccam.inference.coding import PackedFileError, decode_pocc
from pyroccam.inference.files import is_described, packed, packed_file
from pyroccam.inference.rounding import Codebook, quantised
from random_networks import networks
from safetensors.torch import load_file
from torch import nn

few = settings(derandomize=True, deadline=None, max_examples=10, database=None)


def saved(net, path):
    """A file, read back."""
    Small(net).save(path)
    return read(path)


# -- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in plain.NETWORKS if name != "resnet18"])
def test_nothing_of_a_network_is_lost(name, tmp_path):
    (net, x), bits = plain.trained(name), (None, 6)[[*plain.NETWORKS].index(name) % 2]
    net = net if bits is None else quantised(net, bits)
    small = Small(net)
    again = read(small.save(tmp_path / "net.pocc"))
    assert plain.same(plain.outputs(again, x), plain.outputs(net, x))
    assert not again.training
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for key, tensor in again.state_dict().items():
        if key in held:
            assert torch.equal(tensor, held[key])
            assert tensor.dtype == held[key].dtype
    assert {n for n, _ in again.named_parameters()} <= {n for n, _ in net.named_parameters()}
    assert Small(plain.reordered(net)).content == small.content
    size = small.size
    assert small.bytes == size.total == size.description + size.tables + size.coded + 38


@few
@given(drawn=networks(), bits=st.just({}) | st.integers(1, 24))
def test_any_small_network_comes_back_from_both_kinds_of_files(folder, drawn, bits):
    net, x = drawn
    net = quantised(net, bits)
    with torch.no_grad():
        assert torch.equal(saved(net, folder / "net.pocc")(x), net(x))
        assert torch.equal(inference.load(Small(net).save(folder / "net"))(x), net(x))


def test_a_tensor_of_many_pieces(tmp_path, monkeypatch):
    """Decoding is by pieces; the numbers are the same whatever their length."""
    torch.manual_seed(1)
    nets = {"floats": torch.randn(700), "raw": torch.randn(7)}
    sparse = torch.randn(60, 40) * (torch.rand(60, 40) < torch.rand(40))
    for name, tensor in {**nets, "columns": sparse, "rows": sparse.T.contiguous(),
                         "book": torch.randn(9)[torch.randint(9, (800,))]}.items():  # fmt: skip
        net = nn.ParameterDict({"a": tensor})
        for bits in ({}, {"a": 5}):
            rounded = quantised(net, bits)
            path = Small(rounded).save(tmp_path / f"{name}.pocc")
            for piece in (2**20, 37):
                monkeypatch.setattr(decode_pocc, "_PIECE", piece)
                assert torch.equal(read(path, like=net)["a"], rounded["a"])


def test_a_file_that_would_be_read_as_another_network_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "net.pocc"
    path.write_bytes(b"before")
    monkeypatch.setattr(packed, "fill", lambda *given: None)  # a reader that leaves zeros
    with pytest.raises(PackedFileError):
        Small(nn.Sequential(nn.Linear(2, 3))).save(path)
    assert path.read_bytes() == b"before"


# -- networks without description -----------------------------------------------------------------


def branching(**more):
    parts = {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), **more}
    net = plain.network(lambda n, x: n.a(x) if x.sum() > 0 else n.b(x), "Branching", **parts)
    net.b.bias = net.a.bias
    return net


def test_a_network_like_it_is_filled(tmp_path):
    net, path = branching(), tmp_path / "net.pocc"
    small = Small(net)
    small.save(path)
    assert small.undescribed
    assert not is_described(path)
    for like in (None, nn.Sequential(nn.Linear(3, 3)), branching(a=nn.Linear(4, 3))):
        with pytest.raises(PackedFileError):
            read(path, like=like)
    fresh = branching().train()
    before = fresh.a.weight.clone()
    again = read(path, like=fresh)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert torch.equal(again(x), net(x))
    assert again.b.bias is again.a.bias
    assert fresh.training
    assert not again.training
    assert torch.equal(fresh.a.weight, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype, tmp_path):
    def build(fill):
        net = branching().to(dtype).eval()
        net.a.register_buffer("flags", torch.tensor([fill, False]))
        net.a.register_buffer("large", torch.tensor([fill * 2**40, -5 * fill]))
        net.a.bias.data[:2] = torch.tensor([math.inf, math.nan])
        return net

    net = build(True)
    again = read(Small(net).save(tmp_path / "net.pocc"), like=build(False))
    for key, tensor in net.state_dict().items():
        assert again.state_dict()[key].dtype == tensor.dtype
        torch.testing.assert_close(again.state_dict()[key], tensor, rtol=0, atol=0, equal_nan=True)


# -- files that are not what they should be -------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="module")
def content():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    return Small(quantised(net, 5)).content


def refused(content, path, error=PackedFileError, most="10MB"):
    path.write_bytes(content)
    with allowing(most), pytest.raises(error):
        read(path)


def test_damage_is_found(content, tmp_path):
    path = tmp_path / "changed.pocc"
    for length in range(0, len(content), 3):
        refused(content[:length], path)
    for at in range(len(content)):
        altered = bytearray(content)
        altered[at] ^= 1 << at % 8
        refused(bytes(altered), path)
    for other in (content + b"\0", b"PK\3\4" + content, content[:4] + b"\3\0" + content[6:]):
        refused(other, path)
    for missing in (tmp_path / "missing.pocc", tmp_path):
        with pytest.raises(PackedFileError):
            packed.read(missing)


def resealed(content, at, new):
    """A file with some bytes replaced and a checksum that fits: not damage but intent."""
    altered = content[:at] + new + content[at + len(new) :]
    body = altered[14:]
    return altered[:6] + hashlib.blake2b(body, digest_size=8).digest() + body


def joined(header, tables=b"", coded=b"", digest=bytes(8)):
    return packed_file.join(json.dumps(header).encode(), tables, coded, digest)


def test_lengths_and_memory_are_checked_before_room_is_made(content, tmp_path):
    path, huge = tmp_path / "changed.pocc", struct.pack("<I", 2**32 - 1)
    (length,) = struct.unpack_from("<I", content, 26)
    refused(resealed(content, 22, huge), path)
    refused(resealed(content, 30, huge), path)
    refused(resealed(content, 26, struct.pack("<I", length - 1)), path)
    refused(joined(*packed_file.split(content)[:3]), path)
    for at in (26, 34):
        refused(resealed(content, at, huge), path, TooLarge, "2GB")
    for most in ("50kB", "200"):
        refused(content, path, TooLarge, most)
    many = [[f"a{i}", "float32", [2**10, 2**10]] for i in range(1000)]
    # One symbol for all takes no bits: 12 bytes of tables are 400 MB of numbers.
    tables, bomb = bytes([0, 0, 3, *[0] * 3, 2, 1, 0]), [["a", "float32", [10**8]]]
    for rows in ([["a", "float32", [2**40, 2**20]]], many, bomb):
        refused(joined({"tensors": rows}, tables), path, TooLarge, "2GB")
    # Spaces of JSON: 10^8 bytes in 10^5.
    refused(packed_file.join(b" " * 10**8, b"", b"", bytes(8)), path, TooLarge, "2GB")


def test_a_description_cannot_smuggle_code(content, tmp_path):
    parts = packed_file.split(content)
    parts.header["description"]["nodes"][0]["target"] = "x=__import__('os').abort()"
    refused(joined(*parts[:4]), tmp_path / "changed.pocc")


# -- versions -------------------------------------------------------------------------------------


def test_the_usual_text_belongs_to_the_version():
    """Files are read with it. If it must change, the version must change too."""
    digest = hashlib.blake2b(packed_file.USUAL_TEXT, digest_size=8).hexdigest()
    assert (packed_file.VERSION, digest) == (2, "4125e73b59ea54e8")  # of both versions


def test_files_of_earlier_versions_are_read(tmp_path):
    old, digits = Path(__file__).parents[1] / "support/old_networks", data.load("digits", seed=0)
    shutil.copytree(old / "depth", tmp_path / "depth")
    spirals = data.load("spirals", seed=0)
    assert inference.load(tmp_path / "depth" / "pruned")(spirals.x_test).shape == (1800, 2)
    small = read(old / "weights" / "compressed.pocc")
    right = (small(digits.x_test).argmax(-1) == digits.y_test).float().mean()
    kept = json.loads((old / "weights" / "metrics.json").read_text())
    assert float(right) == pytest.approx(kept["compressed"]["test"]["accuracy"], abs=0.01)


# -- the module that can be copied ----------------------------------------------------------------

ALONE = """
import runpy, sys
for name in ("pyroccam", "constriction", "safetensors"):
    sys.modules[name] = None  # importing it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_alone(tmp_path, *arguments):
    copied = tmp_path / "alone.py"
    copied.write_bytes(Path(decode_pocc.__file__).read_bytes())
    command = [sys.executable, "-c", ALONE, copied, *arguments]
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=90)


def test_a_copy_of_it_writes_the_tensors(tmp_path):
    net, _ = plain.trained("skips")
    path = Small(quantised(net, Codebook(8))).save(tmp_path / "net.pocc")
    done = run_alone(tmp_path, path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "net.safetensors") in done.stdout
    tensors, found = decode_pocc.decode(path.read_bytes()), load_file(tmp_path / "net.safetensors")
    assert found.keys() == tensors.keys()
    assert {"stages.0.0.weight", "stages.2.0.weight", "index", "gain"} <= found.keys()
    assert torch.equal(found["stages.0.0.weight"], found["stages.2.0.weight"])
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    decode_pocc.save(tensors, tmp_path / "net.pt")
    assert torch.equal(torch.load(tmp_path / "net.pt")["gain"], tensors["gain"])


def test_it_refuses_what_is_no_such_file(content, tmp_path, monkeypatch):
    path = tmp_path / "net.pocc"
    path.write_bytes(content[:-3])
    monkeypatch.setattr(sys, "argv", ["decode_pocc.py", str(path)])
    with pytest.raises(SystemExit, match="cannot be read: the file is damaged or cut off"):
        decode_pocc.main()
    for altered in (b"", b"POcc\3" + content[5:], content[:-1] + b"x"):
        with pytest.raises(ValueError, match=r"no packed|version 3|damaged"):
            decode_pocc.decode(altered)
