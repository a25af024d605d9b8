r"""A draw of a posterior in a file of bits, and the network in it.

In order, in bits: two bytes ``pD``; the version (4); how the network is built
(:mod:`~pyroccam.inference.files.architecture`); the tensors that are coded, each by whether
it is the next one (1) or its number, behind it by whether its prior has the deviation of the
tensor before it (1) or a byte of its own (:mod:`~pyroccam.inference.coding.normals`), and, of two
or four dims, by whether it is made of frequencies (1), of two dims with height and width; all other
tensors as they are, deflated; the seed; the number of blocks; bits of an index (5); the indices.
Zeros fill the last byte. Four bytes follow, which change with any byte before them and with any bit
of any number of the network that is decoded.

A weight is the deviation of the prior of its tensor times one of 65,536 normal values
(:mod:`~pyroccam.inference.coding.normals`), or made of waves of such amplitudes
(:mod:`~pyroccam.inference.coding.cosines`). Nothing in it depends on torch's or numpy's
random numbers, or on a mathematical library.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ...data import PyroccamError, allowing, ask
from ...models.plain import check_same
from ..coding import (
    MOST_BITS,
    BitReader,
    BitWriter,
    DamagedBits,
    PackedFileError,
    assignment,
    block_sizes,
    candidates,
    from_frequencies,
    scaled,
)
from .architecture import read_network, tensors, write_network
from .packed_file import deflated, inflated

DRAW = b"pD"
_VERSION, _VERSION_BITS, _WIDTH_BITS = 2, 4, 5
_CHECK = 4
_WITH_GRIDS = 2, 4  # dims of tensors that may be made of frequencies


@dataclass(frozen=True)
class Sent:
    """What is sent beside the network itself.

    Arguments:
        scales: bytes of the deviations of the priors, by the names of the coded tensors, in the
            order in which their weights are numbered.
        seed: of the candidates and of the blocks.
        bits: of an index.
        indices: one for each block.
        grids: height and width of the kernels that are made of frequencies, by the names of their
            tensors.
    """

    scales: Mapping[str, int]
    seed: int
    bits: int
    indices: Sequence[int]
    grids: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def encoded_draw(net: nn.Module, draw: Sent) -> tuple[bytes, nn.Module]:
    """The file of a network whose weights are a draw, and what was read back from it."""
    content, _, own = _written(net, draw)
    own |= _weights(draw, [(name, own[name].shape) for name in draw.scales])
    content += _checksum(content, [*own.values()])
    with allowing("999TB"):
        found = decoded(content)
    check_same(dict(zip(own, tensors(found, found).values(), strict=True)), own)
    return content, found


def _written(
    net: nn.Module, draw: Sent, ahead: bool = False
) -> tuple[bytes, nn.Module, dict[str, Tensor]]:
    """The file without its checksum, the network as it is described, and the tensors of ``net``."""
    out = BitWriter()
    out.raw(DRAW)
    out.fixed(_VERSION, _VERSION_BITS)
    empty = write_network(net, out)
    own = tensors(net, empty)
    _put_names(draw, own, out)
    for name, tensor in own.items():
        if name not in draw.scales:
            _put_most(tensor, out) if ahead else _put_raw(tensor, out)
    out.number(draw.seed)
    out.number(len(draw.indices))
    out.fixed(draw.bits, _WIDTH_BITS)
    for index in draw.indices:
        out.fixed(index, draw.bits)
    return out.content(), empty, own


def decoded(content: bytes) -> nn.Module:
    """The network of a file, in evaluation mode, on the CPU.

    Raises:
        PackedFileError: if it is of another kind or version, cut off or altered.
        TooLarge: if it asks for more memory than a file may.
    """
    body, check = content[:-_CHECK], content[-_CHECK:]
    if body[: len(DRAW)] != DRAW:
        raise PackedFileError("it is not the file of a draw.")
    source = BitReader(body[len(DRAW) :])
    try:
        if (version := source.fixed(_VERSION_BITS)) != _VERSION:
            raise PackedFileError(f"it is of version {version}, and this reads {_VERSION}.")
        net = read_network(source)
        own = tensors(net, net)
        scales, grids = _get_names(own, source)
        for name, tensor in own.items():
            if name not in scales:
                tensor.copy_(_get_raw(tensor, source))
        seed, blocks = source.number(), source.number()
        bits = source.fixed(_WIDTH_BITS)
        count = sum(own[name].numel() for name in scales)
        if bits > MOST_BITS or blocks > count or seed >= 1 << 64:
            raise DamagedBits("it says what no file says")
        ask(8 * blocks, "it")
        indices = [source.fixed(bits) for _ in range(blocks)]
        source.close()
        draw = Sent(scales, seed, bits, indices, grids)
        found = _weights(draw, [(name, own[name].shape) for name in scales])
    except (DamagedBits, ValueError, RuntimeError, OverflowError) as error:
        raise PackedFileError(f"it is cut off or altered: {error}.") from error
    for name, weights in found.items():
        own[name].copy_(weights)
    if _checksum(body, [*own.values()]) != check:
        raise PackedFileError("it is cut off or altered: its checksum is that of another.")
    return net


def overhead(net: nn.Module, draw: Sent) -> int:
    """Bytes of a file at most, whatever the numbers will be that are sent as they are; with indices
    of no bits, all that is beside these."""
    content, *_ = _written(net, draw, ahead=True)
    return len(content) + _CHECK


def _weights(draw: Sent, shapes: Sequence[tuple[str, torch.Size]]) -> dict[str, Tensor]:
    """The coded tensors."""
    total = sum(shape.numel() for _, shape in shapes)
    if not draw.indices or not total:
        return {}
    ask(16 * total, "it")
    order = assignment(draw.seed, total)
    ends = block_sizes(total, len(draw.indices)).cumsum().tolist()
    values = np.empty(total, np.float32)
    start = 0
    for block, (index, end) in enumerate(zip(draw.indices, ends, strict=True)):
        own = np.sort(order[start:end])
        values[own] = candidates(draw.seed, block, range(index, index + 1), end - start)[0]
        start = end
    found, at = {}, 0
    for name, shape in shapes:
        part = scaled(values[at : at + shape.numel()], draw.scales[name])
        if grid := draw.grids.get(name):
            part = from_frequencies(part.reshape(-1, *grid))
        found[name] = torch.from_numpy(part).reshape(shape)
        at += shape.numel()
    return found


def _put_names(draw: Sent, own: Mapping[str, Tensor], out: BitWriter) -> None:
    names = [*own]
    out.number(len(draw.scales))
    expected, previous = 0, -1
    for name, byte in draw.scales.items():
        if name not in own or own[name].dtype != torch.float32:
            given = f"weights {name!r} that are coded as a draw"
            raise PyroccamError(given, "a tensor of the network in single precision", "net.float()")
        place = names.index(name)
        out.fixed(int(place == expected), 1)
        if place != expected:
            out.number(place)
        out.fixed(int(byte == previous), 1)
        if byte != previous:
            out.fixed(byte, 8)
        expected, previous = place + 1, byte
        if (dims := own[name].dim()) not in _WITH_GRIDS:
            continue
        grid = draw.grids.get(name)
        out.fixed(int(grid is not None), 1)
        for size in (grid or ()) if dims == 2 else ():
            out.number(size)


def _get_names(
    own: Mapping[str, Tensor], source: BitReader
) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    names = [*own]
    found: dict[str, int] = {}
    grids: dict[str, tuple[int, int]] = {}
    expected, byte = 0, -1
    for _ in range(source.number()):
        place = expected if source.fixed(1) else source.number()
        if not source.fixed(1):
            byte = source.fixed(8)
        if place >= len(names) or names[place] in found or byte < 0:
            raise DamagedBits("it codes a tensor that there is not")
        name = names[place]
        found[name] = byte
        expected = place + 1
        shape = own[name].shape
        if len(shape) in _WITH_GRIDS and source.fixed(1):
            size = (source.number(), source.number()) if len(shape) == 2 else shape[2:]
            grids[name] = size[0], size[1]
            if not math.prod(size) or shape[1:].numel() % math.prod(size):
                raise DamagedBits("a kernel has another size")
            ask(16 * max(size) ** 2, "it")
    return found, grids


def _put_raw(tensor: Tensor, out: BitWriter) -> None:
    packed = deflated(_bytes(tensor), wbits=-15)
    out.number(len(packed))
    out.raw(packed)


def _put_most(tensor: Tensor, out: BitWriter) -> None:
    """As many bytes as :func:`_put_raw` puts at most, by the bound of ``deflateBound`` in zlib."""
    size = tensor.numel() * tensor.element_size()
    size += (size >> 12) + (size >> 14) + (size >> 25) + 7
    out.number(size)
    out.raw(bytes(size))


def _get_raw(like: Tensor, source: BitReader) -> Tensor:
    size = like.numel() * like.element_size()
    content = inflated(source.raw(source.number()), size, wbits=-15)
    if not size:
        return like
    return torch.frombuffer(bytearray(content), dtype=like.dtype).reshape(like.shape)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _checksum(content: bytes, numbers: Sequence[Tensor]) -> bytes:
    digest = hashlib.blake2b(content, digest_size=_CHECK)
    for tensor in numbers:
        digest.update(_bytes(tensor))
    return digest.digest()
