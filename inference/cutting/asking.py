"""Operations without a rule are asked: which of their features depend on which, by numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from ...models.plain import NORMS, Edit, shrunk
from .ports import Call, Link, Passing

ROWS, PLACES = 8, 3
"""Of an input with which an operation is asked, at most, and the length of its other axes, if the
operation takes so few of these: all, if not."""

TURNS = 3
"""Inputs by which a dependence may show: what is flat at one of them may not be at another."""

_ROUNDING = 1e-12
"""Of numbers that count as the same."""

Values = Mapping[Node, Tensor]


def asked(call: Call) -> Passing | None:
    """How an operation passes features, if each of its result is made of one of each tensor it
    reads, and if it does the same where some are missing; ``None`` if not.

    Features are changed by the bits of their numbers: of those with a one at a place, then of those
    with a zero. What changes each time by one of both depends on one feature, whose number the bits
    are. So C features take :math:`2 \\lceil \\log_2 C \\rceil` calls. Then the operation is called
    with some of the features alone: it has to give what it gave for these.

    What it finds holds for the numbers that it tried; a cut network is compared with the whole.
    """
    node, module, ports, _ = call
    norm = isinstance(module, NORMS)
    own = module is not None and any(True for _ in module.parameters())
    nodes = node.all_input_nodes
    if not nodes or any(n not in ports for n in nodes) or (own and not norm):
        return None
    if norm and (len(nodes) > 1 or getattr(module, "running_mean", None) is None):
        return None
    for places in (PLACES, max(max(ports[n].shape) for n in nodes)):
        try:
            return _Asking(call, places).passing()
        except Exception:  # other numbers, rows or types than it takes
            continue
    return None


class _Asking:
    """An operation that is called with numbers of ours."""

    def __init__(self, call: Call, places: int) -> None:
        node, module, ports, self.shape = call
        self.node, self.module, self.dims = node, module, len(self.shape)
        self.nodes = node.all_input_nodes
        self.axes = {n: ports[n].axis for n in self.nodes}
        self.sizes = {n: ports[n].size for n in self.nodes}
        most = max(ports[n].shape[0] for n in self.nodes)
        self.batched = [n for n in self.nodes if ports[n].shape[0] == most and n.op != "get_attr"]
        self.rows = max(2, min(most, ROWS))
        rows = {n: self.rows if n in self.batched else ports[n].shape[0] for n in self.nodes}
        self.whole = {n: (rows[n], *ports[n].shape[1:]) for n in self.nodes}
        self.shapes = self._with_places(lambda size: min(size, places))
        self.noise = torch.Generator().manual_seed(0)
        self.alone = None if module is None else copy.deepcopy(module).cpu().double().eval()

    def passing(self) -> Passing | None:
        """What the answers come to."""
        found = self._sources()
        if found is None:
            return None
        axis, sources = found
        into = {n: (of >= 0).nonzero()[:, 0] for n, of in sources.items()}
        links = [Link(n, of[into[n]], into[n]) for n, of in sources.items()]
        uses = None
        if isinstance(self.module, NORMS):
            every = torch.arange(self.sizes[self.nodes[0]])
            if axis != 1 or any(not torch.equal(one.of, one.into) for one in links):
                return None
            links = [Link(self.nodes[0], every, every)]
            uses = None if self.module.weight is None else self.module.weight.detach().cpu() != 0
        elif not torch.stack([of >= 0 for of in sources.values()]).any(0).all():
            return None  # what is made of none is there whatever is cut
        if not all(self._is_the_same_with_fewer(axis, links) for _ in range(2)):
            return None
        return Passing(axis, links, self._constants(axis, links), uses)

    def _with_places(self, length: Callable[[int], int]) -> dict[Node, tuple[int, ...]]:
        """The shapes of the tensors, all axes but those of rows and features of another length."""
        return {
            n: tuple(s if d in (0, self.axes[n]) else length(s) for d, s in enumerate(shape))
            for n, shape in self.whole.items()
        }

    def _drawn(self, n: Node, shape: Sequence[int] | None = None) -> Tensor:
        """Numbers of both signs, some of them large."""
        shape = self.shapes[n] if shape is None else shape
        draw = torch.randn(shape, generator=self.noise, dtype=torch.double)
        return draw * 10.0 ** torch.randint(-1, 2, draw.shape, generator=self.noise)

    def _call(self, values: Values, alone: nn.Module | None = None) -> Tensor:
        args, kwargs = map_arg((self.node.args, self.node.kwargs), lambda n: values[n].clone())
        alone = self.alone if alone is None else alone
        with torch.no_grad():
            if alone is not None:
                out = alone(*args, **kwargs)
            elif self.node.op == "call_method":
                out = getattr(args[0], str(self.node.target))(*args[1:], **kwargs)
            else:
                target: Any = self.node.target
                out = target(*args, **kwargs)
        if not isinstance(out, Tensor) or out.dim() != self.dims or out.dtype != torch.double:
            raise TypeError("no tensor of its own kind")
        return out

    def _sources(self) -> tuple[int, dict[Node, Tensor]] | None:
        """The axis of the features of the result, and by tensor the feature of which each is made,
        -1 for none."""
        axes = [*range(1, self.dims)]
        first = self.axes[self.nodes[0]]
        codes: dict[int, dict[Node, Tensor]] = {axis: {} for axis in axes}
        bases = [{n: self._drawn(n) for n in self.nodes} for _ in range(TURNS)]
        outs = [self._call(base) for base in bases]
        if not all(map(_same, outs, map(self._call, bases))):
            return None  # it draws
        if not all(map(self._keeps_rows_apart, bases, outs)):
            return None
        for n in self.nodes:
            number = torch.arange(self.sizes[n])
            places = max(1, math.ceil(math.log2(len(number))))
            numbers = {axis: torch.zeros(outs[0].shape[axis]).long() for axis in axes}
            ever = {axis: numbers[axis].bool() for axis in axes}
            never = {axis: numbers[axis].bool() for axis in axes}
            for place in range(places):
                ones = (number >> place) % 2 == 1
                by = [self._changed(n, part, bases, outs, axes) for part in (ones, ~ones)]
                for axis in axes[:]:
                    one, other = by[0][axis], by[1][axis]
                    if (one & other).any():
                        axes.remove(axis)
                    numbers[axis] += one.long() << place
                    ever[axis] |= one | other
                    never[axis] |= ~(one | other)
                if not axes:
                    return None
            for axis in axes[:]:
                if (ever[axis] & never[axis]).any():
                    axes.remove(axis)
                codes[axis][n] = torch.where(ever[axis], numbers[axis], -1)
        if not axes:
            return None
        axis = first if first in axes else axes[0]
        if outs[0].shape[axis] != self.shape[axis]:
            raise ValueError("features are made of places")
        return axis, codes[axis]

    def _keeps_rows_apart(self, base: dict[Node, Tensor], before: Tensor) -> bool:
        """True if another first row changes nothing of the others: what is made of all rows depends
        on how many there are."""
        other = {n: torch.cat([self._drawn(n)[:1], base[n][1:]]) for n in self.batched}
        out = self._call(base | other)
        return out.shape[0] == self.rows and _same(out[1:], before[1:])

    def _changed(
        self, n: Node, part: Tensor, bases: list[dict[Node, Tensor]], outs: list[Tensor], axes: Any
    ) -> dict[int, Tensor]:
        """By axis, where the result is another if a part of the features of a tensor is."""
        found = {axis: torch.zeros(outs[0].shape[axis]).bool() for axis in axes}
        if part.any():
            for base, before in zip(bases, outs, strict=True):
                where = _along(part, self.axes[n], len(self.shapes[n]))
                out = self._call(base | {n: torch.where(where, self._drawn(n), base[n])})
                moved = ~((out == before) | (out.isnan() & before.isnan()))
                for axis in axes:
                    found[axis] |= moved.any([d for d in range(self.dims) if d != axis])
        return found

    def _is_the_same_with_fewer(self, axis: int, links: list[Link]) -> bool:
        """True if it gives the same features where only some of those it reads are there."""
        values = {n: self._drawn(n) for n in self.nodes}
        out = self._call(values)
        kept = torch.rand(out.shape[axis], generator=self.noise) < 0.6
        kept[int(torch.randint(len(kept), (), generator=self.noise))] = True
        there = {n: torch.zeros(size).bool() for n, size in self.sizes.items()}
        before = -1
        while before != int(kept.sum()):  # what is tied comes along
            before = int(kept.sum())
            for link in links:
                there[link.source][link.of[kept[link.into]]] = True
                kept[link.into[there[link.source][link.of]]] = True
        index = kept.nonzero()[:, 0]
        fewer = {
            n: values[n].index_select(self.axes[n], t.nonzero()[:, 0]) for n, t in there.items()
        }
        alone = self.alone
        if isinstance(alone, NORMS):
            alone = shrunk(alone, Edit(outputs=index.tolist()))
        found, right = self._call(fewer, alone), out.index_select(axis, index)
        return found.shape == right.shape and torch.allclose(found, right, 1e-9, equal_nan=True)

    def _constants(self, axis: int, links: list[Link]) -> Callable[[Values], Tensor]:
        """What comes out of features that are the same number everywhere: a number, if it is the
        same everywhere, too, and not another one of more places."""

        def found(values: Values, shapes: Mapping[Node, Sequence[int]]) -> Tensor:
            given = {}
            for n in self.nodes:
                value = _along(values[n].double(), self.axes[n], len(shapes[n]))
                given[n] = torch.where(value.isnan(), self._drawn(n, shapes[n]), value)
            out = self._call(given).transpose(0, axis).flatten(1)
            same = (out - out[:, :1]).abs() <= _ROUNDING * out[:, :1].abs()
            return out[:, 0].masked_fill(~same.all(1), math.nan)

        def constants(values: Values) -> Tensor:
            known = torch.ones(max(int(link.into.max()) + 1 for link in links)).bool()
            for link in links:
                known[link.into[values[link.source][link.of].isnan()]] = False
            if not known.any():
                return torch.full(known.shape, math.nan, dtype=torch.double)
            out = found(values, self.whole)
            with suppress(Exception):  # it may take these places alone
                more = found(values, self._with_places(lambda size: size + (size > 1)))
                known &= more.shape == out.shape and (out - more).abs() <= _ROUNDING * out.abs()
            return out.masked_fill(~known, math.nan)

        return constants


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, 0.0, 0.0, equal_nan=True))


def _along(values: Tensor, axis: int, dims: int) -> Tensor:
    """Numbers of features, so that they stand along their axis of a tensor."""
    return values.view([-1 if d == axis else 1 for d in range(dims)])
