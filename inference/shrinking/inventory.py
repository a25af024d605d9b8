"""An inventory of a compressed network: what is left of its layers, its inputs and its bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvTransposeNd

from ...data import PyroccamError
from ...models.layers import BayesianLayer
from ...models.plain import is_select
from ..cutting import inside
from ..files import Small
from .relevance import Irrelevance


@dataclass(frozen=True)
class Remains:
    """The weights of a layer that are left.

    Attributes:
        layer: its name in the network that was compressed.
        kept: ``(O, I * kernel)``, bool, of the layer as it is now; single weights of it may be gone
            too.
        before: rows and columns of the layer before anything was cut.
    """

    layer: str
    kept: Tensor
    before: tuple[int, int]

    @property
    def fraction(self) -> float:
        return int(self.kept.sum()) / math.prod(self.before)


def remains(small: Small, before: Mapping[str, torch.Size]) -> dict[str, Remains]:
    """The weights that are left, by layer, in the order of the network.

    Arguments:
        before: shapes ``(O, I, *kernel)`` of the weights of its layers before anything was cut
            (``(I, O, *kernel)`` of transposed convolutions), in the order of its layers: those of
            the first fit, where the network was narrowed since, by the names of that fit, which are
            used.
    """
    if len(before) != len(small.report.bits):
        raise PyroccamError(f"before={[*before]}", f"as many as {[*small.report.bits]}")
    found = {}
    for (name, shape), own in zip(before.items(), small.report.bits, strict=True):
        layer: Any = small.net.get_submodule(inside(small.net, own))
        weight = layer.weight.detach().cpu()
        if isinstance(layer, _ConvTransposeNd) and layer.groups == 1:
            weight, shape = weight.transpose(0, 1), torch.Size([shape[1], shape[0], *shape[2:]])
        found[name] = Remains(name, weight.flatten(1) != 0, (shape[0], math.prod(shape[1:])))
    return found


def left_of(small: Small, layer: BayesianLayer, one: Irrelevance) -> Tensor:
    """What is left of the groups or weights of a layer, bool, in the shape of their irrelevance.
    What led nowhere is gone, too, whatever its own irrelevance."""
    shape, dim = layer.affine.shape, layer.affine.output_dim
    own: Any = small.net.get_submodule(inside(small.net, layer.name))
    kept = own.weight.detach().cpu() != 0
    cut = small.report.layers.get(layer.name)
    for axis, units in () if cut is None else ((dim, cut.outputs), (1 - dim, cut.inputs)):
        if kept.shape[axis] != shape.weight[axis]:  # not of the one input of a depthwise filter
            size = [*kept.shape[:axis], shape.weight[axis], *kept.shape[axis + 1 :]]
            kept = kept.new_zeros(size).index_copy(axis, units, kept)
    return kept.movedim(shape.group_dim or 0, 0).flatten(1).any(1) if one.grouped else kept


def input_use(small: Small, before: torch.Size, shape: Sequence[int]) -> Tensor | None:
    """The number of weights of the first layer that each input still goes into, int64; ``None``
    where the first layer is no linear layer over all inputs.

    Arguments:
        before: shape of the weight of its first layer before anything was cut.
        shape: of an input of the network, without the batch, and of the counts.
    """
    total = math.prod(shape)
    if len(before) != 2 or before[1] != total:
        return None
    path = inside(small.net, next(iter(small.report.bits)))
    counts = (small.net.get_parameter(f"{path}.weight").detach().cpu() != 0).sum(0)
    # Behind a selection, perhaps, which knows the numbers of its inputs.
    front = small.net.get_submodule(path[:-1] + "0") if path.endswith(".1") else None
    if is_select(front):
        every = torch.zeros(total, dtype=counts.dtype)
        counts = every.index_add_(0, front.index.cpu(), counts)
    return counts.reshape(*shape)


def bytes_by_part(small: Small, names: Sequence[str] | None = None) -> dict[str, float]:
    """The bytes of the file of a compressed network, by what takes them: the weights of each layer,
    by ``names`` where these are to differ from ``small.report.bits``, then ``biases and others``,
    ``tables`` (codebooks and probabilities) and ``description`` (of the network, with the frame of
    the file)."""
    written = small.size
    coded = {row.name: row.bits / 8 for row in written.tensors}
    parts = {
        name: coded.pop(f"{inside(small.net, own)}.weight", 0.0)
        for name, own in zip(names or list(small.report.bits), small.report.bits, strict=True)
    }
    weights = sum(parts.values())
    parts["biases and others"] = max(written.coded - weights, 0.0)
    parts["tables"] = float(written.tables)
    parts["description"] = written.total - sum(parts.values())
    return parts
