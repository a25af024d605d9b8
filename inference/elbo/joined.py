"""The KL of many small sites as that of one: a network has a site for each of its layers, and on
few numbers an operation costs what it costs to call it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Independent, kl_divergence

from ...models.distributions import ImproperLogUniform

MOST = 4096
"""Numbers of a site up to which putting it beside others costs less than another call."""

# Of each class the parameters, which are all that there is to know of it.
_PARAMETERS: dict[type, tuple[str, ...]] = {
    dist.Normal: ("loc", "scale"),
    dist.LogNormal: ("loc", "scale"),
    dist.Gamma: ("concentration", "rate"),
    dist.InverseGamma: ("concentration", "rate"),
    ImproperLogUniform: (),
}

# Of guide and prior; each has an analytic KL.
_PAIRS = {
    (dist.Normal, dist.Normal),
    (dist.Normal, ImproperLogUniform),
    (dist.LogNormal, dist.LogNormal),
    (dist.LogNormal, dist.Gamma),
    (dist.LogNormal, dist.InverseGamma),
}


class JoinedKL:
    """Analytic ``KL(q || p)`` of sites that no plate or scale concerns, and no mask but one that
    guide and model have in common.

    Sites whose distributions are of the same two classes, whose parameters are all that differs,
    are put in one tensor each: a KL of univariate distributions is elementwise.
    """

    def __init__(self) -> None:
        self._found: dict[Any, list[tuple[Any, Any, Tensor | None]]] = defaultdict(list)

    def take(self, ours: Any, theirs: Any) -> bool:
        """Put a site, in the guide and in the model, aside, if it can be joined; its prior depends
        on nothing that is drawn after it."""
        if not (_is_whole(ours) and _is_whole(theirs)) or ours["mask"] is not theirs["mask"]:
            return False
        q, p = _elements(ours["fn"]), _elements(theirs["fn"])
        if (type(q), type(p)) not in _PAIRS or q.batch_shape != p.batch_shape:
            return False
        kinds = type(q), type(p), getattr(p, "kl", None)
        self._found[kinds].append((q, p, ours["mask"]))
        return True

    def terms(self) -> list[Tensor]:
        """The KL of what was taken, by pair of classes, in nats: a scalar, or of the shape of the
        masks."""
        found = []
        for sites in self._found.values():
            ours, theirs, masks = zip(*sites, strict=True)
            kl = kl_divergence(_joined(ours), _joined(theirs))
            if all(mask is None for mask in masks):
                found.append(kl.sum())
            else:
                found.append(_masked(kl, [one.batch_shape.numel() for one in ours], masks))
        return found


def _masked(kl: Tensor, sizes: Sequence[int], masks: Sequence[Tensor | None]) -> Tensor:
    """The sum of the KLs, ``(n,)``, of sites of these sizes where their masks let them count."""
    own = list({id(mask): mask for mask in masks}.values())
    place = {id(mask): i for i, mask in enumerate(own)}
    where = [i for size, mask in zip(sizes, masks, strict=True) for i in [place[id(mask)]] * size]
    index = torch.tensor(where, device=kl.device)
    sums = torch.zeros(len(own), dtype=kl.dtype, device=kl.device).index_add(0, index, kl)
    always = torch.ones((), dtype=torch.bool, device=kl.device)
    spread = torch.broadcast_tensors(*[always if mask is None else mask for mask in own])
    return torch.tensordot(sums, torch.stack(spread).to(kl), 1)


def _is_whole(site: Any) -> bool:
    """True of a site that counts once where it does; a scale that is a tensor is not looked at."""
    scaled = isinstance(site["scale"], Tensor) or site["scale"] != 1.0
    return not (scaled or isinstance(site["mask"], bool) or site["cond_indep_stack"])


def _elements(fn: Any) -> Any:
    """The distributions of the numbers of a site, if these are few, and all of one event."""
    if fn.batch_shape:
        return None
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn if fn.batch_shape.numel() <= MOST else None


def _joined(ones: Sequence[Any]) -> Any:
    kind = type(ones[0])
    values = [torch.cat([getattr(one, name).expand(one.batch_shape).reshape(-1) for one in ones])
              for name in _PARAMETERS[kind]]  # fmt: skip
    if values:
        return kind(*values, validate_args=False)
    return ones[0].expand([sum(one.batch_shape.numel() for one in ones)])
