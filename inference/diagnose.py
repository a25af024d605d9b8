"""Where a loss that is not finite comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from torch import Tensor, nn

from .elbo import local_parameters

__all__ = ["first_non_finite"]


def first_non_finite(model: nn.Module, guide: nn.Module, x: Tensor, y: Tensor) -> str:
    """What is not finite: an input, a parameter, or the first site in the order of the model."""

    def bad(t: Tensor) -> bool:
        return t.is_floating_point() and not bool(torch.isfinite(t).all())

    if bad(x) or bad(y):
        return "the data itself has values that are not finite"
    for name, p in [*model.named_parameters(), *guide.named_parameters()]:
        if bad(p):
            return f"parameter {name!r} was the first that is not finite (a step too large)"
    with torch.no_grad(), local_parameters(), pyro.validation_enabled(False):
        for name, site in _sites(model, guide, x, y):
            if bad(site["value"]) or bad(site["log_prob"]):
                return f"site {name!r} was the first that is not finite"
    return "no single site is to blame: their sum overflowed"


def _sites(model: nn.Module, guide: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, Any]]:
    # Enumerated, so that no depth is missed.
    guide_trace = poutine.trace(poutine.enum(guide, first_available_dim=-2)).get_trace(x, y)
    replayed = poutine.replay(config_enumerate(model), trace=guide_trace)
    model_trace = poutine.trace(poutine.enum(replayed, first_available_dim=-2)).get_trace(x, y)
    for trace in (guide_trace, model_trace):
        trace.compute_log_prob()
        for name, site in trace.nodes.items():
            if site["type"] == "sample" and not poutine.util.site_is_subsample(site):
                yield name, site
