"""Several inputs of a row, a dict or a tuple of tensors, side by side as columns of one table.

Splits, batches and scales are of one tensor everywhere else; a network is given the parts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .checks import as_tensor, check_finite
from .errors import DataError, listed
from .splits import moments

Several = dict[str, Tensor] | tuple[Tensor, ...]
"""Several inputs, by the names of arguments or by place."""

_EXACT = 2**24
"""Whole numbers up to this one are exact in float32, as which they stand in the table."""

_KINDS = {torch.int64: "int64", torch.bool: "bool"}
_TYPES = {word: dtype for dtype, word in _KINDS.items()}


class Field(NamedTuple):
    """One of the inputs of a row.

    Arguments:
        name: Of the argument of the network's forward; the place of one without a name.
        shape: Of one row.
        kind: "float", of which a network gets the type of the table; "int64" or "bool".
    """

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        """The columns that it takes."""
        return prod(self.shape)


@dataclass(frozen=True)
class Fields:
    """The inputs of a row, in the order of their columns.

    Arguments:
        each: Of the inputs.
        named: They are a dict, and arguments by name; or else a tuple.
    """

    each: tuple[Field, ...]
    named: bool

    @classmethod
    def of(cls, where: str, x: Any) -> Fields:
        """Those of a dict or a tuple of arrays (rows, ...)."""
        named = isinstance(x, Mapping)
        parts = _parts(x)
        for name in parts:
            if named and not name.isidentifier():
                raise DataError(
                    f"{where} has an input called {name!r}", "the name of an argument of forward"
                )
        if not parts:
            raise DataError(f"{where} is a dict without inputs", "one at least")
        found = []
        for name, value in parts.items():
            part = as_tensor(f"{where}.{name}", value)
            if not part.ndim or 0 in part.shape:
                raise DataError(
                    f"{where}.{name} has shape {tuple(part.shape)}", "(rows, ...), none of them 0"
                )
            # bytes are pixels
            whole = not part.is_floating_point() and part.dtype != torch.uint8
            kind = _KINDS.get(part.dtype, "int64") if whole else "float"
            found.append(Field(name, tuple(part.shape[1:]), kind))
        return cls(tuple(found), named)

    def pack(self, where: str, x: Any) -> Tensor:
        """Inputs as one table (rows, columns), with the numbers that they have."""
        if not are_several(x):
            raise DataError(f"{where} is a {type(x).__name__}", f"{self}")
        parts = _parts(x)
        if isinstance(x, Mapping) != self.named or {*parts} != {one.name for one in self.each}:
            raise DataError(f"{where} has the inputs {listed(parts)}", f"{self}")
        columns, rows = [], 0
        for one in self.each:
            name = f"{where}.{one.name}"
            part = as_tensor(name, parts[one.name])
            rows = rows or (len(part) if part.ndim else 0)
            if tuple(part.shape) != (rows, *one.shape):
                raise DataError(
                    f"{name} has shape {tuple(part.shape)}", f"{(rows, *one.shape)}, rows first"
                )
            if one.kind != "float" and part.is_floating_point():
                raise DataError(
                    f"{name} is of {part.dtype}", f"whole numbers or truth values ({one.kind})"
                )
            check_finite(name, part[:, None] if part.ndim == 1 else part)
            whole = one.kind == "int64" and part.numel() > 0
            largest = max(int(part.max()), -int(part.min())) if whole else 0
            if largest > _EXACT:
                raise DataError(f"{name} holds ±{largest}", f"whole numbers up to {_EXACT}")
            exact = part.dtype == torch.float64
            columns.append((part if exact else part.float()).reshape(rows, one.size))
        return torch.cat(columns, 1)

    def columns(self, x: Tensor) -> tuple[Tensor, ...]:
        """The part of a table (rows, columns), or of a statistic (columns,), of each input."""
        return x.split([one.size for one in self.each], -1)

    def split(self, x: Tensor) -> Several:
        """The inputs in a table (rows, columns), as :meth:`pack` was given them; copies."""
        args, named = self.arguments(x)
        return named if self.named else args

    def arguments(self, x: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Arguments of a network, by place and by name, in a table (rows, columns)."""
        return self.placed(
            part.to(_TYPES.get(one.kind, x.dtype), copy=True).reshape(-1, *one.shape)
            for one, part in zip(self.each, self.columns(x), strict=True)
        )

    def lengths(self, x: Tensor) -> Tensor | None:
        """Of texts in a table (rows, columns), how many tokens are no padding (rows,), by the
        input ``attention_mask``; None where there is none."""
        found = dict(zip((one.name for one in self.each), self.columns(x), strict=True))
        return found["attention_mask"].sum(1) if "attention_mask" in found else None

    def placed(self, parts: Iterable[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The inputs as arguments, by place and by name."""
        if not self.named:
            return tuple(parts), {}
        return (), {one.name: part for one, part in zip(self.each, parts, strict=True)}

    @property
    def given(self) -> tuple[str, ...] | int:
        """The names of the arguments, or how many there are."""
        return tuple(one.name for one in self.each) if self.named else len(self.each)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]] | tuple[tuple[int, ...], ...]:
        """Shapes of one row, by name or by place."""
        found = {one.name: one.shape for one in self.each}
        return found if self.named else tuple(found.values())

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and scales of the columns of a table, in float64: those of a float input along its
        dimension 1, and what leaves numbers as they are for whole numbers and truth values."""
        means, scales = [], []
        for one, part in zip(self.each, self.columns(x), strict=True):
            found = torch.zeros(1).double(), torch.ones(1).double()
            if one.kind == "float":
                found = moments(part.reshape(len(part), *(one.shape or (1,))))
            each = one.size // len(found[0])
            means.append(found[0].repeat_interleave(each))
            scales.append(found[1].repeat_interleave(each))
        return torch.cat(means), torch.cat(scales)

    def gathered(self, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """The moments by which columns are scaled, from those of each column (columns,), of as many
        rows: see :meth:`moments`."""
        found: list[tuple[Tensor, Tensor]] = []
        for one, mean, variance in zip(
            self.each, self.columns(means), self.columns(variances), strict=True
        ):
            if one.kind != "float":
                found.append((torch.zeros_like(mean), torch.ones_like(variance)))
                continue
            channels = one.shape[0] if one.shape else 1
            mean, variance = mean.reshape(channels, -1), variance.reshape(channels, -1)
            own = mean.mean(1), variance.mean(1) + mean.var(1, correction=0)
            found.append(tuple(t.repeat_interleave(mean.shape[1]) for t in own))  # type: ignore
        return torch.cat([one for one, _ in found]), torch.cat([one for _, one in found])

    def to_json(self) -> list[list[Any]]:
        """As plain data, for a record."""
        return [[one.name, list(one.shape), one.kind] for one in self.each]

    def __str__(self) -> str:
        return ", ".join(f"{one.name} {one.shape} {one.kind}" for one in self.each)


def are_several(x: object, y: object = None) -> bool:
    """True for a dict of arrays, or a tuple of them; not for a tuple of rows, by their targets
    `y`."""
    if isinstance(x, Mapping):
        return True
    if not isinstance(x, tuple) or len(x) < 2 or not all(hasattr(one, "shape") for one in x):
        return False
    rows = len(y) if isinstance(y, Sized) else None
    if any(len(one.shape) < 1 for one in x) or len(x) == rows:
        return False
    return all(one.shape[0] == (rows or x[0].shape[0]) for one in x)


def _parts(x: Any) -> dict[str, Any]:
    return {str(k): v for k, v in (x.items() if isinstance(x, Mapping) else enumerate(x))}


def keys_of(names: Sequence[str], key: str) -> list[str]:
    """The arrays of an archive that are inputs: `key` itself, or those that begin with it, such as
    `x_train.mask`, or `x_train.0` and `x_train.1` of a tuple."""
    found = [name for name in names if name.startswith(f"{key}.")]
    return [key] if key in names or not found else found


def gathered(keys: Sequence[str], arrays: Sequence[Any]) -> Any:
    """The inputs of an archive, from the arrays of :func:`keys_of`."""
    parts = {key.partition(".")[2]: one for key, one in zip(keys, arrays, strict=True)}
    if {*parts} == {""}:
        return arrays[0]
    if all(name.isdecimal() for name in parts):
        return tuple(parts[name] for name in sorted(parts, key=int))
    return parts
