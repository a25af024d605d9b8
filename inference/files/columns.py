"""Which columns of a table a network still looks at, and which classes it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...models import evaluating, give, outputs_taken

if TYPE_CHECKING:
    from ...data import Dataset
    from ...models.likelihoods import Likelihood

_ROWS, _SEEN, _MOST, _NAMED, _CLASSES = 64, 20_000, 500, 12, 6


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


@torch.no_grad()
def said_of_classes(net: nn.Module, data: Dataset, like: Likelihood | None = None) -> list[str]:
    """How many test rows of each class it gets right, as a sentence, the worst of many classes;
    none where the classes have no names.

    Arguments:
        like: the likelihood that takes its outputs, if it does not predict by itself.
    """
    names, right = data.class_names, list[Tensor]()
    if not names or not data.counts["test"]:
        return []
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    with evaluating(net):
        for x, y in data.parts("test", weighted=False):
            own = give(net, x.to(device), data.fields)
            scores = own if like is None else like.to(device).predicted(own)
            hit = scores.argmax(-1).cpu() == y.cpu()
            right.append(torch.stack([y.cpu(), hit]))
    of, hits = torch.cat(right, 1)
    total, known = (of[one].bincount(minlength=len(names)) for one in (of >= 0, hits == 1))
    order = (known / total.clamp_min(1)).argsort(stable=True).tolist()
    shown = [k for k in order if total[k]][:_CLASSES]
    each = ", ".join(f"{names[k]} {int(known[k]):,} of {int(total[k]):,}" for k in shown)
    which = "the worst first" if len(names) <= _CLASSES else f"the worst of {len(names)} classes"
    return [f"Test rows that it gets right, {which}: {each}."]


def _listed(names: list[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names) or "none"
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
