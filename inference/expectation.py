"""Expectations under a guide: exact over what is enumerated, by score function over the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.distributions.util import is_identically_zero
from torch import Tensor

__all__ = ["Expectation", "plates_of"]


@dataclass(frozen=True)
class _Factor:
    """A site of the guide that weighs what depends on it."""

    name: str
    plates: frozenset[str]
    dim: int | None  # where it is enumerated; None for a draw with a score function
    log_weight: Tensor


def plates_of(site: Any) -> dict[str, int]:
    """The vectorised plates of a site: dim by name."""
    return {f.name: f.dim for f in site["cond_indep_stack"] if f.vectorized}


def _spread(value: Tensor, dims: set[int]) -> set[int]:
    """Those of ``dims`` along which ``value`` varies."""
    return {d for d in dims if -d <= value.dim() and value.shape[d] != 1}


@dataclass
class Expectation:
    r"""``E_q[cost]`` for costs that vary along the dims of enumerated sites.

    A cost is weighted by the probability of the enumerated values that it depends on, and of those
    that these depend on in turn; every other factor integrates to one and is left out. A draw
    without reparameterisation multiplies by :math:`\exp(\log q - ⊥\log q)`, which is one with the
    gradient of the score function (DiCE).

    Variables outside a plate must not depend on variables inside it (Pyro's own condition).

    References:
        Foerster et al. 2018, DiCE: The infinitely differentiable Monte Carlo estimator,
        arXiv:1802.05098.
    """

    factors: list[_Factor] = field(default_factory=list)

    def add(self, name: str, site: Any) -> None:
        """Take in a guide's site, in the order of sampling; fills in its densities."""
        plates = frozenset(plates_of(site))
        dim = site["infer"].get("_enumerate_dim")
        if site["infer"].get("num_samples") is not None or (
            site["infer"].get("enumerate") == "sequential"
        ):
            raise ValueError(
                f"Site {name!r} asks for {site['infer']}: here discrete sites are enumerated in "
                "parallel, infer={'enumerate': 'parallel'} (the default)."
            )
        if dim is not None:
            log_q = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
            site["log_prob"] = log_q
            self.factors.append(_Factor(name, plates, dim, log_q))
            return
        parts = site["fn"].score_parts(site["value"], *site["args"], **site["kwargs"])
        site["score_parts"], site["log_prob"] = parts, parts.log_prob
        if not is_identically_zero(parts.score_function):
            score = parts.score_function
            self.factors.append(_Factor(name, plates, None, score - score.detach()))

    def __call__(self, cost: Tensor, plates: dict[str, int], name: str) -> Tensor:
        """The expectation of a cost, summed over its plates; a scalar.

        Arguments:
            cost: ``(enumerated dims..., plates...)``.
            plates: those of the cost.
            name: of the cost's site, for messages.

        Raises:
            ValueError: if the cost depends on a site inside a plate in which it is not.
        """
        dims = {f.dim for f in self.factors if f.dim is not None}
        own = _spread(cost, dims)
        wanted = set(own)
        weights: list[Tensor] = []
        scores: list[Tensor] = []
        for factor in reversed(self.factors):  # a factor depends on earlier sites only
            inside = factor.plates <= plates.keys()
            if factor.dim is None:
                if inside:
                    scores.append(factor.log_weight)
                    wanted |= _spread(factor.log_weight, dims)
            elif factor.dim in wanted:
                if not inside:
                    raise ValueError(
                        f"Site {name!r} depends on {factor.name!r} but is not in its plate "
                        f"{sorted(factor.plates - plates.keys())}: what is outside a plate cannot "
                        "depend on what is inside. Move it into the plate."
                    )
                weights.append(factor.log_weight)
                wanted |= _spread(factor.log_weight, dims)
        if not weights and not scores:
            return cost.sum()
        log_weight = torch.stack(torch.broadcast_tensors(*weights, *scores)).sum(0)
        if len(weights) + len(scores) == 1:
            log_weight = (weights + scores)[0]
        weight = log_weight.exp()
        beyond = sorted(_spread(weight, wanted - own))
        if beyond and not scores:
            weight = weight.sum(beyond, keepdim=True)
        # An impossible value must not make an infinite cost count.
        return (weight * torch.where(weight > 0, cost, 0.0)).sum()
