"""The origin of a loss that is not finite."""

from __future__ import annotations

import pyro
import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer import config_enumerate
from torch import Tensor, nn

from ...models import local_parameters
from .estimator import EnumMeanFieldELBO
from .expectation import log_prob_of


def first_non_finite(
    model: nn.Module, guide: nn.Module, x: Tensor, y: Tensor, *, stepped: bool = True
) -> str:
    """Name of an input, a parameter or the first site in the model's order that is not finite; of a
    step that was made, if one was (``stepped``), a parameter comes."""

    def bad(t: Tensor) -> bool:
        return t.is_floating_point() and not bool(torch.isfinite(t).all())

    if bad(x) or bad(y):
        return "the data itself has values that are not finite"
    for name, p in [*model.named_parameters(), *guide.named_parameters()]:
        if bad(p):
            why = " (a step too large)" if stepped else ""
            return f"parameter {name!r} was the first that is not finite{why}"
    with (
        torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []),
        torch.no_grad(),
        local_parameters(),
        pyro.validation_enabled(False),
    ):
        # Enumerated, so that no depth is missed.
        for sites in EnumMeanFieldELBO()._get_trace(config_enumerate(model), guide, (x, y), {}):
            for name, site in sites.items():
                log_p = scale_and_mask(log_prob_of(site), mask=site["mask"])
                if bad(site["value"]) or bad(log_p):
                    return f"site {name!r} was the first that is not finite"
    return "no single site is to blame: their sum overflowed"
