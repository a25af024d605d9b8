"""Expectations under a guide: exact over what is enumerated, by score function over the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta, MaskedDistribution
from pyro.distributions.score_parts import ScoreParts
from pyro.distributions.util import broadcast_shape, is_identically_zero, scale_and_mask
from pyro.poutine.util import site_is_subsample
from pyro.util import check_site_shape
from torch import Tensor
from torch.distributions import kl_divergence

from ...data import NetworkError, PyroccamError
from ...models.distributions import base


@dataclass(frozen=True)
class _Factor:
    """A site of the guide that weighs what depends on it."""

    name: str
    position: int  # in the guide
    plates: dict[str, int]
    dim: int | None  # where it is enumerated; None for a draw with a score function
    log_weight: Tensor


def plates_of(site: Any) -> dict[str, int]:
    """The vectorised plates of a site: dim by name."""
    return {f.name: f.dim for f in site["cond_indep_stack"] if f.vectorized}


def unmasked(fn: Any) -> Any:
    """The distribution that is drawn from: a mask takes a site out of the bound, not its draw."""
    while isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    return fn


def _spread(value: Tensor, dims: set[int]) -> set[int]:
    """Those of ``dims`` along which ``value`` varies."""
    return {d for d in dims if -d <= value.dim() and value.shape[d] != 1}


class Expectation:
    r"""``E_q[cost]`` for costs that vary along the dims of enumerated sites.

    A cost is weighted by the probability of the enumerated values that it depends on, and of those
    that these depend on in turn; every other factor integrates to one. A draw without
    reparameterisation multiplies by :math:`\exp(\log q - \bot\log q)`, one with the gradient of
    the score function (DiCE): row by row within a shared plate, and with the sum over another.

    Arguments:
        sites: of the guide, by name, in the order of sampling. Each gets its ``log_prob``,
            ``(enumerated dims..., plates...)``, masked by its distribution but not by
            ``poutine.mask``, not scaled, and with ``score_parts`` where it was drawn.

    Attributes:
        costs: those that were noted, by enumerated site, without gradient.

    Raises:
        PyroccamError: if a site asks for another way to enumerate, or shares its dim with another.

    References:
        Foerster et al. 2018, DiCE: The infinitely differentiable Monte Carlo estimator,
        arXiv:1802.05098.
    """

    def __init__(self, sites: Mapping[str, Any]) -> None:
        self.position = {name: i for i, name in enumerate(sites)}
        self.factors: list[_Factor] = []
        self.costs: dict[str, Tensor] = {}
        for name, site in sites.items():
            self._add(name, site)

    def _add(self, name: str, site: Any) -> None:
        for key, usual in (("num_samples", None), ("enumerate", "parallel")):
            asked = site["infer"].get(key)
            if asked not in (None, usual):
                raise PyroccamError(
                    f"infer={{{key!r}: {asked!r}}} of site {name!r}",
                    "{'enumerate': 'parallel'} or {'enumerate': None}",
                )
        fn, dim, plates = unmasked(site["fn"]), site["infer"].get("_enumerate_dim"), plates_of(site)
        if dim is not None:
            log_q = fn.log_prob(site["value"])
            for factor in self.factors:
                if factor.dim == dim:
                    said = f"sites {factor.name!r} and {name!r} of the guide on one dim {dim}"
                    raise PyroccamError(said, "pyro.markov in the model only")
            self.factors.append(_Factor(name, self.position[name], plates, dim, log_q))
        else:
            if type(fn) is Delta:  # at its own value, which nothing has to compare
                parts = ScoreParts(fn.log_density, 0, fn.log_density)  # type: ignore[arg-type]
            else:
                parts = fn.score_parts(site["value"])
            site["score_parts"] = parts
            log_q, score = parts.log_prob, parts.score_function
            if not is_identically_zero(score):
                score = score - score.detach()
                self.factors.append(_Factor(name, self.position[name], plates, None, score))
        site["log_prob"] = log_q if fn is site["fn"] else site["fn"].log_prob(site["value"])

    def note(self, cost: Tensor, name: str = "", plates: Iterable[int] = ()) -> None:
        """Add the cost of a site, ``(enumerated dims..., plates...)``, summed over its plates, to
        :attr:`costs` of the one enumerated site, other than its own, on whose values it depends,
        if there is one."""
        sites = {f.dim: f.name for f in self.factors if f.dim is not None}
        on = [sites[dim] for dim in _spread(cost, set(sites))]
        if len(on) == 1 and on[0] != name:
            dims = [dim for dim in plates if -dim <= cost.dim()]
            cost = cost.detach().sum(dims, keepdim=True) if dims else cost.detach()
            before = self.costs.get(on[0])
            self.costs[on[0]] = cost if before is None else before + cost

    def __call__(self, cost: Tensor, plates: Mapping[str, int], name: str, reach: int) -> Tensor:
        """The expectation of a cost, summed over its plates; a scalar.

        Arguments:
            cost: ``(enumerated dims..., plates...)``.
            plates: those of the cost.
            name: of the cost's site, for messages.
            reach: position of the last site of the guide that it can depend on. Draws after that
                are left out, unless they are in plates of the cost (as Pyro does it).

        Raises:
            PyroccamError: if the cost depends on a site in a plate in which it is not.
        """
        if not self.factors:
            return cost.sum()
        dims = {f.dim for f in self.factors if f.dim is not None}
        own = _spread(cost, dims)
        wanted = set(own)
        log_weight: Tensor | None = None
        for factor in reversed(self.factors):  # a factor depends on earlier sites only
            outside = [dim for plate, dim in factor.plates.items() if plate not in plates]
            weight = factor.log_weight
            if factor.dim is None:
                if outside and factor.position > reach:
                    continue
                weight = weight.sum(outside, keepdim=True) if outside else weight
            elif factor.dim not in wanted:
                continue
            elif outside:
                plate = sorted(factor.plates.keys() - plates.keys())
                raise PyroccamError(
                    f"site {name!r} depends on {factor.name!r}, enumerated in the plate {plate}",
                    "a site in that plate",
                )
            wanted |= _spread(weight, dims)
            log_weight = weight if log_weight is None else log_weight + weight
        if log_weight is None:
            return cost.sum()
        weight = log_weight.exp()
        beyond = sorted(_spread(weight, wanted - own))
        if beyond:
            weight = weight.sum(beyond, keepdim=True)
        # An impossible value must not make an infinite cost count.
        return (weight * torch.where(weight > 0, cost, 0.0)).sum()


def log_prob_of(site: Any, draw: str = "the value") -> Tensor:
    """``log p`` of the site's value, ``(enumerated dims..., plates...)``; errors name the site."""
    try:
        value: Tensor = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
    except ValueError as error:
        why = str(error).partition("\n")[0]  # below it stand all values
        raise PyroccamError(
            f"Site {site['name']!r}: {draw} does not suit its distribution in the model, "
            f"{family(site['fn'])}. {why}"
        ) from error
    return value


