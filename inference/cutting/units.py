"""Units of a network: what of its tensors goes together."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .liveness import spread
from .masks import Mask, masked
from .recording import Example, Inputs
from .wiring import read_wiring


@dataclass(frozen=True)
class Units:
    """The unit of each row and of each column of the layers, by their names, from 1; 0 of rows that
    stay.

    Attributes:
        rows: ``(O,)`` of each layer. A unit of a residual sum has rows in all layers that write it,
            one of a recurrent layer a row for each gate.
        columns: ``(I,)`` of each layer. Columns of what stays are units by themselves.
        count: of units, and the 0.
    """

    rows: dict[str, Tensor]
    columns: dict[str, Tensor]
    count: int

    def gone(
        self, worth: Mapping[str, Tensor], share: float, *, even: bool = False
    ) -> dict[str, Mask]:
        r"""What goes if that share of the weights is to be left in the tensors.

        A unit is gone if all of its rows are, or all of its columns. What it is worth is the less
        of both, of each of its weights; those that are worth least go first. One unit of each layer
        stays, and what is also written by a layer whose weights have no worth, such as a table.

        Arguments:
            worth: of each weight, ``(O, I, ...)``, by layer.
            even: each layer loses the same share of what it writes, and nothing of what it alone
                reads; or else the least of all layers go.
        """
        sums = [torch.zeros(self.count).double() for _ in range(3)]
        for side, labels in enumerate((self.rows, self.columns)):
            for name in labels.keys() & worth.keys():
                unit = labels[name]
                each = worth[name].double().transpose(0, side).flatten(1)
                sums[side].index_add_(0, unit, each.sum(1))
                sums[2].index_add_(0, unit, torch.full((len(unit),), float(each.shape[1])).double())
        rows, columns, size = sums
        least = torch.where((rows > 0) & (columns > 0), rows.minimum(columns), rows + columns)
        each = least / size.clamp_min(1.0)
        each[0] = torch.inf
        for name in self.rows.keys() - worth.keys():
            each[self.rows[name]] = torch.inf
        for unit in (*self.rows.values(), *self.columns.values()):
            each[unit[each[unit].argmax()]] = torch.inf
        if even:
            ranks = torch.full_like(each, torch.inf)
            for unit in map(torch.unique, self.rows.values()):
                ranks[unit] = each[unit].argsort().argsort().double() / len(unit)
            each = torch.where(each.isfinite(), ranks, torch.inf)
        order = each.argsort()[: int(each.isfinite().sum())]
        counts = range(len(order))
        gone = bisect_left(counts, True, key=lambda k: self._left(worth, order[:k]) <= share)
        return self._masks(order[:gone])

    def _masks(self, gone: Tensor) -> dict[str, Mask]:
        kept = torch.ones(self.count).bool().index_fill(0, gone, False)
        return {
            name: Mask(kept[self.columns[name]] if name in self.columns else None, kept[unit])
            for name, unit in self.rows.items()
        }

    def _left(self, worth: Mapping[str, Tensor], gone: Tensor) -> float:
        masks = self._masks(gone)
        sides = {name: (one.outputs, one.inputs) for name, one in masks.items()}
        shares = {
            name: math.prod(float(side.double().mean()) for side in both if side is not None)
            for name, both in sides.items()
        }
        left = sum(one.numel() * shares.get(name, 1.0) for name, one in worth.items())
        return left / sum(one.numel() for one in worth.values())


@torch.no_grad()
def units_of(net: nn.Module, example: Inputs) -> Units:
    """The units of a network, in the words of its layers with one group.

    Arguments:
        net: a plain network that torch.fx can trace, or whose path does not depend on values.
        example: inputs as it is called with.

    Raises:
        PyroccamError: if it cannot be traced.
    """
    wiring = read_wiring(masked(net, {}).eval(), Example.of(net, example), {})
    marks, count = {}, 1
    for node, step in wiring.steps.items():
        marks[node] = torch.arange(count, count := count + step.port.size)
    spread(wiring, marks)
    stays = torch.zeros(count).bool()
    for node, step in wiring.steps.items():
        stays[marks[node]] |= node in wiring.whole or step.kind == "source"
    rows: dict[str, Tensor] = {}
    columns: dict[str, Tensor] = {}
    for step in wiring.layers():
        if step.groups > 1 and step.kind == "layer":
            continue
        rows[step.name] = marks[step.node].masked_fill(stays[marks[step.node]], 0)
        if step.kind == "layer":
            read = marks[step.reads] if step.aligned else torch.zeros(step.width).long()
            alone = stays[read] | (read == 0)
            columns[step.name] = read.masked_scatter(alone, torch.arange(count, count + len(read)))
            count += int(alone.sum())
    return Units(rows, columns, count)
