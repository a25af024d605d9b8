"""Rows of a map-style data set of torch, of image folders, of Hugging Face's `datasets`."""

from __future__ import annotations

from typing import Any

from torch.utils.data import default_collate

from .. import DataError, refuse_masked
from .pairs import Columns, Pairs
from .shuffle import Parts, Places, edges_of


class Items(Pairs):
    """Rows of a data set that gives one by its place: a `torch.utils.data.Dataset`, or whatever
    else has a length and `[i]`.

    Arguments:
        dataset: Of items (x, y), or of dicts in which `columns` have their names; with
            `__getitems__(list)`, many are asked for at a time.
        columns: Which are which in a dict.
    """

    by_piece = False

    def __init__(self, dataset: Any, columns: Columns) -> None:
        super().__init__(getattr(dataset, "name", type(dataset).__name__), columns)
        self.dataset = dataset
        if not all(hasattr(dataset, one) for one in ("__len__", "__getitem__")):
            found = f"{self.name} gives no row by its number, or has no length"
            raise DataError(found, "both, or its rows in files of arrays")
        self.rows = len(dataset)
        if not self.rows:
            raise DataError(f"{self.name} has no rows", "at least 2")

    @property
    def edges(self) -> Places:
        """Rows at which blocks begin: each is one, but in a set of millions."""
        return edges_of(self.rows, 1)

    def read(self, places: Places) -> Parts:
        """Parts of rows (B,), as the data set gives them."""
        wanted = places.tolist()
        if hasattr(self.dataset, "__getitems__"):
            found = self.dataset.__getitems__(wanted)
        else:
            found = [self.dataset[i] for i in wanted]
        for one in found:
            refuse_masked(self.name, [*one.values()] if isinstance(one, dict) else one)
        try:
            batch = default_collate(found)
        except (TypeError, RuntimeError, ValueError) as error:
            said = str(error).splitlines()[0].partition("; found")[0]
            kind = type(found[0]).__name__
            found = f"the items of {self.name} ({kind}) make no batch: {said}"
            raise DataError(found, "pairs of tensors or numbers, of one shape") from error
        return self.paired(batch)
