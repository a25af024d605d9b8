"""Which columns of a table a network still looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...models import evaluating, outputs_taken

if TYPE_CHECKING:
    from ...data import Dataset

_ROWS, _SEEN, _MOST, _NAMED = 64, 20_000, 500, 12


@torch.no_grad()
def columns_kept(net: nn.Module, data: Dataset) -> dict[str, bool]:
    """By the names of the columns whether any output of 64 rows changes where that column is what
    it is at least or at most in the first 20,000; empty for data that are no table of names, or
    have more than 500."""
    count = len(data.columns)
    if data.fields is not None or not 0 < count <= _MOST or data.input_shape != (count,):
        return {}
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    seen = data.head(_SEEN)[0].to(device)
    if not seen.is_floating_point():
        return {}
    x, ends = seen[:_ROWS], (seen.amin(0), seen.amax(0))
    kept = {}
    with evaluating(net):
        before = outputs_taken(net(x))
        for k, name in enumerate(data.columns):
            moved = [x.index_fill(1, torch.tensor(k, device=device), float(end[k])) for end in ends]
            kept[name] = any(bool((outputs_taken(net(one)) != before).any()) for one in moved)
    return kept


def said_of_columns(net: nn.Module, data: Dataset) -> list[str]:
    """The same as a sentence; none where there are no names."""
    found = columns_kept(net, data)
    if not found:
        return []
    kept, gone = ([name for name, one in found.items() if one is way] for way in (True, False))
    said = f"Of the {len(found)} columns it keeps {_listed(kept)}"
    return [f"{said}; left out: {_listed(gone)}." if gone else f"{said}."]


def _listed(names: list[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names) or "none"
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
