"""The outside of a packed network: magic bytes, version, checksum, and compressed parts,
as :mod:`~pyroccam.inference.coding.decode_pocc` describes them.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Any, NamedTuple

from ...data import ask
from ...models.plain import NotJSON, parsed
from ..coding import BODY, HEAD, MAGIC, USUAL_TEXT, VERSION, PackedFileError


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


def join(text: bytes, tables: bytes, coded: bytes, digest: bytes, version: int = VERSION) -> bytes:
    """The bytes of a file, whose header is this text of JSON; see :func:`split`."""
    packed_text, packed_tables = deflated(text, zdict=USUAL_TEXT), deflated(tables)
    lengths = struct.pack("<4I", len(packed_text), len(text), len(packed_tables), len(tables))
    body = digest + lengths + packed_text + packed_tables + coded
    return MAGIC + struct.pack("<H", version) + checksum(body) + body


def split(content: bytes) -> Parts:
    """The inverse of :func:`join`."""
    if len(content) < HEAD.size or content[: len(MAGIC)] != MAGIC:
        raise PackedFileError("it is not a packed network.")
    _, version, found, digest, *lengths = HEAD.unpack_from(content)
    if not 1 <= version <= VERSION:
        raise PackedFileError(f"it is of version {version}, and this reads 1 to {VERSION}.")
    if found != checksum(content[BODY:]):
        raise PackedFileError("it is damaged or cut off.")
    text_packed, text_size, tables_packed, tables_size = lengths
    middle = HEAD.size + text_packed
    end = middle + tables_packed
    if end > len(content):
        raise PackedFileError("it is shorter than its parts.")
    text = inflated(content[HEAD.size : middle], text_size, zdict=USUAL_TEXT)
    tables = inflated(content[middle:end], tables_size)
    try:
        header = parsed(text, "its description")
    except NotJSON as error:
        raise PackedFileError(f"{error.found}.") from error
    if not isinstance(header, dict):
        raise PackedFileError("its description is no object.")
    return Parts(header, tables, content[end:], digest, text_packed, tables_packed)


def deflated(data: bytes, **how: Any) -> bytes:
    """Compressed as far as zlib can, with or without its usual words (``zdict``) and frame."""
    stream = zlib.compressobj(9, **how)
    return stream.compress(data) + stream.flush()


def inflated(packed: bytes, size: int, **how: Any) -> bytes:
    """Decompressed to exactly ``size`` bytes; never makes more."""
    ask(size, "a part of it")
    stream = zlib.decompressobj(**how)
    try:
        out = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise PackedFileError(f"a part of it is damaged: {error}.") from error
    if len(out) != size or not stream.eof or stream.unused_data:
        raise PackedFileError("a part of it has another length than it says.")
    return out
