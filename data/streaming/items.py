"""Rows of a map-style data set of torch, of image folders, of Hugging Face's `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from ..checks import DataError, as_tensor, listed
from .shuffle import Places, edges_of

__all__ = ["Items", "pair_of"]


class Items:
    """Rows of a data set that gives one by its place: a `torch.utils.data.Dataset`, or whatever
    else has a length and `[i]`.

    Arguments:
        dataset: Of items (x, y), or of dicts of which `target` names one; with
            `__getitems__(list)`, many are asked for at a time.
        inputs: Names of the inputs in a dict; all the others, if none.
        target: Name of the targets in a dict.

    Raises:
        DataError: for no length, or no rows.
    """

    by_piece = False

    def __init__(self, dataset: Any, inputs: Sequence[str] = (), target: str = "") -> None:
        self.dataset, self.inputs, self.target = dataset, tuple(inputs), target
        self.name = type(dataset).__name__
        try:
            self.rows = len(dataset)
        except (TypeError, NotImplementedError) as error:
            raise DataError(
                f"{self.name} has no length", "the number of rows, by which the bound is weighed",
                "rows=N, or a __len__",
            ) from error  # fmt: skip
        if not self.rows:
            raise DataError(f"{self.name} has no rows", "at least 2")

    @property
    def edges(self) -> Places:
        """Rows at which blocks begin: each is one, but in a set of millions."""
        return edges_of(self.rows, 1)

    def read(self, places: Places) -> tuple[Tensor, Tensor]:
        """Inputs and targets of rows, as the data set gives them.

        Arguments:
            places: Of the rows (B,).
        """
        wanted = places.tolist()
        if hasattr(self.dataset, "__getitems__"):
            found = self.dataset.__getitems__(wanted)
        else:
            found = [self.dataset[i] for i in wanted]
        try:
            batch = default_collate(found)
        except (TypeError, RuntimeError) as error:
            kind = type(found[0]).__name__
            raise DataError(
                f"the items of {self.name} ({kind}) make no batch: {str(error).splitlines()[0]}",
                "pairs of tensors or numbers, of one shape",
                "a transform of the data set that gives tensors of one size, such as "
                "torchvision.transforms.v2.ToImage() after a Resize",
            ) from error
        return pair_of(self.name, batch, self.inputs, self.target)


def pair_of(name: str, batch: Any, inputs: Sequence[str], target: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets in a batch.

    Arguments:
        name: Of the data set, for a message.
        batch: A pair of tensors, or a dict of tensors.
        inputs, target: Which are which in a dict: see :class:`Items`.

    Raises:
        DataError: for a batch of another kind.
    """
    if isinstance(batch, Mapping):
        if target not in batch:
            raise DataError(
                f"{name} gives {listed(batch)}, and target={target!r}",
                "the name of the targets among them", "target=, and inputs=[...] for the others",
            )  # fmt: skip
        names = list(inputs) or [key for key in batch if key != target]
        if missing := [one for one in names if one not in batch]:
            raise DataError(f"{name} gives {listed(batch)}, without {listed(missing)}", "inputs=")
        parts = [as_tensor(one, batch[one]) for one in names]
        if len(parts) > 1 and any(part.ndim > 2 for part in parts):
            raise DataError(
                f"{name} gives several inputs, {listed(names)}",
                "one tensor, or columns of a table", "inputs=[...] with one name",
            )  # fmt: skip
        x = parts[0] if len(parts) == 1 else torch.cat([p.reshape(len(p), -1) for p in parts], 1)
        y = as_tensor(target, batch[target])
        return (x[:, None] if x.ndim == 1 else x), y
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise DataError(f"{name} gives a {type(batch).__name__}{size}", "pairs (x, y), or dicts")
    x, y = batch
    if not isinstance(x, Tensor):
        raise DataError(
            f"{name} gives a {type(x).__name__} as inputs of a row", "one tensor",
            "several inputs side by side in one, as data.Dataset keeps them",
        )  # fmt: skip
    return x, as_tensor("y", y)
