"""Operations are asked: which of their features depend on which, by numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from ...models.plain import CHANNELWISE, Edit, resized, shrunk
from .ports import RESHAPES, Call, Link, Passing, is_depthwise

ROWS, PLACES = 8, 3
"""Of an input with which an operation is asked, and the length of its other axes, at most; or as
many as there are, if it takes no others."""

NUMBERS = 48
"""Of a feature by which a dependence may show, at least: what is flat at one of them may not be at
another."""

_ROUNDING = 1e-12
"""Of numbers that count as the same."""

Values = Sequence[Tensor]


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

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        return found.constants([values[n] for n in nodes])

    return Passing(found.axis, links, constants, found.uses, found.rigid, mixed, asked=True)


def _is_one_for_all(of: Tensor, into: Tensor) -> bool:
    return len(into) > 1 and not of.any()


def is_channelwise(module: nn.Module | None) -> bool:
    """True for a module with numbers of its own for each feature, of which some can be taken."""
    one = isinstance(module, nn.PReLU) and module.num_parameters == 1
    return not one and (isinstance(module, CHANNELWISE) or is_depthwise(module))


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
    most, own = max(max(call.ports[n].shape) for n in call.tensors), _rows_of(call)
    for rows, places in ((ROWS, PLACES), (ROWS, most), (own, most)):
        with suppress(Exception):  # other numbers, rows or types than it takes
            return Answer(call, rows, places)
    return None


def _rows_of(call: Call) -> int:
    """The rows of the tensors that are no constants."""
    return max((call.ports[n].shape[0] for n in call.tensors if n.op != "get_attr"), default=1)


class Answer:
    """How an operation, called with numbers of ours, passes features, of any tensors of its shapes.

    Attributes:
        axis: of the features of the result.
        pairs: by tensor, features of it and of the result, as in a :class:`Link`; of a tensor with
            one feature for all of the result, that is not cut with them.
        uses, rigid: as in :class:`Passing`.

    Raises:
        Exception: if it passes none.
    """

    def __init__(self, call: Call, rows: int, places: int) -> None:
        self.call, self.nodes, self.rows = call, call.tensors, rows
        ports = [call.ports[n] for n in self.nodes]
        self.axes, self.sizes = [p.axis for p in ports], [p.size for p in ports]
        self.fixed = [n in call.fixed for n in self.nodes]
        self.batched = [
            p.shape[0] == _rows_of(call) and n.op != "get_attr"
            for n, p in zip(self.nodes, ports, strict=True)
        ]
        self.whole = [
            (rows if batched else p.shape[0], *p.shape[1:])
            for p, batched in zip(ports, self.batched, strict=True)
        ]
        self.shapes = [
            tuple(s if d in (0, axis) else min(s, places) for d, s in enumerate(shape))
            for axis, shape in zip(self.axes, self.whole, strict=True)
        ]
        self.noise = torch.Generator().manual_seed(0)
        module = call.module
        self.alone: Any = None if module is None else copy.deepcopy(module).cpu().double().eval()
        self.uses: Tensor | None = None
        self.axis, self.pairs = self._own() if is_channelwise(module) else self._sources()
        for self.rigid in (False, True)[: 1 + (call.node.target in RESHAPES)]:
            with suppress(Exception):
                if all(self._is_the_same_with_fewer() for _ in range(2)):
                    return
        raise ValueError("fewer are others")

    def constants(self, values: Values) -> Tensor:
        """What comes out of features that are the same number everywhere: a number, if it is the
        same everywhere, too, and not another one of more places. Zero times anything is one."""
        size = self.call.shape[self.axis]
        unknown, zero = torch.zeros(2, size).bool()
        for value, fixed, (of, into) in zip(values, self.fixed, self.pairs, strict=True):
            unknown[into[value[of].isnan()]] = True
            unknown |= fixed and not len(of)
            zero[into[value[of] == 0]] = True
        if self.uses is not None:
            unknown &= self.uses
        if (unknown & ~zero).all():
            return torch.full((size,), math.nan, dtype=torch.double)
        out = self._of_constants(values, 0)
        known = ~unknown | (zero & (out == 0))
        with suppress(Exception):  # it may take these places alone
            more = self._of_constants(values, 1)
            known &= (out - more).abs() <= _ROUNDING * out.abs()
        return out.masked_fill(~known, math.nan)

    def _of_constants(self, values: Values, more: int) -> Tensor:
        """The same of so many more places along each axis, where NaN are any numbers."""
        for rows in (1, self.rows):
            given = []
            for own, dim, shape in zip(values, self.axes, self.whole, strict=True):
                value = torch.where(own.isnan(), self._drawn(own.shape), own.double())
                sizes = [s + more * (s > 1 and d != dim) for d, s in enumerate(shape)]
                sizes[0] = min(rows, shape[0])
                given.append(_along(value, dim, len(shape)).expand(sizes))
            with suppress(Exception):
                out = self._call(given).transpose(0, self.axis).flatten(1)
                same = (out - out[:, :1]).abs() <= _ROUNDING * out[:, :1].abs()
                if len(out) == self.call.shape[self.axis]:  # or features are made of rows
                    return out[:, 0].masked_fill(~same.all(1), math.nan)
        raise ValueError("it takes other places")

    def _drawn(self, shape: Sequence[int]) -> Tensor:
        """Numbers of both signs, some of them large."""
        draw = torch.randn(shape, generator=self.noise, dtype=torch.double)
        return draw * 10.0 ** torch.randint(-1, 2, draw.shape, generator=self.noise)

    def _call(self, values: Values, alone: Any = None, size: int | None = None) -> Tensor:
        """What comes out, of another module, or with another size that a reshaping call gives."""
        made: dict[Node, Any] = {
            n: v > 0 if n in self.call.truths else v.clone()
            for n, v in zip(self.nodes, values, strict=True)
        }
        made |= self.call.numbers
        for node in (*self.call.inner, self.call.node):
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: made[n])
            target: Any = node.target
            if node is self.call.node and size is not None:
                args = resized(args, self.axis, size)
            if node.op == "call_module":
                target = alone or self.alone
            elif node.op == "call_method":
                target, args = getattr(args[0], target), args[1:]
            with torch.no_grad():
                made[node] = target(*args, **kwargs)
        out: Tensor = made[self.call.node]
        numbers = out.is_floating_point() or out.dtype == torch.bool
        if out.dim() != len(self.call.shape) or not numbers:
            raise TypeError("no tensor of its own kind")
        return out.double()

    def _own(self) -> tuple[int, list[tuple[Tensor, Tensor]]]:
        """The axis, and pairs, of a module with numbers for each feature."""
        (size,), (one, other) = self.sizes, ([self._drawn(self.shapes[0])] for _ in "ab")
        out = self._call(one)
        self._require_rows_apart(one, out)
        if self.axes != [1] or out.shape[1] != size:
            raise ValueError("features are others")
        self.uses = _any_along(out != self._call(other), 1)
        return 1, [(torch.arange(size), torch.arange(size))]

    def _sources(self) -> tuple[int, list[tuple[Tensor, Tensor]]]:
        """The axis of the features of the result, and by tensor features of which some are made."""
        each = min(math.prod(s) // s[d] for s, d in zip(self.shapes, self.axes, strict=True))
        turns = range(math.ceil(NUMBERS / each))
        bases, others = ([[*map(self._drawn, self.shapes)] for _ in turns] for _ in "ab")
        outs = [self._call(base) for base in bases]
        for base, out in zip(bases, outs, strict=True):
            if not _same(out, self._call(base)):
                raise ValueError("it draws")
            self._require_rows_apart(base, out)
        tried = [*zip(bases, others, outs, strict=True)]
        found = [self._pairs_of(k, tried) for k in range(len(self.sizes))]
        by_axis = {
            axis: own
            for axis, own in enumerate(zip(*found, strict=True), 1)
            if all(fixed or one is not None for one, fixed in zip(own, self.fixed, strict=True))
        }
        axis = min(by_axis, key=lambda a: (by_axis[a].count(None), a != self.axes[0]))
        none = torch.empty(0).long()
        pairs = [(none, none) if one is None else one for one in by_axis[axis]]
        made = torch.cat([into for _, into in pairs]).unique()
        if not len(made) == outs[0].shape[axis] == self.call.shape[axis]:
            raise ValueError("features are made of places, or there whatever is cut")
        return axis, pairs

    def _require_rows_apart(self, base: Values, before: Tensor) -> None:
        """Another first row must change nothing of the others: what is made of all rows depends on
        how many there are."""
        other = [
            torch.cat([self._drawn(v.shape)[:1], v[1:]]) if batched else v
            for v, batched in zip(base, self.batched, strict=True)
        ]
        out = self._call(other)
        if out.shape[0] != self.rows or not _same(out[1:], before[1:]):
            raise ValueError("rows are made of others")

    def _pairs_of(
        self, k: int, tried: Sequence[tuple[Values, Values, Tensor]]
    ) -> list[tuple[Tensor, Tensor] | None]:
        """By axis of the result behind its rows, features of a tensor and those that are made of
        one of them; ``None`` where some are made of several."""
        places = torch.arange(max(1, math.ceil(math.log2(self.sizes[k]))))[:, None]
        ones = (torch.arange(self.sizes[k]) >> places) % 2 == 1
        moved = [[self._moved(k, part, tried) for part in (bits, ~bits)] for bits in ones]
        found: list[tuple[Tensor, Tensor] | None] = []
        for axis in range(1, len(self.call.shape)):
            by = torch.stack([torch.stack([_any_along(m, axis) for m in both]) for both in moved])
            some = by.any(1)[0]
            of, into = (by[:, 0].long() << places).sum(0), some.nonzero()[:, 0]
            found.append((of[into], into) if (by.sum(1) == some).all() else None)
        return found

    def _moved(
        self, k: int, part: Tensor, tried: Sequence[tuple[Values, Values, Tensor]]
    ) -> Tensor:
        """Where the result is another if a part of the features of a tensor is."""
        moved = torch.zeros(tried[0][2].shape).bool()
        where = _along(part, self.axes[k], len(self.shapes[k]))
        for base, other, before in tried if part.any() else ():
            new = torch.where(where, other[k], base[k])
            out = self._call([*base[:k], new, *base[k + 1 :]])
            moved |= ~torch.isclose(out, before, 0.0, 0.0, equal_nan=True)
        return moved

    def _is_the_same_with_fewer(self) -> bool:
        """True if it gives the same features where only some of those it reads are there."""
        values = [*map(self._drawn, self.shapes)]
        out = self._call(values)
        share = 1.2
        kept = torch.ones(out.shape[self.axis]).bool()
        while kept.all() and share * len(kept) > 1:
            share /= 2
            kept = torch.rand(len(kept), generator=self.noise) < share
            kept[int(torch.randint(len(kept), (), generator=self.noise))] = True
            there = [
                torch.full((size,), fixed and not len(of))
                for size, fixed, (of, _) in zip(self.sizes, self.fixed, self.pairs, strict=True)
            ]
            before = -1
            while before != int(kept.sum()):  # what is tied comes along
                before = int(kept.sum())
                for have, (of, into) in zip(there, self.pairs, strict=True):
                    have[of[kept[into]]] = True
                    if not _is_one_for_all(of, into):
                        kept[into[have[of]]] = True
        index = kept.nonzero()[:, 0]
        fewer = [
            v.index_select(dim, have.nonzero()[:, 0])
            for v, dim, have in zip(values, self.axes, there, strict=True)
        ]
        edit = Edit(outputs=index.tolist())
        alone = None if self.uses is None else shrunk(self.alone, edit)
        found = self._call(fewer, alone, len(index) if self.rigid else None)
        right = out.index_select(self.axis, index)
        return found.shape == right.shape and torch.allclose(found, right, 1e-9, equal_nan=True)


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, 0.0, 0.0, equal_nan=True))


def _along(values: Tensor, axis: int, dims: int) -> Tensor:
    """Numbers of features, so that they stand along their axis of a tensor."""
    return values.view([-1 if d == axis else 1 for d in range(dims)])


def _any_along(values: Tensor, axis: int) -> Tensor:
    return values.transpose(0, axis).flatten(1).any(1)
