"""The bound: one estimator for every pair, exact where it can be, traceable to a tensor graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import config_enumerate
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, check_site_shape, warn_if_nan
from torch import Tensor, nn
from torch.distributions import kl_divergence

from ..guides.depth import Marginal
from .expectation import Expectation, plates_of
from .marginal import sum_out

__all__ = ["Bound", "EnumMeanFieldELBO", "Terms", "bound", "local_parameters"]


@dataclass
class Terms:
    """An evaluation of the bound, in nats over the whole data set.

    Attributes:
        log_likelihood: estimate of ``E_q[log p(y | z)]`` over all N observations.
        kl: ``KL(q || p)``, or an estimate of it, not weighted.
        by_site: for each observed site its log-probabilities, one for each observation of the
            batch and each value of the enumerated latents, unscaled and without gradient.
    """

    log_likelihood: Tensor
    kl: Tensor
    by_site: dict[str, Tensor] = field(default_factory=dict)

    def loss(self, kl_weight: float | Tensor = 1.0) -> Tensor:
        """``β KL - E_q[log p(y | z)]``."""
        return kl_weight * self.kl - self.log_likelihood


class EnumMeanFieldELBO(ELBO):
    r"""The union of Pyro's ``TraceEnum_ELBO`` and ``TraceMeanField_ELBO``.

    .. math:: E_q[\log p(y \mid z)] - β\, KL(q \| p)

    * Discrete sites of the guide are enumerated, all of them unless marked
      ``infer={"enumerate": None}``, and the expectation over them is exact.
    * The KL of a reparameterised site is analytic where torch's registry has one, for every value
      of the enumerated sites; elsewhere it is the log-ratio at the draw.
    * A site that can be neither enumerated nor reparameterised gets the score function (DiCE).
    * Discrete sites of the model alone are summed out (full batch), where they are marked for
      enumeration.
    * β multiplies the KL alone. In minibatches every term is unbiased.

    Nothing in it looks at the value of a tensor, so that it can be traced to a graph of tensor
    operations (:mod:`~pyroccam.inference.compiled`); Pyro's checks of shapes and of values run
    where validation is on, in an eager call. It is an ordinary ``ELBO`` for ``pyro.infer.SVI``.

    The KL of a site is analytic only if every latent that precedes it in the model precedes it in
    the guide too: then its prior cannot depend on what is drawn after it, and the conditional KL
    is unbiased. A site in another order gets the log-ratio, which is right in any order.

    Arguments:
        num_particles: draws of the latents that are averaged.
        max_plate_nesting: number of nested plates; found out in the first call if left out.
        kl_weight: β.

    Raises:
        ValueError: at the first evaluation, for ``vectorize_particles``, for a latent without a
            guide, or a KL that is infinite by construction (a guide with mass where the prior has
            none).

    References:
        Antoran et al. 2020, arXiv:2002.02797, for enumerated guides; Foerster et al. 2018,
        arXiv:1802.05098, for DiCE; Pyro's issues 1710 and 2809 ask for this estimator.
    """

    def __init__(
        self,
        num_particles: int = 1,
        max_plate_nesting: float = float("inf"),
        kl_weight: float = 1.0,
    ) -> None:
        super().__init__(num_particles, max_plate_nesting, strict_enumeration_warning=False)
        self.kl_weight = kl_weight

    # -- what SVI and ELBOModule call -------------------------------------------------------------

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Minus the bound, with gradients."""
        return self.terms(model, guide, *args, **kwargs).loss(self.kl_weight)

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, as a number."""
        with torch.no_grad():
            loss = self.differentiable_loss(model, guide, *args, **kwargs).item()
        warn_if_nan(loss, "loss")
        return float(loss)

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, as a number, with its gradients left in the parameters."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward()
        value = float(loss.item())
        warn_if_nan(value, "loss")
        return value

    # -- the estimator ----------------------------------------------------------------------------

    def terms(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Terms:
        """The likelihood term and the KL of one evaluation (averaged over particles)."""
        if self.max_plate_nesting == float("inf"):
            self._guess_max_plate_nesting(model, guide, args, kwargs)
        found = [self._particle(model, guide, args, kwargs) for _ in range(self.num_particles)]
        if len(found) == 1:
            return found[0]
        count = self.num_particles
        return Terms(
            sum((t.log_likelihood for t in found[1:]), found[0].log_likelihood) / count,
            sum((t.kl for t in found[1:]), found[0].kl) / count,
            found[0].by_site,
        )

    def _guess_max_plate_nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            super()._guess_max_plate_nesting(model, guide, args, kwargs)

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        # The model's messenger goes on with the dims where the guide's has stopped.
        guide = EnumMessenger(first_available_dim=-1 - int(self.max_plate_nesting))(
            config_enumerate(guide)
        )
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replayed = poutine.replay(EnumMessenger()(model), trace=guide_trace)
        model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        if pyro.infer.util.is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, self.max_plate_nesting)
        return prune_subsample_sites(model_trace), prune_subsample_sites(guide_trace)

    def _particle(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Terms:
        model_trace, guide_trace = self._get_trace(model, guide, args, kwargs)
        ours, theirs = _sample_sites(guide_trace), _sample_sites(model_trace)
        validate = pyro.infer.util.is_validation_enabled()
        expectation = Expectation()
        for name, site in ours.items():
            expectation.add(name, site)
        zero = torch.zeros((), device=_device(theirs, ours))
        likelihood, kl = zero, zero
        by_site: dict[str, Tensor] = {}
        marginal: list[dict[str, Any]] = []
        summed = {
            site["infer"]["_enumerate_dim"]
            for name, site in theirs.items()
            if name not in ours and site["infer"].get("_enumerate_dim") is not None
        }
        earlier: set[str] = set()  # latents before this one in the model
        order = {name: i for i, name in enumerate(ours)}
        for name, site in theirs.items():
            log_p = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
            site["log_prob"] = log_p
            if validate:
                check_site_shape(site, self.max_plate_nesting)
            frames = plates_of(site)
            if site["is_observed"]:
                by_site[name] = log_p.detach()
            if any(d >= -log_p.dim() and log_p.shape[d] != 1 for d in summed) or (
                name not in ours and not site["is_observed"]
            ):
                if not site["is_observed"] and site["infer"].get("_enumerate_dim") is None:
                    raise ValueError(_uncovered(name, site, list(ours)))
                masked = scale_and_mask(log_p, mask=site["mask"])
                marginal.append(
                    {"name": name, "log_prob": masked, "scale": site["scale"], "plates": frames}
                )
            elif site["is_observed"]:
                cost = scale_and_mask(log_p, site["scale"], site["mask"])
                likelihood = likelihood + expectation(cost, frames, name)
            else:
                ordered = all(order[other] < order[name] for other in earlier)
                cost, analytic = _kl(ours[name], site, log_p, ordered)
                if validate and analytic and bool(torch.isinf(cost).any()):
                    raise ValueError(_infinite(name, ours[name]["fn"], site["fn"]))
                kl = kl + expectation(cost, frames | plates_of(ours[name]), name)
                earlier.add(name)
        for frames_left, term in sum_out(marginal, summed) if marginal else ():
            likelihood = likelihood + expectation(term, dict.fromkeys(frames_left, 0), "marginal")
        if marginal and (not isinstance(self.kl_weight, float) or self.kl_weight != 1.0):
            raise ValueError(
                "kl_weight has no KL to act on where a latent is summed out in the model: leave "
                "it at 1.0, or give the latent a guide."
            )
        for name, site in ours.items():
            if name not in theirs and not site["infer"].get("is_auxiliary"):
                raise ValueError(
                    f"The guide samples {name!r}, which the model does not have; the model's "
                    f"latents are {[n for n, s in theirs.items() if not s['is_observed']]}."
                )
            if name not in theirs:  # auxiliary: its density counts, its prior is flat
                cost = scale_and_mask(site["log_prob"], site["scale"], site["mask"])
                kl = kl + expectation(cost, plates_of(site), name)
        return Terms(likelihood, kl, by_site)


def _sample_sites(trace: Any) -> dict[str, Any]:
    return {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}


def _device(*sites: dict[str, Any]) -> torch.device:
    values = [site["value"] for group in sites for site in group.values()]
    return values[0].device if values else torch.device("cpu")


def _kl(ours: Any, theirs: Any, log_p: Tensor, ordered: bool) -> tuple[Tensor, bool]:
    """The site's share of KL(q || p), whether it is analytic; batch shape with enumerated dims."""
    enumerated = ours["infer"].get("_enumerate_dim") is not None
    if ordered and not enumerated and is_identically_zero(ours["score_parts"].score_function):
        try:
            value = kl_divergence(ours["fn"], theirs["fn"])
        except NotImplementedError:
            pass
        else:
            if not _same(ours["scale"], theirs["scale"]):
                raise ValueError(
                    f"Site {ours['name']!r} is scaled by {ours['scale']} in the guide and by "
                    f"{theirs['scale']} in the model: put it into the same plate in both."
                )
            if not isinstance(value, Tensor):
                value = torch.full(ours["fn"].batch_shape, float(value), device=log_p.device)
            return scale_and_mask(value, theirs["scale"], theirs["mask"]), True
    log_p = scale_and_mask(log_p, theirs["scale"], theirs["mask"])
    # For an enumerated site this is log q at its support.
    log_q = scale_and_mask(_entropy_term(ours), ours["scale"], ours["mask"])
    return log_q - log_p, False


