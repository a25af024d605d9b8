"""The outside of a packed network: magic bytes, version, checksum, and compressed parts.

The file, little-endian: 4 bytes ``POcc``, version (2 bytes), checksum of all that follows (8),
digest of the weights (8), four lengths (4 each), then JSON and tables, both compressed, and the
coded weights. The lengths are those of: compressed JSON, JSON, compressed tables, tables.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import Any, NamedTuple

from ...data.limits import ask
from ...models.plain.untrusted import NotJSON, parsed
from .entropy import PackedFileError

__all__ = ["Parts", "checksum", "join", "sealed", "split"]

MAGIC, VERSION = b"POcc", 1
_HEAD = struct.Struct("<4sH8s8sIIII")
_BODY = 14  # where the part under the checksum begins

# Text that descriptions are likely to hold, the likeliest last. It halves the description of a
# small network. Files are read with it: to change it is to change the version.
_USUAL_TEXT = (
    b'"LeakyReLU","arguments":{"negative_slope":0.01,"inplace":false}},"Tanh","Sigmoid","Identity"'
    b'"target":"operator.add","target":"operator.getitem","args":[{"node":"target":"torch.cat",'
    b'"target":"torch.flatten","target":"functional.relu","kwargs":{"inplace":false}},'
    b'{"op":"call_method","name":"view","target":"view","args":[{"node":"x"},{"node":"size"},-1]},'
    b'{"type":"Dropout","arguments":{"p":0.5,"inplace":false}},"track_running_stats":true}},'
    b'{"type":"AdaptiveAvgPool2d","arguments":{"output_size":{"tuple":[1,1]}}},"bias":false,'
    b'{"type":"AvgPool2d","arguments":{"kernel_size":2,"stride":2,"padding":0,"ceil_mode":false,'
    b'"count_include_pad":true,"divisor_override":null}},"layer1.0.conv1","downsample.0","fc1"'
    b'"num_batches_tracked":"int64","running_mean","running_var"'
    b'{"type":"MaxPool2d","arguments":{"kernel_size":2,"stride":2,"padding":0,"dilation":1,'
    b'"return_indices":false,"ceil_mode":false}},'
    b'{"type":"BatchNorm2d","arguments":{"num_features":64,"eps":1e-05,"momentum":0.1,"affine":true,'
    b'"track_running_stats":true}},'
    b'{"type":"Conv2d","arguments":{"in_channels":64,"out_channels":64,"kernel_size":{"tuple":[5,5]}'
    b',"kernel_size":{"tuple":[3,3]},"stride":{"tuple":[1,1]},"padding":{"tuple":[0,0]},'
    b'"dilation":{"tuple":[1,1]},"groups":1,"bias":true,"padding_mode":"zeros"}},'
    b'{"type":"Flatten","arguments":{"start_dim":1,"end_dim":-1}},'
    b'{"description":{"format":1,"nodes":[{"op":"placeholder","name":"x","target":"x"},'
    b'{"op":"placeholder","name":"input_1","target":"input"},'
    b'{"op":"call_function","name":"add","target":"{"op":"get_attr","name":"'
    b'{"op":"call_module","name":"_0","target":"0","args":[{"node":"input_1"}]},'
    b'{"op":"call_module","name":"_1","target":"1","args":[{"node":"_0"}]},'
    b'{"op":"output","name":"output","target":"output","args":[{"node":"_4"}]}],"modules":{"0":'
    b'{"type":"ReLU","arguments":{"inplace":false}},"2":'
    b'{"type":"Linear","arguments":{"in_features":500,"out_features":10,"bias":true}}},'
    b'"direct":{},"constants":{},"tied":{},"dtypes":{}}}'
)


class Parts(NamedTuple):
    """Parts of a file, and how many bytes JSON and tables take in it."""

    header: dict[str, Any]
    tables: bytes
    coded: bytes
    digest: bytes
    header_size: int
    tables_size: int


def checksum(data: bytes) -> bytes:
    """8 bytes that change with any byte of ``data``; no protection against intent."""
    return hashlib.blake2b(data, digest_size=8).digest()


def join(header: dict[str, Any], tables: bytes, coded: bytes, digest: bytes) -> bytes:
    """The bytes of a file; see :func:`split`.

    Arguments:
        header: JSON data.
        tables, coded: of a :class:`~pyroccam.inference.packing.entropy.SymbolWriter`.
        digest: 8 bytes that tell whether the weights were decoded to what they were.
    """
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return sealed(text, tables, coded, digest)


def sealed(text: bytes, tables: bytes, coded: bytes, digest: bytes) -> bytes:
    """The bytes of a file whose header is this text, with a checksum that fits."""
    stream = zlib.compressobj(9, zdict=_USUAL_TEXT)
    packed_text = stream.compress(text) + stream.flush()
    packed_tables = zlib.compress(tables, 9)
    lengths = struct.pack("<4I", len(packed_text), len(text), len(packed_tables), len(tables))
    body = digest + lengths + packed_text + packed_tables + coded
    return MAGIC + struct.pack("<H", VERSION) + checksum(body) + body


def split(content: bytes) -> Parts:
    """The inverse of :func:`join`.

    Raises:
        PackedFileError: if it is of another kind or version, damaged or cut off.
        TooLarge: if its parts are larger than a file may ask for.
    """
    if len(content) < _HEAD.size or content[: len(MAGIC)] != MAGIC:
        raise PackedFileError("it is not a packed network.")
    _, version, found, digest, *lengths = _HEAD.unpack_from(content)
    if version != VERSION:
        raise PackedFileError(f"it is of version {version}, and this reads version {VERSION}.")
    if found != checksum(content[_BODY:]):
        raise PackedFileError("it is damaged or cut off.")
    text_packed, text_size, tables_packed, tables_size = lengths
    middle = _HEAD.size + text_packed
    end = middle + tables_packed
    if end > len(content):
        raise PackedFileError("it is shorter than its parts.")
    text = _inflate(content[_HEAD.size : middle], text_size, _USUAL_TEXT)
    tables = _inflate(content[middle:end], tables_size)
    try:
        header = parsed(text, "its description")
    except NotJSON as error:
        raise PackedFileError(f"{error.found}.") from error
    if not isinstance(header, dict):
        raise PackedFileError("its description is no object.")
    return Parts(header, tables, content[end:], digest, text_packed, tables_packed)


def _inflate(packed: bytes, size: int, usual: bytes = b"") -> bytes:
    """Decompress to exactly ``size`` bytes; never makes more."""
    ask(size, "a part of it")
    stream = zlib.decompressobj(zdict=usual)
    try:
        out = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise PackedFileError(f"a part of it is damaged: {error}.") from error
    if len(out) != size or not stream.eof or stream.unused_data:
        raise PackedFileError("a part of it has another length than it says.")
    return out