def site_kl(ours: Any, theirs: Any, ordered: bool) -> Tensor:
    r"""A site's share of ``KL(q || p)``, scaled and masked, ``(enumerated dims..., plates...)``.

    Analytic for a reparameterised site if torch's registry has it, else :math:`\log q - \log p` at
    the draw (or, for an enumerated site, at each value), and so for a ``Delta``, whose KL in Pyro
    leaves out its ``log_density``. Where guide and model differ in scale s or in mask m, the sum of
    :math:`m_p s_p KL` and :math:`(m_q s_q - m_p s_p) \log q`.

    Arguments:
        ours, theirs: the site in the guide, with its densities, and in the model, which gets
            a ``log_prob`` of its shape.
        ordered: nothing on which the prior of the site depends is drawn after it.

    Raises:
        PyroccamError: if the KL is infinite, or the draw outside the support of the prior (where
            validation is on).
    """
    q, p = ours["fn"], theirs["fn"]
    drawn = ours["infer"].get("_enumerate_dim") is None
    score = ours["score_parts"].score_function if drawn else None
    log_q = ours["log_prob"]
    kl: Any = None
    if ordered and drawn and is_identically_zero(score) and not isinstance(base(q), Delta):
        with suppress(NotImplementedError):
            kl = kl_divergence(q, p)
    if kl is None and ours["infer"].get("moments"):
        raise PyroccamError(
            f"site {ours['name']!r}, reparameterised locally, has no analytic KL ({family(q)} to "
            f"{family(p)}), or another order than in the model",
            hint="local=False",
        )
    if kl is None:
        theirs["log_prob"] = log_prob_of(theirs, f"what {family(q)} gives in the guide")
        log_p = scale_and_mask(theirs["log_prob"], theirs["scale"], theirs["mask"])
        return scale_and_mask(log_q, ours["scale"], ours["mask"]) - log_p
    kl = kl if isinstance(kl, Tensor) else torch.full_like(log_q, kl)
    theirs["log_prob"] = kl
    cost: Tensor = scale_and_mask(kl, theirs["scale"], theirs["mask"])
    if pyro.infer.util.is_validation_enabled() and bool(torch.isinf(cost).any()):
        raise PyroccamError(
            f"KL(q || p) of site {ours['name']!r} is infinite: {family(q)} against {family(p)}"
        )
    if not (_same(ours["scale"], theirs["scale"]) and _same(ours["mask"], theirs["mask"])):
        log_q = -q.entropy() if ours["infer"].get("moments") else log_q  # there is no draw
        cost = cost + scale_and_mask(log_q, ours["scale"], ours["mask"])
        cost = cost - scale_and_mask(log_q, theirs["scale"], theirs["mask"])
    return cost


