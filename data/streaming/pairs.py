"""Inputs, targets and weights in what a source gives: pairs, or dicts of which names tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import DataError, Fields, are_several, as_tensor, listed, named
from .shuffle import Parts


class Columns(NamedTuple):
    """Names in a table or a dict.

    Arguments:
        inputs: Of the inputs; all the others, if none.
        target: Of the targets.
        weights: Of the weights of rows; "" for none.
    """

    inputs: tuple[str, ...] = ()
    target: str = ""
    weights: str = ""

    @classmethod
    def of(cls, inputs: str | Sequence[object] | None, target: str, weights: str = "") -> Columns:
        """Names as a person gives them."""
        return cls(tuple(named(inputs)), target, weights)

    def among(self, where: str, known: Iterable[str]) -> list[str]:
        """The inputs, of all columns that there are."""
        known = [*known]
        own = [self.target, *([self.weights] if self.weights else [])]
        names = [*self.inputs] or [name for name in known if name not in own]
        if lacking := [name for name in (*own, *names) if name not in known]:
            found = f"{where} has no column {listed(map(repr, lacking))}"
            raise DataError(found, f"some of {listed(known)}")
        if len({*own, *names}) < len(own) + len(names):
            raise DataError(f"{where}: {self}", "each column once, as an input or another thing")
        return names


class Pairs:
    """What gives batches of pairs, or of dicts.

    Several inputs of a row, a dict or a tuple in a pair, become columns of one table.

    Attributes:
        fields: What stands where, of several inputs; None of one, or before the first batch.
    """

    def __init__(self, name: str, columns: Columns) -> None:
        self.name, self.columns = name, columns
        self.fields: Fields | None = None

    def paired(self, batch: Any) -> Parts:
        """Inputs (B, ...), targets and weights in a batch, a pair of tensors or a dict of them."""
        if isinstance(batch, Mapping):
            return self._of_dict(batch)
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise DataError(
                f"{self.name} gives a {type(batch).__name__}{size}", "pairs (x, y), or dicts"
            )
        if self.columns.weights:
            found = f"weights={self.columns.weights!r} of {self.name}, which gives pairs"
            raise DataError(found, "dicts, in which weights have a name")
        return self.packed("x", batch[0]), as_tensor("y", batch[1])

    def _of_dict(self, batch: Mapping[str, Any]) -> Parts:
        _, target, weights = self.columns
        names = self.columns.among(self.name, batch)
        parts = [as_tensor(one, batch[one]) for one in names]
        if len(parts) > 1 and any(part.ndim > 2 for part in parts):
            found = f"{self.name} gives several inputs, {listed(names)}, beside the target"
            raise DataError(found, "columns of a table, or pairs ({...}, y) of a dict and a target")
        x = parts[0] if len(parts) == 1 else torch.cat([p.reshape(len(p), -1) for p in parts], 1)
        of_rows = [as_tensor(weights, batch[weights]).double()] if weights else []
        return (x[:, None] if x.ndim == 1 else x), as_tensor(target, batch[target]), *of_rows

    def packed(self, where: str, x: Any) -> Tensor:
        """Inputs as one tensor."""
        if isinstance(x, Tensor):
            return as_tensor(where, x)
        if isinstance(x, list):  # as which a loader collates tuples
            x = tuple(x)
        if isinstance(x, tuple) and x and all(isinstance(o, Tensor) and o.ndim == 1 for o in x):
            return torch.cat([one[:, None] for one in x], 1)  # numbers of a row, in a list
        if not are_several(x):
            found = f"{self.name} gives a {type(x).__name__} as inputs of a row"
            raise DataError(found, "a tensor, or a dict or a tuple of them")
        self.fields = self.fields or Fields.of(where, x)
        return self.fields.pack(where, x)
