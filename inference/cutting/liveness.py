"""Which features of a network matter, which are constant, and which must be there.

Three passes over the steps of a network, each run until nothing more changes:

* forwards, which features are the same number for every input and at every position;
* backwards, whose values anybody uses. A constant is not *used* by a layer that can take it into
  its bias, and a row that nobody uses, or that is constant, uses none of its columns;
* both ways, which features must be *there*: those that are used, and those tied to them by a step
  that cannot drop one side alone, such as a residual sum. A feature may have to be there without
  being used: then it stays as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.fx import Node

from ...models.plain import Edit, is_select, rows_first
from ...models.unpacked import Cell, Matrix
from .ports import is_depthwise, pads_zeros, straight
from .wiring import Step, Wiring


@dataclass(frozen=True)
class Rows:
    """Facts on a layer's ``O`` outputs and ``I`` inputs.

    Arguments:
        constant: ``(O,)``, the value of each output, NaN if it is not constant.
        reads: ``(I,)`` bool, the columns that are used.
        bias: ``(O,)``, the bias with all constant inputs taken in.
        merged: for constants in front of a padded convolution: the column that stands for all of
            them, and its weights ``(O, positions)``.
    """

    constant: Tensor
    reads: Tensor
    bias: Tensor
    merged: tuple[int, Tensor] | None = None

    def joined(self, other: Rows) -> Rows:
        """Of a layer that is called twice."""
        constant = self.constant.masked_fill(self.constant != other.constant, math.nan)
        return Rows(constant, self.reads | other.reads, self.bias)


@dataclass(frozen=True)
class Live:
    """Features that are constant, used, and that must be there, by step, ``(C,)`` each; layers by
    name."""

    values: dict[Node, Tensor]
    used: dict[Node, Tensor]
    there: dict[Node, Tensor]
    rows: dict[str, Rows]


def find_live(wiring: Wiring, round_to: int = 1) -> Live:
    """All that decides what can be cut, for the weights as they are.

    Arguments:
        round_to: of each tensor are there as many features as a multiple of it, or all.
    """
    values = _constants(wiring)
    used, layers = _uses(wiring, values)
    there = {node: mask.clone() for node, mask in used.items()}
    for node, step in wiring.steps.items():
        if step.kind == "source":
            there[node].fill_(True)
        elif step.kind == "layer" and step.bare and step.groups > 1:  # or its groups are not even
            there[node].fill_(True)
            there[step.reads].fill_(True)
    spread(wiring, there)
    for mask in there.values():
        # A tensor cannot be empty. Only one that nobody uses comes here, say a dead branch.
        if not mask.any():
            mask[0] = True
            spread(wiring, there)
    # As many rows of a cell's layers are there as its units say.
    own = [mask for n, mask in there.items() if not isinstance(wiring.steps[n].module, Matrix)]
    while any(_raised(mask, round_to) for mask in own):
        spread(wiring, there)
    rows = {}
    for step in wiring.layers():
        if step.kind == "layer":
            rows[step.name] = layers[step.name]
        else:
            mine, bias = values[step.node], _bias(step)
            if isinstance(step.module, nn.Embedding):  # which has no bias to be constant by
                mine = mine.new_full(mine.shape, math.nan)
            rows[step.name] = Rows(mine, used[step.node] & mine.isnan(), bias)
    return Live(values, used, there, rows)


def _raised(there: Tensor, round_to: int) -> bool:
    """Whether features had to be added, the first that were not there."""
    lacking = (~there).nonzero()[: -int(there.sum()) % round_to, 0]
    there[lacking] = True
    return len(lacking) > 0


def why_zeros_stay(wiring: Wiring, live: Live, edits: Mapping[str, Edit]) -> dict[str, str]:
    """Of layers with outputs that are kept though they are zero or nobody reads them: how many,
    and for what."""
    zeros: dict[str, tuple[Node, Tensor]] = {}
    for step in wiring.layers():
        found = ~live.used[step.node] | (live.values[step.node] == 0)
        kept = edits[step.name].outputs if step.name in edits else None
        if kept is not None:
            found &= torch.zeros_like(found).index_fill(0, torch.tensor(kept), True)
        if step.name in zeros:  # of another call
            found &= zeros[step.name][1]
        zeros[step.name] = step.node, found
    zeros = {name: (node, found) for name, (node, found) in zeros.items() if found.any()}
    nodes = [*wiring.steps]
    marks = {}
    for number, (node, step) in enumerate(wiring.steps.items(), 1):
        marks[node] = (live.used[node] | (step.kind == "source")).long() * number
    spread(wiring, marks)
    why = {}
    for name, (node, found) in zeros.items():
        number = int(marks[node][found].max())
        at = nodes[number - 1] if number else node
        readers = [n for n in at.users if at in wiring.whole and n not in wiring.steps]
        readers += [n for n in at.users if n in wiring.steps and wiring.steps[n].kind == "source"]
        by = (readers or [at])[0]
        where = by.target if by.op == "call_module" else by.name
        why[name] = f"{int(found.sum())} outputs that are zero stay, because of {str(where)!r}"
    return why


def spread(wiring: Wiring, marks: dict[Node, Tensor]) -> None:
    """Give all features that are tied together the greatest of their marks, in place.

    Arguments:
        wiring: of the network.
        marks: by step, ``(C,)``, bools or integers.
    """
    steps = wiring.steps.values()
    links = [(step.node, link) for step in steps for link in step.passing.links]
    links += [tie for step in steps for tie in step.passing.ties]
    for first, other in wiring.again():
        links.append((first.node, straight(other.node, other.port)))
        links.append((first.reads, straight(other.reads, wiring.steps[other.reads].port)))
    changed = True
    while changed:
        changed = False
        # There and back, so that a mark crosses the whole network in one turn.
        for node, link in links + links[::-1]:
            here, before = marks[node], marks[link.source]
            most = torch.maximum(here[link.into], before[link.of])
            if torch.equal(most, here[link.into]) and torch.equal(most, before[link.of]):
                continue
            changed = True
            for marks_of, index in ((here, link.into), (before, link.of)):
                wide = marks_of.long().scatter_reduce(0, index, most.long(), "amax")
                marks_of.copy_(wide)


def _weight(step: Step) -> Tensor:
    """``(O, I, positions)`` in double precision, for exact sums."""
    weight = rows_first(step.module)
    weight = weight.detach().cpu().to(torch.double, copy=True).reshape(*weight.shape[:2], -1)
    if step.groups == 1:
        return weight
    blocks = weight.unflatten(0, (step.groups, -1))
    wide = blocks.new_zeros(step.groups, *blocks.shape[:2], *blocks.shape[2:]).transpose(1, 2)
    each = torch.arange(step.groups)
    wide[each, :, each] = blocks
    return wide.flatten(2, 3).flatten(0, 1)


def _bias(step: Step) -> Tensor:
    bias = getattr(step.module, "bias", None)
    if not isinstance(bias, Tensor):
        return torch.zeros(len(rows_first(step.module)), dtype=torch.double)
    return bias.detach().cpu().double()


def _known(step: Step, values: Mapping[Node, Tensor]) -> Tensor:
    """The constants that a layer can take into its bias, ``(I,)``, NaN for all other inputs."""
    value = values[step.reads]
    if not step.aligned:  # along another axis only zeros are the same everywhere
        return value.new_full((step.width,), math.nan if (value != 0).any() else 0.0)
    # A border of zeros around a constant image is an edge, unless the constant is zero too; and
    # another call may have another constant.
    zeros = step.shared or pads_zeros(step.module)
    return value.masked_fill(value != 0, math.nan) if zeros else value


def _merged(step: Step, values: dict[Node, Tensor]) -> tuple[int, Tensor] | None:
    """One constant channel in place of all, where a border keeps them out of the bias.

    Channels ``c_i`` with kernels ``w_i`` do what one channel ``c_r`` with the kernel
    ``sum_i w_i c_i / c_r`` does, at the border too.
    """
    if not step.aligned or step.shared or not pads_zeros(step.module) or step.groups > 1:
        return None
    value = values[step.reads].nan_to_num(0.0)
    if not value.any():
        return None
    one = int(value.abs().argmax())  # the largest: no division blows up
    return one, torch.einsum("oip,i->op", _weight(step), value / value[one])


def _constants(wiring: Wiring) -> dict[Node, Tensor]:
    # Units of cells are zero, until they are found not to be.
    values = {node: torch.zeros(wiring.steps[node].port.size).double() for node in wiring.cells}
    while True:
        before = [values[node].isnan() for node in wiring.cells]
        for node, step in wiring.steps.items():
            values[node] = _constant(step, values)
            if node in wiring.overwritten:
                values[node] = values[node].new_full((step.port.size,), math.nan)
        if all(map(torch.equal, before, (values[node].isnan() for node in wiring.cells))):
            return values


def _constant(step: Step, values: Mapping[Node, Tensor]) -> Tensor:
    unknown = torch.full((step.port.size,), math.nan, dtype=torch.double)
    if step.kind == "passing":
        return step.passing.constants(values)
    if step.kind == "source":
        return unknown
    if is_select(step.module):
        return step.chosen(values[step.reads], 0.0) if step.aligned else unknown
    known = _known(step, values)
    varies = (_weight(step) != 0).any(2)[:, known.isnan()].any(1)
    return _with_constants(step, known).masked_fill(varies, math.nan)


def _with_constants(step: Step, known: Tensor) -> Tensor:
    return _bias(step) + _weight(step).sum(2) @ known.nan_to_num(0.0)


def _uses(wiring: Wiring, values: dict[Node, Tensor]) -> tuple[dict[Node, Tensor], dict[str, Rows]]:
    used = {
        node: torch.full((step.port.size,), node in wiring.whole)
        for node, step in wiring.steps.items()
    }
    while True:
        before = [used[node].clone() for node in wiring.cells]
        layers = _read(wiring, values, used)
        calls = [(used[first.node], used[other.node]) for first, other in wiring.again()]
        found = [*calls, *zip(before, (used[node] for node in wiring.cells), strict=True)]
        if all(torch.equal(one, other) for one, other in found):
            return used, layers
        for one, other in calls * 2:  # what is used of one is of all
            one |= other
            other |= one


def _read(wiring: Wiring, values: dict[Node, Tensor], used: dict[Node, Tensor]) -> dict[str, Rows]:
    """The layers; what they, and others, use is added."""
    layers: dict[str, Rows] = {}
    for node, step in reversed(wiring.steps.items()):
        mine = used[node]
        needs, whole = mine, step.passing.whole
        if step.passing.uses is not None:
            needs = mine & step.passing.uses
        if whole is not None and needs.any():
            used[whole] |= values[whole] != 0
        if is_depthwise(step.module) or isinstance(step.module, Cell):
            needs = needs & values[node].isnan()  # a constant is kept by biases
        for link in [*step.passing.links, *step.passing.mixed]:
            used[link.source][link.of[needs[link.into]]] = True
        if step.kind != "layer":
            continue
        if is_select(step.module):
            every = torch.arange(len(used[step.reads]))
            columns = torch.isin(every, step.module.index.cpu()[mine])
        else:
            known, weight = _known(step, values), _weight(step)
            merged = _merged(step, values)
            if merged is not None:
                weight[:, ~values[step.reads].isnan()] = 0
                weight[:, merged[0]] = merged[1]
            columns = (weight[mine] != 0).any(2).any(0) & known.isnan()
            bias = _with_constants(step, known)
            rows = Rows(values[node], columns, bias, merged)
            layers[step.name] = layers[step.name].joined(rows) if step.name in layers else rows
        if step.aligned:
            used[step.reads] |= columns
    return layers
