"""A plain network in one small file: its description and its weights, entropy-coded.

Reading runs no pickled code: the description is JSON (:mod:`~pyroccam.models.plain.description`),
the weights are symbols (:mod:`~pyroccam.inference.coding.arrays`). Packing is without loss, but for
biases and statistics in double precision, which are rounded to single.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data import TooLarge, allowing, ask, shown
from ...models.plain import (
    check_same,
    checked_shape,
    describe,
    dtype_named,
    fill,
    plain_words,
    rebuild,
    state,
)
from ..coding import PackedFileError, SymbolReader, SymbolWriter, put_floats, read_tensor
from ..rounding import quantised
from .draw_file import DRAW, decoded
from .packed_file import Parts, join, split


@dataclass(frozen=True)
class TensorSize:
    """How one tensor was written.

    Arguments:
        name: in the network.
        numbers: in the tensor.
        nonzero: of them.
        writing: ``floats``, ``multiples``, ``codebook``, ``raw`` or ``zeros``.
        bits: coded length, without its tables.
    """

    name: str
    numbers: int
    nonzero: int
    writing: str
    bits: float


@dataclass(frozen=True)
class PackedSize:
    """Size of a file in bytes, and what takes it.

    Arguments:
        total: the whole file.
        description: compressed JSON.
        tables: compressed probabilities, exponents and codebooks.
        coded: the coded weights.
        tensors: one row each; biases and statistics too.
    """

    total: int
    description: int
    tables: int
    coded: int
    tensors: tuple[TensorSize, ...]

    def rate(self, numbers: int) -> float:
        """``numbers`` in float32 (of the network before pruning) over the whole file."""
        return 4 * numbers / self.total


def encoded(
    net: nn.Module, *, describe_net: bool = True, note: str = ""
) -> tuple[bytes, PackedSize]:
    """The file of a plain network, which was read back and compared, and what takes its bytes.

    Arguments:
        net: on any device; it is not changed.
        describe_net: ``False`` leaves out the description, for a network that has none; ``read``
            then needs ``skeleton=``.
        note: a text to carry.
    """
    net = quantised(net, {})
    if describe_net:
        description = describe(net)
        header: dict[str, Any] = {"description": description}
        tensors = state(net, description)
    else:
        tensors = _all_tensors(net)
        header = {"tensors": [
            [n, str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in tensors.items()
        ]}  # fmt: skip
    header |= {"note": note} if note else {}
    writer = SymbolWriter()
    digest = hashlib.blake2b(digest_size=8)
    rows = []
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        before = writer.bits
        writing = _put(writer, tensor)
        nonzero = int(tensor.count_nonzero())
        rows.append(TensorSize(name, tensor.numel(), nonzero, writing, writer.bits - before))
        digest.update(_bytes(tensor))
    coded = writer.finish()
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    content = join(text, bytes(writer.tables), coded, digest.digest(), writer.version)
    parts = split(content)
    with _naming("the packed network"), allowing("999TB"):
        found = _network(parts, None if describe_net else net)
        check_same(state(found, description) if describe_net else _all_tensors(found), tensors)
    size = PackedSize(len(content), parts.header_size, parts.tables_size, len(coded), tuple(rows))
    return content, size


def note_of(path: str | Path) -> str:
    """The text that a packed network carries; empty of most."""
    with _naming(path):
        return str(split(_content(Path(path))).header.get("note", ""))


def is_described(path: str | Path) -> bool:
    """True if a file says how its network is built, so that :func:`read` needs no ``skeleton=``."""
    with _naming(path):
        return "description" in split(_content(Path(path))).header


def read(path: str | Path, *, skeleton: nn.Module | None = None) -> nn.Module:
    """The network of a file, packed or a draw, in evaluation mode, on the CPU.

    A file may be a stranger's: memory is asked for before it is taken. What the network computes is
    not looked at, see :func:`~pyroccam.models.plain.description.rebuild`.

    Arguments:
        path: of the file.
        skeleton: the network as its own code builds it, for a file without description; its
            numbers do not matter, and it is not changed.
    """
    with _naming(path):
        content = _content(Path(path))
        if content[: len(DRAW)] == DRAW:
            return decoded(content)
        return _network(split(content), skeleton)


def _network(parts: Parts, skeleton: nn.Module | None) -> nn.Module:
    header, reader = parts.header, SymbolReader(parts.tables, parts.coded)
    if skeleton is not None:
        net: nn.Module = copy.deepcopy(skeleton).eval()
    if "description" in header:
        described = rebuild(header["description"])
        empty = state(described, header["description"])
    else:
        empty = _declared(header.get("tensors"))
    most = max((tensor.numel() for tensor in empty.values()), default=0)
    ask(2 * sum(t.numel() * t.element_size() for t in empty.values()) + WORKING * most, "it")
    tensors = {name: read_tensor(reader, t.shape, t.dtype) for name, t in empty.items()}
    reader.close()
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors.values():
        found.update(_bytes(tensor))
    if found.digest() != parts.digest:
        raise PackedFileError("its weights decode to other numbers than were written.")
    if skeleton is not None:
        _into(net, tensors)
    elif "description" in header:
        fill(described, header["description"], tensors)
        net = described
    else:
        given = "it holds tensors without a description"
        raise PackedFileError(given, hint="load(path, like=net) with the network that was written")
    return net


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise PackedFileError("there is no such file." if not path.exists() else "it is no file.")
    ask(path.stat().st_size, "it")
    return path.read_bytes()


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Errors name the file and are of this package: what a file holds can fail in many ways, though
    its checksum fits, if something else wrote it."""
    try:
        yield
    except TooLarge as error:
        raise TooLarge(f"{path}: {error.found}", error.expected, error.hint) from error
    except Exception as error:
        raise PackedFileError(f"{path} cannot be read: {plain_words(error)}") from error