def family(fn: Any) -> str:
    """The name of a distribution, without what is around it."""
    return type(base(fn)).__name__


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b))


def is_deterministic(site: Any) -> bool:
    return site["type"] == "sample" and bool(site["infer"].get("_deterministic"))


def sample_sites(trace: Any) -> dict[str, Any]:
    """Those with a density."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site) and not is_deterministic(site)
    }


def check_sites(ours: dict[str, Any], theirs: dict[str, Any], model: Any) -> None:
    """Every latent has a guide or is enumerated, and the guide has nothing else."""
    latents = [name for name, site in theirs.items() if not site["is_observed"]]
    for name, site in ours.items():
        if name not in latents and not site["infer"].get("is_auxiliary"):
            if name in getattr(poutine.unwrap(model), "sites", ()):
                said = f"a pass of the network in training leaves out the layer of {name!r}"
                raise NetworkError(said, "every random layer in each", "0 * layer(x), or layers=")
            how = "observes" if name in theirs else "does not have"
            raise PyroccamError(
                f"the guide samples {name!r}, which the model {how}", f"one of {latents}"
            )
    for name in latents:
        if name not in ours and theirs[name]["infer"].get("enumerate") != "parallel":
            raise PyroccamError(f"the guide covers {[*ours]}", f"{name!r} of the model, too")


def check_shape(site: Any, max_plate_nesting: float) -> None:
    """The dims of a site are its plates and, to the left of all plates, enumerated: looked at only
    while validation is on."""
    if not pyro.infer.util.is_validation_enabled():
        return
    if "log_prob" not in site:
        drawn = site["value"].shape[: site["value"].dim() - site["fn"].event_dim]
        shape = broadcast_shape(site["fn"].batch_shape, drawn)
        site = {**site, "log_prob": torch.empty(shape, device="meta")}
    check_site_shape(site, max_plate_nesting)  # type: ignore[arg-type]
    shape, known = tuple(site["log_prob"].shape), site["infer"].get("_dim_to_id", {})
    for dim in range(-len(shape), 0):
        if -dim > max_plate_nesting and shape[dim] != 1 and dim not in known:
            raise PyroccamError(
                f"dim {dim} of the log-probabilities {shape} of site {site['name']!r}",
                f"one of {max_plate_nesting} plates, or enumerated",
                ".to_event(...)",
            )
