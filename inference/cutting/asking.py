"""Operations are asked: which of their features depend on which, by numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from ...models.plain import CHANNELWISE, Edit, shrunk
from .ports import Call, Link, Passing, is_depthwise

ROWS, PLACES = 8, 3
"""Of an input with which an operation is asked, and the length of its other axes, at most; or as
many as there are, if it takes no others."""

NUMBERS = 48
"""Of a feature by which a dependence may show, at least: what is flat at one of them may not be at
another."""

_ROUNDING = 1e-12
"""Of numbers that count as the same."""

Values = Sequence[Tensor]


class Answer(NamedTuple):
    """How an operation passes features, of any tensors of these shapes.

    Attributes:
        axis: of the features of the result.
        pairs: by tensor, features of it and of the result, as in a :class:`Link`; of a tensor with
            one feature for all of the result, that is not cut with them.
        constants, uses, rigid: as in :class:`Passing`, of the tensors in their order.
    """

    axis: int
    pairs: list[tuple[Tensor, Tensor]]
    constants: Callable[[Values], Tensor]
    uses: Tensor | None
    rigid: bool


def asked(call: Call, answers: dict[str, Answer | None]) -> Passing | None:
    """How an operation passes features, if each of its result is made of one of each tensor it
    reads, and if it does the same where some are missing; ``None`` if not.

    Features are changed by the bits of their numbers: of those with a one at a place, then of those
    with a zero. What changes each time by one of both depends on one feature, whose number the bits
    are. So C features take :math:`2 \\lceil \\log_2 C \\rceil` calls. Then the operation is called
    with some of the features alone: it has to give what it gave for these.

    What it finds holds for the numbers that it tried; a cut network is compared with the whole.

    Arguments:
        answers: of the same network to operations without numbers of their own; it is added to.
    """
    nodes, module = call.tensors, call.module
    owned = [] if module is None else [*module.parameters(), *module.buffers()]
    if not nodes or (owned and not is_channelwise(module) and sum(p.numel() for p in owned) > 1):
        return None
    key = "" if owned or not {*call.node.all_input_nodes} <= {*nodes} else _name(call, nodes)
    if not key or key not in answers:
        answers[key] = _answer(call)
    found = answers[key]
    if found is None:
        return None
    links: list[Link] = []
    mixed: list[Link] = []
    for n, (of, into) in zip(nodes, found.pairs, strict=True):
        (mixed if _is_one_for_all(of, into) else links).append(Link(n, of, into))
    axis, _, constants, uses, rigid = found

    def of_nodes(values: Mapping[Node, Tensor]) -> Tensor:
        return constants([values[n] for n in nodes])

    return Passing(axis, links, of_nodes, uses, rigid, mixed, asked=True)


def _is_one_for_all(of: Tensor, into: Tensor) -> bool:
    return len(into) > 1 and not of.any()


def is_channelwise(module: nn.Module | None) -> bool:
    """True for a module with numbers of its own for each feature, of which some can be taken."""
    one = isinstance(module, nn.PReLU) and module.num_parameters == 1
    return (
        module is not None and not one and (isinstance(module, CHANNELWISE) or is_depthwise(module))
    )


def _name(call: Call, nodes: Sequence[Node]) -> str:
    """The same for calls that have the same answer."""
    node, module = call.node, call.module
    given = map_arg((node.args, node.kwargs), lambda n: ("input", nodes.index(n)))
    kinds = [
        (call.ports[n].axis, n.op == "get_attr", n in call.truths, n in call.fixed) for n in nodes
    ]
    ports = [(*call.ports[n].shape, *kind) for n, kind in zip(nodes, kinds, strict=True)]
    kind = {} if module is None else {k: v for k, v in vars(module).items() if k[0] != "_"}
    what = node.target if module is None else type(module)
    return repr((what, [*kind.items()], given, ports, call.shape))


def _answer(call: Call) -> Answer | None:
    shapes = [call.ports[n].shape for n in call.tensors]
    most, own = max(map(max, shapes)), _rows_of(call)
    for rows, places in ((ROWS, PLACES), (ROWS, most), (own, most)):
        with suppress(Exception):  # other numbers, rows or types than it takes
            if (found := _Asking(call, rows, places).answer()) is not None:
                return found
    return None


def _rows_of(call: Call) -> int:
    """The rows of the tensors that are no constants."""
    return max((call.ports[n].shape[0] for n in call.tensors if n.op != "get_attr"), default=1)


class _Asking:
    """An operation that is called with numbers of ours."""

    def __init__(self, call: Call, rows: int, places: int) -> None:
        self.call, self.dims = call, len(call.shape)
        self.nodes = call.tensors
        ports = [call.ports[n] for n in self.nodes]
        self.axes, self.sizes = [p.axis for p in ports], [p.size for p in ports]
        self.fixed = [n in call.fixed for n in self.nodes]
        self.batched = [
            p.shape[0] == _rows_of(call) and n.op != "get_attr"
            for n, p in zip(self.nodes, ports, strict=True)
        ]
        self.rows = rows
        self.whole = [
            (self.rows if batched else p.shape[0], *p.shape[1:])
            for p, batched in zip(ports, self.batched, strict=True)
        ]
        self.shapes = [
            tuple(s if d in (0, axis) else min(s, places) for d, s in enumerate(shape))
            for axis, shape in zip(self.axes, self.whole, strict=True)
        ]
        self.noise = torch.Generator().manual_seed(0)
        module = call.module
        self.channelwise = is_channelwise(module)
        self.alone = None if module is None else copy.deepcopy(module).cpu().double().eval()

    def answer(self) -> Answer | None:
        """What the answers come to."""
        uses = None
        if self.channelwise:
            one, other = (self._call([self._drawn(self.shapes[0])]) for _ in "ab")
            if self.axes != [1] or one.shape[1] != self.sizes[0]:
                return None
            if not self._keeps_rows_apart([v := self._drawn(self.shapes[0])], self._call([v])):
                return None
            axis, uses = 1, (one != other).transpose(0, 1).flatten(1).any(1)
            pairs = [(torch.arange(len(uses)), torch.arange(len(uses)))]
        else:
            found = self._sources()
            if found is None:
                return None
            axis, sources = found
            made = [(of >= 0).nonzero()[:, 0] for of in sources]
            pairs = [(of[into], into) for of, into in zip(sources, made, strict=True)]
            if not torch.stack([of >= 0 for of in sources]).any(0).all():
                return None  # what is made of none is there whatever is cut
        reshapes = self.call.is_of("view", torch.reshape) or self.call.is_of("reshape")
        for rigid in (False, True)[: 1 + reshapes]:
            with suppress(Exception):
                if all(self._is_the_same_with_fewer(axis, pairs, rigid) for _ in range(2)):
                    return Answer(axis, pairs, self._constants(axis, pairs, uses), uses, rigid)
        return None

    def _drawn(self, shape: Sequence[int]) -> Tensor:
        """Numbers of both signs, some of them large."""
        draw = torch.randn(shape, generator=self.noise, dtype=torch.double)
        return draw * 10.0 ** torch.randint(-1, 2, draw.shape, generator=self.noise)

    def _call(self, values: Values, alone: nn.Module | None = None, resized: Any = None) -> Tensor:
        """What comes out, with a size of a reshaping call, ``(axis, size)``, instead of its own."""
        made: dict[Node, Any] = {
            n: v > 0 if n in self.call.truths else v.clone()
            for n, v in zip(self.nodes, values, strict=True)
        }
        made |= self.call.numbers
        alone = self.alone if alone is None else alone
        with torch.no_grad():
            for node in (*self.call.inner, self.call.node):
                args, kwargs = map_arg((node.args, node.kwargs), lambda n: made[n])
                if node is self.call.node and alone is not None:
                    made[node] = alone(*args, **kwargs)
                    continue
                if node is self.call.node and resized is not None:
                    sizes: Any = args[1:] if len(args) > 2 else args[1]
                    sizes = [*sizes]
                    sizes[resized[0]] = resized[1]
                    args = (args[0], sizes)
                target: Any = node.target
                if node.op == "call_method":
                    made[node] = getattr(args[0], target)(*args[1:], **kwargs)
                else:
                    made[node] = target(*args, **kwargs)
        out = made[self.call.node]
        if not isinstance(out, Tensor) or out.dim() != self.dims:
            raise TypeError("no tensor of its own kind")
        if not out.is_floating_point() and out.dtype != torch.bool:
            raise TypeError("whole numbers")
        return out.double()

    def _sources(self) -> tuple[int, list[Tensor]] | None:
        """The axis of the features of the result, and by tensor the feature of which each is made,
        -1 for none."""
        axes = [*range(1, self.dims)]
        each = min(math.prod(s) // s[d] for s, d in zip(self.shapes, self.axes, strict=True))
        turns = range(math.ceil(NUMBERS / each))
        bases, others = ([[*map(self._drawn, self.shapes)] for _ in turns] for _ in "ab")
        outs = [self._call(base) for base in bases]
        if not all(map(_same, outs, map(self._call, bases))):
            return None  # it draws
        if not all(map(self._keeps_rows_apart, bases, outs)):
            return None
        tried = [*zip(bases, others, outs, strict=True)]
        codes: dict[int, list[Tensor]] = {axis: [] for axis in axes}
        mixed = dict.fromkeys(axes, 0)
        for k, size in enumerate(self.sizes):
            number = torch.arange(size)
            numbers: dict[int, Tensor] = {}
            several = dict.fromkeys(axes, False)  # or else each is made of one, or of none
            for place in range(max(1, math.ceil(math.log2(size)))):
                ones = (number >> place) % 2 == 1
                by = [self._changed(k, part, tried, axes) for part in (ones, ~ones)]
                for axis in axes[:]:
                    one, other = by[0][axis], by[1][axis]
                    of = numbers.setdefault(axis, (one | other).long() - 1)
                    several[axis] |= bool(((one & other) | ((one | other) != (of >= 0))).any())
                    if several[axis] and not self.fixed[k]:
                        axes.remove(axis)
                    of += one.long() << place
                if not axes:
                    return None
            for axis in axes:
                mixed[axis] += several[axis]
                codes[axis].append(torch.where(torch.tensor(several[axis]), -1, numbers[axis]))
        axis = min(axes, key=lambda a: (mixed[a], a != self.axes[0]))
        if outs[0].shape[axis] != self.call.shape[axis]:
            raise ValueError("features are made of places")
        return axis, codes[axis]

    def _keeps_rows_apart(self, base: Values, before: Tensor) -> bool:
        """True if another first row changes nothing of the others: what is made of all rows depends
        on how many there are."""
        other = [
            torch.cat([self._drawn(v.shape)[:1], v[1:]]) if batched else v
            for v, batched in zip(base, self.batched, strict=True)
        ]
        out = self._call(other)
        return out.shape[0] == self.rows and _same(out[1:], before[1:])

    def _changed(
        self, k: int, part: Tensor, tried: Sequence[tuple[Values, Values, Tensor]], axes: list[int]
    ) -> dict[int, Tensor]:
        """By axis, where the result is another if a part of the features of a tensor is."""
        found = {axis: torch.zeros(tried[0][2].shape[axis]).bool() for axis in axes}
        if part.any():
            where = _along(part, self.axes[k], len(self.shapes[k]))
            for base, other, before in tried:
                new = torch.where(where, other[k], base[k])
                out = self._call([*base[:k], new, *base[k + 1 :]])
                moved = ~((out == before) | (out.isnan() & before.isnan()))
                for axis in axes:
                    found[axis] |= moved.any([d for d in range(self.dims) if d != axis])
        return found

    def _is_the_same_with_fewer(
        self, axis: int, pairs: list[tuple[Tensor, Tensor]], rigid: bool
    ) -> bool:
        """True if it gives the same features where only some of those it reads are there."""
        values = [*map(self._drawn, self.shapes)]
        out = self._call(values)
        share = 1.2
        kept = torch.ones(out.shape[axis]).bool()
        while kept.all() and share * len(kept) > 1:
            share /= 2
            kept = torch.rand(len(kept), generator=self.noise) < share
            kept[int(torch.randint(len(kept), (), generator=self.noise))] = True
            there = [
                torch.full((size,), fixed and not len(of))
                for size, fixed, (of, _) in zip(self.sizes, self.fixed, pairs, strict=True)
            ]
            before = -1
            while before != int(kept.sum()):  # what is tied comes along
                before = int(kept.sum())
                for have, (of, into) in zip(there, pairs, strict=True):
                    have[of[kept[into]]] = True
                    if not _is_one_for_all(of, into):
                        kept[into[have[of]]] = True
        index = kept.nonzero()[:, 0]
        fewer = [
            v.index_select(dim, have.nonzero()[:, 0])
            for v, dim, have in zip(values, self.axes, there, strict=True)
        ]
        alone = self.alone
        if alone is not None and self.channelwise:
            alone = shrunk(alone, Edit(outputs=index.tolist()))
        found = self._call(fewer, alone, (axis, len(index)) if rigid else None)
        right = out.index_select(axis, index)
        return found.shape == right.shape and torch.allclose(found, right, 1e-9, equal_nan=True)

    def _constants(
        self, axis: int, pairs: list[tuple[Tensor, Tensor]], uses: Tensor | None
    ) -> Callable[[Values], Tensor]:
        """What comes out of features that are the same number everywhere: a number, if it is the
        same everywhere, too, and not another one of more places. Zero times anything is one."""

        def found(values: Values, more: int) -> Tensor:
            for rows in (1, self.rows):
                given = []
                for own, dim, shape in zip(values, self.axes, self.whole, strict=True):
                    value = torch.where(own.isnan(), self._drawn(own.shape), own.double())
                    sizes = [s + more * (s > 1 and d != dim) for d, s in enumerate(shape)]
                    sizes[0] = min(rows, shape[0])
                    given.append(_along(value, dim, len(shape)).expand(sizes))
                with suppress(Exception):
                    out = self._call(given).transpose(0, axis).flatten(1)
                    same = (out - out[:, :1]).abs() <= _ROUNDING * out[:, :1].abs()
                    if len(out) != self.call.shape[axis]:
                        raise ValueError("features are made of rows")
                    return out[:, 0].masked_fill(~same.all(1), math.nan)
            raise ValueError("it takes other places")

        def constants(values: Values) -> Tensor:
            size = self.call.shape[axis]
            unknown, zero = torch.zeros(size).bool(), torch.zeros(size).bool()
            for value, fixed, (of, into) in zip(values, self.fixed, pairs, strict=True):
                unknown[into[value[of].isnan()]] = True
                unknown |= fixed and not len(of)
                zero[into[value[of] == 0]] = True
            if uses is not None:
                unknown &= uses
            if (unknown & ~zero).all():
                return torch.full((size,), math.nan, dtype=torch.double)
            out = found(values, 0)
            known = ~unknown | (zero & (out == 0))
            with suppress(Exception):  # it may take these places alone
                more = found(values, 1)
                known &= (out - more).abs() <= _ROUNDING * out.abs()
            return out.masked_fill(~known, math.nan)

        return constants


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, 0.0, 0.0, equal_nan=True))


def _along(values: Tensor, axis: int, dims: int) -> Tensor:
    """Numbers of features, so that they stand along their axis of a tensor."""
    return values.view([-1 if d == axis else 1 for d in range(dims)])