# -- one tensor -----------------------------------------------------------------------------------

_AS_FLOATS, _AS_BYTES = 0, 1
WORKING = 32  # bytes for each number of the largest tensor, while it is decoded


def _put(writer: SymbolWriter, tensor: Tensor) -> str:
    """Numbers that float32 holds exactly go as floats, whatever their dtype; others as bytes."""
    floats = tensor.to(torch.float32) if not tensor.is_complex() else None
    exact = floats is not None and bool(floats.isfinite().all())
    if exact and floats is not None and torch.equal(floats.to(tensor.dtype), tensor):
        writer.number(_AS_FLOATS)
        rows = tensor.shape[0] if tensor.dim() > 1 and tensor.numel() else 1
        return put_floats(writer, floats.numpy().ravel(), rows)
    writer.number(_AS_BYTES)
    raw = np.frombuffer(_bytes(tensor), np.uint8)
    writer.raw(raw, np.full(len(raw), 8))
    return "raw"


def _bytes(tensor: Tensor) -> bytes:
    """Memory of a tensor on the CPU, with zeros that have no sign."""
    if tensor.is_floating_point():
        tensor = tensor + 0.0
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


# -- a network without description ----------------------------------------------------------------


def _declared(rows: Any) -> dict[str, Tensor]:
    """Empty tensors of the names, dtypes and shapes of a file without description."""
    if not isinstance(rows, list):
        raise PackedFileError("it has neither a description nor tensors.")
    ask(WORKING * len(rows), "it")
    found: dict[str, Tensor] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
            raise PackedFileError(f"a tensor is {shown(row)}.")
        name, word, shape = row
        if name in found:
            raise PackedFileError(f"two tensors are called {shown(name)}.")
        with torch.device("meta"):
            found[name] = torch.empty(checked_shape(shape), dtype=dtype_named(word))
    return found


def _all_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those that are shared once."""
    return dict(chain(net.named_parameters(), net.named_buffers()))


def _into(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    held = _all_tensors(net)
    if set(held) != set(tensors):
        odd = sorted(set(held) ^ set(tensors))
        given = f"the skeleton has other tensors: {', '.join(odd[:5])}"
        raise PackedFileError(given, hint="the cut network: inference.shrink(fit, ...).net")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if held[name].shape != tensor.shape or held[name].dtype != tensor.dtype:
                raise PackedFileError(
                    f"the skeleton's {name} is {tuple(held[name].shape)} of {held[name].dtype}, "
                    f"expected {tuple(tensor.shape)} of {tensor.dtype}."
                )
            held[name].copy_(tensor)
