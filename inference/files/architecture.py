"""How a network is built, in few bits.

A chain of usual layers, such as a LeNet, narrowed or not, takes some twenty bytes, and becomes an
``nn.Sequential``. Any other network that can be described is its description, compressed
(:mod:`~pyroccam.models.plain.description`).
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import nn

from ...data import allowing, ask
from ...models.plain import (
    describe,
    is_select,
    parsed,
    rebuild,
    select,
    selected_dim,
    state,
    tensors_of,
)
from ..coding import USUAL_TEXT, BitReader, BitWriter, DamagedBits
from .packed_file import deflated, inflated

# The layers of a chain, by their number; what is not said of them has torch's usual value.
_SIZES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    nn.MaxPool2d: ("kernel_size", "stride"),
    nn.AvgPool2d: ("kernel_size", "stride"),
    nn.Flatten: (),
    nn.ReLU: (),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.GELU: (),
    nn.SiLU: (),
}
_KINDS = [*_SIZES]
_WITH_BIAS = (nn.Linear, nn.Conv2d)
_SELECT, _END = len(_KINDS), len(_KINDS) + 1
_KIND = 4  # bits
_MOST_FEATURES = 2**14


class _NoChain(Exception):
    """A network that is no chain of these layers."""


def write_network(net: nn.Module, out: BitWriter) -> nn.Module:
    """Append how a network is built.

    Returns:
        the network as :func:`read_network` builds it, with zeros for numbers; :func:`tensors` of
        both are in the same order.
    """
    words = BitWriter()
    try:
        words.fixed(1, 1)
        for layer in _chain(net):
            _put_layer(layer, words)
        words.fixed(_END, _KIND)
    except _NoChain:
        text = json.dumps(describe(net), separators=(",", ":"), allow_nan=False).encode()
        packed = deflated(text, wbits=-15, zdict=USUAL_TEXT)
        words = BitWriter()
        words.fixed(0, 1)
        words.number(len(packed))
        words.number(len(text))
        words.raw(packed)
    out.join(words)
    with allowing("999TB"):
        return read_network(BitReader(words.content()))


def read_network(source: BitReader) -> nn.Module:
    """The inverse of :func:`write_network`: a network to evaluate, with zeros for numbers."""
    if not source.fixed(1):
        packed_size, size = source.number(), source.number()
        text = inflated(source.raw(packed_size), size, wbits=-15, zdict=USUAL_TEXT)
        return rebuild(parsed(text, "its description"))
    layers: list[nn.Module] = []
    while (kind := source.fixed(_KIND)) != _END:
        layers.append(_get_layer(kind, source))
    return nn.Sequential(*layers).eval()


def tensors(net: nn.Module, like: nn.Module) -> dict[str, torch.Tensor]:
    """All numbers of a network, by name, in the order in which a file has them; of a chain not the
    chosen features, which are part of how it is built.

    Arguments:
        net: the sender's, or ``like`` itself.
        like: as :func:`write_network` and :func:`read_network` give it.
    """
    if not isinstance(like, nn.Sequential):
        return state(net, describe(net))
    names = [name for name, _ in net.named_modules(remove_duplicate=False)]
    return {name: tensor.detach() for name, tensor in tensors_of(net, names)}


def _chain(net: nn.Module) -> list[nn.Module]:
    """The layers of nested Sequentials, one after another; those that do nothing in evaluation are
    left out."""
    if type(net) is nn.Sequential:
        return [layer for part in net for layer in _chain(part)]
    if type(net) in (nn.Identity, nn.Dropout):
        return []
    if type(net) not in _SIZES and not is_select(net):
        raise _NoChain
    if any((net._forward_hooks, net._forward_pre_hooks)):
        raise _NoChain
    return [net]


def _put_layer(layer: nn.Module, out: BitWriter) -> None:
    if is_select(layer):
        index = layer.index.tolist()
        usual = sorted({*index}) == index and selected_dim(layer) in (1, -1)
        if not usual or index[-1] >= _MOST_FEATURES:
            raise _NoChain
        out.fixed(_SELECT, _KIND)
        out.fixed(int(selected_dim(layer) == -1), 1)
        _put_subset(index, out)
        return
    made: Any = layer
    kind = type(layer)
    sizes = [_size(getattr(made, name)) for name in _SIZES[kind]]
    with_bias = kind in _WITH_BIAS and made.bias is not None
    if _words(layer) != _words(_made(kind, sizes, with_bias)):
        raise _NoChain
    out.fixed(_KINDS.index(kind), _KIND)
    for size in sizes:
        out.number(size)
    if kind in _WITH_BIAS:
        out.fixed(int(with_bias), 1)


def _get_layer(kind: int, source: BitReader) -> nn.Module:
    if kind == _SELECT:
        dim = -1 if source.fixed(1) else 1
        return select(_get_subset(source), dim)
    if kind > _SELECT:
        raise DamagedBits(f"it has a layer of the unknown kind {kind}")
    made = _KINDS[kind]
    sizes = [source.number() for _ in _SIZES[made]]
    if any(size < 1 for size, name in zip(sizes, _SIZES[made], strict=True) if name != "padding"):
        raise DamagedBits("a layer of it has nothing in it")
    ask(4 * math.prod(sizes[:2]) * (sizes[2] ** 2 if made is nn.Conv2d else 1), "a layer of it")
    return _made(made, sizes, made in _WITH_BIAS and bool(source.fixed(1)))


def _made(kind: type[nn.Module], sizes: list[int], bias: bool) -> nn.Module:
    """A layer with these sizes, of zeros."""
    given: dict[str, Any] = dict(zip(_SIZES[kind], sizes, strict=True))
    layer = kind(**given, **({"bias": bias} if kind in _WITH_BIAS else {}))
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def _words(layer: nn.Module) -> str:
    """All that torch says of a layer, but for what changes nothing."""
    return repr(layer).replace("inplace=True", "")


def _size(value: Any) -> int:
    """One number for all sides."""
    sides = {*value} if isinstance(value, tuple) else {value}
    if len(sides) != 1 or not isinstance(found := sides.pop(), int) or found < 0:
        raise _NoChain
    return found


# -- subsets ---------------------------------------------------------------------------------------


def _put_subset(index: list[int], out: BitWriter) -> None:
    """A sorted subset of k numbers below n = its last + 1, by its place among all such, in
    ``log2 C(n, k)`` bits, rounded up."""
    n, k = index[-1] + 1, len(index)
    out.number(n)
    out.number(k)
    place = sum(math.comb(value, i + 1) for i, value in enumerate(index))
    out.fixed(place, (math.comb(n, k) - 1).bit_length())


def _get_subset(source: BitReader) -> list[int]:
    n, k = source.number(), source.number()
    if not 1 <= k <= n <= _MOST_FEATURES:
        raise DamagedBits(f"it chooses {k} of {n} features")
    count = math.comb(n, k)
    place = source.fixed((count - 1).bit_length())
    index: list[int] = []
    value = n
    for i in range(k, 0, -1):
        value -= 1
        while (below := math.comb(value, i)) > place:
            value -= 1
        place -= below
        index.append(value)
    if place:
        raise DamagedBits("it chooses features that there are not")
    return index[::-1]