def _entropy_term(site: Any) -> Any:
    if site["infer"].get("_enumerate_dim") is not None:
        return site["log_prob"]
    return site["score_parts"].entropy_term


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def _uncovered(name: str, site: Any, guide: list[str]) -> str:
    way = (
        "put it into the guide, or mark it infer={'enumerate': 'parallel'} to sum it out"
        if getattr(site["fn"], "has_enumerate_support", False)
        else "add it to the guide"
    )
    return f"The model samples {name!r}, which the guide (sites {guide}) does not cover: {way}."


def _infinite(name: str, q: Any, p: Any) -> str:
    return (
        f"KL(q || p) of site {name!r} is infinite: its guide {type(q).__name__} has mass where its "
        f"prior {type(p).__name__} has none ({p.support}). Use a guide on the same support, a "
        "LogNormal for a positive scale for example."
    )


class Bound(ELBOModule):
    """The negative ELBO of a pair as a module: ``bound(x, y)`` in nats over the whole data set.

    Its parameters are those of model and guide. ``kl_weight`` is a tensor, so that a graph traced
    from it takes the weight as an input.
    """

    elbo: EnumMeanFieldELBO
    kl_weight: Tensor

    def __init__(self, model: nn.Module, guide: nn.Module, elbo: EnumMeanFieldELBO) -> None:
        super().__init__(model, guide, elbo)
        self.enumerate_model = isinstance(guide, Marginal)
        device = next((p.device for p in self.parameters()), None)
        self.register_buffer("kl_weight", torch.ones((), device=device), persistent=False)

    def terms(self, *args: Tensor) -> Terms:
        """One evaluation, in its parts."""
        model: Any = config_enumerate(self.model) if self.enumerate_model else self.model
        with local_parameters():
            return self.elbo.terms(model, self.guide, *args)

    def forward(self, *args: Tensor) -> Tensor:
        return self.terms(*args).loss(self.kl_weight)


def bound(model: nn.Module, guide: nn.Module, max_plate_nesting: float = float("inf")) -> Bound:
    """The negative ELBO of a (model, guide) pair, by :class:`EnumMeanFieldELBO`.

    Arguments:
        model, guide: a pair with the same signature;
            :class:`~pyroccam.guides.Marginal` sums the depth out in the model.
        max_plate_nesting: as for :class:`EnumMeanFieldELBO`.
    """
    return Bound(model, guide, EnumMeanFieldELBO(max_plate_nesting=max_plate_nesting))


@contextmanager
def local_parameters() -> Iterator[None]:
    """Keep parameters in their modules, out of Pyro's global store, for the time being."""
    with pyro.settings.context(module_local_params=True):
        yield
