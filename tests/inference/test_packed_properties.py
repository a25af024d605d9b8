"""Properties of packed files: nothing is lost, and nothing but such a file is read."""

import json

import numpy as np
import pytest
import torch
from both_readers import read
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pyroccam import inference
from pyroccam.data.errors import TooLarge
from pyroccam.data.limits import allowing
from pyroccam.inference.coding.arrays import get_floats, put_floats
from pyroccam.inference.coding.entropy import PackedFileError, SymbolReader, SymbolWriter
from pyroccam.inference.files import packed_file
from pyroccam.inference.files.packed import write
from pyroccam.inference.rounding.quantise import quantised
from random_networks import changed, json_values, networks, refusal
from torch import nn

few = settings(derandomize=True, deadline=None, max_examples=40, database=None)
many = settings(few, max_examples=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("packed")


@few
@given(drawn=networks(), bits=st.none() | st.integers(1, 24))
def test_any_small_network_comes_back_from_both_kinds_of_files(folder, drawn, bits):
    net, x = drawn
    rest = torch.float64 if x.dtype == torch.float64 else torch.float32
    write(net, folder / "net", bits=bits, rest=rest)
    with torch.no_grad():
        expected = quantised(net, bits, rest=rest)(x)
        assert torch.equal(read(folder / "net")(x), expected)
        saved = inference.Small(read(folder / "net")).save(folder / "saved")
        assert torch.equal(inference.load(saved)(x), expected)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
some = st.sampled_from([0.0, 1.0, -0.5, 3.25, 1e-40, -1e38])


@many
@given(arrays.arrays(np.float32, st.integers(0, 90), elements=floats | some), st.integers(1, 9))
def test_any_floats_come_back(values, rows):
    assume(len(values) % rows == 0)
    writer = SymbolWriter()
    put_floats(writer, values, rows)
    reader = SymbolReader(bytes(writer.tables), writer.finish())
    assert np.array_equal(get_floats(reader, len(values), rows), values)
    reader.close()


def sound():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())


@pytest.fixture(scope="module")
def parts(folder):
    write(sound(), folder / "sound", bits=5)
    return packed_file.split((folder / "sound").read_bytes())


def taken_or_refused(path):
    def call():
        with allowing("10MB"):
            assert isinstance(read(path), nn.Module)

    said = refusal(call, PackedFileError, TooLarge)
    assert not said or said.startswith(str(path))


@many
@given(data=st.data())
def test_a_changed_header_under_a_fitting_checksum(folder, parts, data):
    header = data.draw(changed(parts.header))
    (folder / "changed").write_bytes(packed_file.join(header, *parts[1:4]))
    taken_or_refused(folder / "changed")


@many
@given(header=json_values, tables=st.binary(max_size=30), words=st.binary(max_size=32))
def test_any_parts_under_a_fitting_checksum(folder, header, tables, words):
    text = json.dumps(header).encode()
    (folder / "any").write_bytes(packed_file.sealed(text, tables, words, bytes(8)))
    with pytest.raises((PackedFileError, TooLarge), match="any"):
        read(folder / "any")


@many
@given(tables=st.binary(max_size=40), words=st.binary(max_size=40))
def test_any_tables_and_weights_under_a_fitting_checksum(folder, parts, tables, words):
    content = packed_file.join(parts.header, parts.tables[:5] + tables, words, parts.digest)
    (folder / "weights").write_bytes(content)
    with pytest.raises(PackedFileError, match="weights cannot be read"):
        read(folder / "weights")


@many
@given(content=st.binary(), whole=st.booleans())
def test_any_bytes_are_no_packed_file(folder, content, whole):
    (folder / "bytes").write_bytes(content if whole else packed_file.MAGIC + b"\1\0" + content)
    with pytest.raises(PackedFileError, match="bytes cannot be read"):
        read(folder / "bytes")
