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

from ...models.distributions.log_uniform import ImproperLogUniform

__all__ = ["MOST", "JoinedKL"]

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
    """Analytic ``KL(q || p)`` of sites that no plate, mask, scale or enumeration concerns.

    Sites whose distributions are of the same two classes, whose parameters are all that differs,
    are put in one tensor each: a KL of univariate distributions is elementwise.
    """

    def __init__(self) -> None:
        self._found: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)

    def take(self, ours: Any, theirs: Any) -> bool:
        """Put a site aside, if it can be joined.

        Arguments:
            ours, theirs: it, in the guide and in the model; the prior depends on nothing that is
                drawn after it.
        """
        if not (_is_whole(ours) and _is_whole(theirs)):
            return False
        q, p = _elements(ours["fn"]), _elements(theirs["fn"])
        if (type(q), type(p)) not in _PAIRS or q.batch_shape != p.batch_shape:
            return False
        kinds = type(q), type(p), getattr(p, "kl", None)
        self._found[kinds].append((q, p))
        return True

    def terms(self) -> list[Tensor]:
        """The KL of what was taken, one scalar for each pair of classes, in nats."""
        pairs = [zip(*sites, strict=True) for sites in self._found.values()]
        return [kl_divergence(_joined(ours), _joined(theirs)).sum() for ours, theirs in pairs]


def _is_whole(site: Any) -> bool:
    """True of a site that counts once; a scale that is a tensor is not looked at."""
    scaled = isinstance(site["scale"], Tensor) or site["scale"] != 1.0
    return not (scaled or site["mask"] is not None or site["cond_indep_stack"])


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
