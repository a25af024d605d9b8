"""The bound: one estimator for every pair, exact where it can be, traceable to a tensor graph."""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import config_enumerate
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.poutine import trace_messenger
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from pyro.util import check_model_guide_match, warn_if_nan
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from ...data import Count, PyroccamError, checked
from ...guides import sums_out
from ...models import PlainNetwork, local_parameters
from .enumeration import SummedOut
from .expectation import (
    Expectation,
    check_shape,
    check_sites,
    is_deterministic,
    log_prob_of,
    plates_of,
    sample_sites,
    site_kl,
    unmasked,
)
from .joined import JoinedKL


@dataclass
class Terms:
    """An evaluation of the bound, in nats over the whole data set.

    Attributes:
        log_likelihood: estimate of ``E_q[log p(y | z)]`` over all N observations. Where the model
            sums latents out, everything that depends on them is part of it.
        kl: ``KL(q || p)``, or an estimate of it, not weighted.
        by_site: of the first particle, for each observed site its log-probabilities,
            ``(enumerated dims..., plates...)``, zero where masked, unscaled and without gradient.
            For an enumerated latent on whose values the KL of others depends, the sum of these,
            ``(enumerated dims..., 1...)``.
        summed_out: latents that the model sums out.
        kl_by_site: of the first particle the terms of ``kl``, by latent, but for those that were
            found together.
    """

    log_likelihood: Tensor
    kl: Tensor
    by_site: dict[str, Tensor] = field(default_factory=dict)
    summed_out: tuple[str, ...] = ()
    kl_by_site: dict[str, Tensor] = field(default_factory=dict)

    def loss(self, kl_weight: float | Tensor = 1.0) -> Tensor:
        """``β KL - E_q[log p(y | z)]``.

        Raises:
            PyroccamError: for β other than 1 where the model sums latents out (a tensor is looked
                at only while validation is on).
        """
        if self.summed_out:
            look = not isinstance(kl_weight, Tensor) or pyro.infer.util.is_validation_enabled()
            if look and bool(kl_weight != 1.0):
                names = ", ".join(map(repr, self.summed_out))
                raise PyroccamError(f"kl_weight={float(kl_weight):g} and no KL of {names}", "1")
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

    Shapes and values are looked at only while validation is on: otherwise it can be traced to a
    graph (:mod:`~pyroccam.inference.compilation.trace`). It is an ordinary ``ELBO`` for ``SVI``.

    The conditional KL of a site is unbiased where every latent that precedes it in the model
    precedes it in the guide too; a site in another order gets the log-ratio.

    Arguments:
        num_particles: draws of the latents that are averaged.
        max_plate_nesting: number of nested plates; found out in the first call if left out.
        kl_weight: β.

    Raises:
        PyroccamError: at the first evaluation, for sites that only one of guide and model has, a
            shape that is neither plate nor enumeration, a KL that is infinite by construction, or
            an outside of a plate that depends on what is enumerated inside.

    References:
        Antoran et al. 2020, arXiv:2002.02797, for enumerated guides; Foerster et al. 2018,
        arXiv:1802.05098, for DiCE; Pyro's issues 1710 and 2809 ask for this estimator.
    """

    @checked
    def __init__(
        self,
        num_particles: Count = 1,
        max_plate_nesting: float = float("inf"),
        kl_weight: float = 1.0,
    ) -> None:
        super().__init__(num_particles, max_plate_nesting, strict_enumeration_warning=False)
        self.kl_weight = kl_weight
        self.joins = True  # the KL of small sites; a compiler does better with each alone

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Minus the bound, with gradients."""
        return self.terms(model, guide, *args, **kwargs).loss(self.kl_weight)

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, as a number."""
        with torch.no_grad():
            loss = self.differentiable_loss(model, guide, *args, **kwargs)
        return float(warn_if_nan(loss, "loss"))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Minus the bound; its gradients are left in the parameters."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward()
        return float(warn_if_nan(loss.detach(), "loss"))

    def terms(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Terms:
        """The likelihood term and the KL of one evaluation (averaged over particles)."""
        found = [self._particle(model, guide, args, kwargs) for _ in range(self.num_particles)]
        first = found[0]
        if len(found) > 1:
            first.log_likelihood = torch.stack([t.log_likelihood for t in found]).mean()
            first.kl = torch.stack([t.kl for t in found]).mean()
        return first

    def _guess_max_plate_nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        # As Pyro does it, but silent, and without a trace in random state, buffers or a graph.
        modules = [m for m in map(poutine.unwrap, (model, guide)) if isinstance(m, nn.Module)]
        devices = range(torch.cuda.device_count())
        with disable_proxy_modes_tracing(), torch.random.fork_rng(devices), poutine.block():
            before = {b: b.detach().clone() for module in modules for b in module.buffers()}
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            replayed = poutine.replay(model, trace=guide_trace)
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
            with torch.no_grad():
                for buffer, value in before.items():
                    buffer.copy_(value)
            ours, theirs = sample_sites(guide_trace), sample_sites(model_trace)
            check_sites(ours, theirs, model)
            sites = [*ours.values(), *theirs.values()]
            if pyro.infer.util.is_validation_enabled():
                for site in sites:
                    check_shape(site, float("inf"))
        dims = [dim for site in sites for dim in plates_of(site).values()]
        self.max_plate_nesting = -min(dims, default=0)

    def _get_trace(
        self, model: Any, guide: Any, args: Any, kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those of the guide and of the model that have a density, in one pass of both."""
        if isinstance(poutine.unwrap(guide), Messenger):
            raise PyroccamError(
                f"{type(guide).__name__} works on the model's messages",
                "a guide that is called like the model",
            )
        if self.max_plate_nesting == float("inf"):
            self._guess_max_plate_nesting(model, guide, args, kwargs)
        # The model's messenger goes on with the dims where the guide's has stopped.
        guide = EnumMessenger(first_available_dim=-1 - int(self.max_plate_nesting))(
            config_enumerate(guide)
        )
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replayed = poutine.replay(EnumMessenger()(model), trace=guide_trace)
        model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        ours, theirs = sample_sites(guide_trace), sample_sites(model_trace)
        check_sites(ours, theirs, model)
        if pyro.infer.util.is_validation_enabled():
            for name in [n for n, s in guide_trace.nodes.items() if is_deterministic(s)]:
                guide_trace.remove_node(name)
            check_model_guide_match(model_trace, guide_trace, self.max_plate_nesting)
        return ours, theirs

    def _particle(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Terms:
        ours, theirs = self._get_trace(model, guide, args, kwargs)
        expectation = Expectation(ours)
        hidden = any(name not in ours and not site["is_observed"] for name, site in theirs.items())
        summed = SummedOut(theirs, ours) if hidden else None
        looks = pyro.infer.util.is_validation_enabled()  # at every site
        drawn = any(factor.dim is None for factor in expectation.factors)  # by a score function
        joins = self.joins and not (drawn or summed or looks)
        joined = JoinedKL()
        likelihood: list[Tensor] = []
        kl: dict[str, Tensor] = {}
        by_site: dict[str, Tensor] = {}
        reach = -1  # position in the guide of the last latent that the model has seen
        for name, site in theirs.items():
            plates, scale, mask = plates_of(site), site["scale"], site["mask"]
            if summed and name in summed.latents:  # p(z) sums to one, masked or not
                site["log_prob"] = unmasked(site["fn"]).log_prob(site["value"])
                check_shape(site, self.max_plate_nesting)
                summed.factors.append((site, site["log_prob"]))
            elif site["is_observed"]:
                site["log_prob"] = log_p = log_prob_of(site)
                masked = scale_and_mask(log_p, mask=mask)
                by_site[name] = masked.detach()
                check_shape(site, self.max_plate_nesting)
                if summed and summed.concerns(site, log_p.shape):
                    summed.factors.append((site, masked))
                else:
                    cost = scale_and_mask(log_p, scale, mask)
                    likelihood.append(expectation(cost, plates, name, reach))
            else:
                own = ours[name]
                ordered = expectation.position[name] > reach
                reach = max(reach, expectation.position[name])
                if joins and ordered and joined.take(own, site):
                    continue
                if summed and summed.concerns(site, site["fn"].batch_shape):
                    site["log_prob"] = log_prob_of(site)
                    masked = scale_and_mask(site["log_prob"], mask=mask)
                    summed.factors.append((site, masked))
                    cost = scale_and_mask(own["log_prob"], own["scale"], own["mask"])
                else:
                    cost = site_kl(own, site, ordered)
                check_shape(site, self.max_plate_nesting)
                check_shape(own, self.max_plate_nesting)
                kl[name] = expectation(cost, plates | plates_of(own), name, reach)
                if expectation.factors:
                    expectation.note(cost, name, {**plates, **plates_of(own)}.values())
        if summed:
            for left, term in summed.terms():
                likelihood.append(expectation(term, left, summed.label, reach))
        for name, site in ours.items():
            if name not in theirs:  # auxiliary: its density counts, its prior is flat
                check_shape(site, self.max_plate_nesting)
                cost = scale_and_mask(site["log_prob"], site["scale"], site["mask"])
                kl[name] = expectation(cost, plates_of(site), name, expectation.position[name])
        together: list[Tensor] = []
        for cost in joined.terms():
            if expectation.factors:
                expectation.note(cost)
            together.append(expectation(cost, {}, "of several", reach))
        sites = [*theirs.values(), *ours.values()]
        zero = torch.zeros((), device=sites[0]["value"].device if sites else None)
        total = sum([*kl.values(), *together], zero)
        latents = tuple(summed.latents) if summed else ()
        return Terms(sum(likelihood, zero), total, by_site | expectation.costs, latents, kl)


class Bound(ELBOModule):
    """The negative ELBO of a pair as a module: ``bound(x, y)`` in nats over the whole data set.

    Its parameters are those of model and guide. ``kl_weight`` is a tensor, so that a graph traced
    from it takes the weight as an input; it starts with that of ``elbo``.
    """

    elbo: EnumMeanFieldELBO
    kl_weight: Tensor

    def __init__(self, model: nn.Module, guide: nn.Module, elbo: EnumMeanFieldELBO) -> None:
        super().__init__(model, guide, elbo)
        self.enumerate_model = sums_out(guide)
        device = next((p.device for p in self.parameters()), None)
        weight = torch.full((), float(elbo.kl_weight), device=device)
        self.register_buffer("kl_weight", weight, persistent=False)
        for module in self.modules():  # Pyro's modules made under its default lack a local store
            context = module.__dict__.get("_pyro_context")
            if context is not None and not hasattr(context, "param_state"):
                context.param_state = {"params": {}, "constraints": {}}

    def terms(self, *args: Tensor) -> Terms:
        """One evaluation, in its parts."""
        if isinstance(self.model, PlainNetwork) and not pyro.infer.util.is_validation_enabled():
            return _plain_terms(self.model, *args)
        model: Any = config_enumerate(self.model) if self.enumerate_model else self.model
        # Local reparameterisation, for one: an effect around guide and model.
        handler = getattr(self.guide, "handler", None)
        installed = handler is None or handler in pyro.poutine.runtime._PYRO_STACK
        around: Any = nullcontext() if installed else handler
        try:
            with local_parameters(), around:
                return self.elbo.terms(model, self.guide, *args)
        except Exception as error:
            own = _before_pyro(error)
            if own is error:
                raise
        raise own

    def forward(self, *args: Tensor) -> Tensor:
        """``β KL - E_q[log p(y | z)]``, a scalar."""
        return self.terms(*args).loss(self.kl_weight)


def _plain_terms(model: PlainNetwork, x: Tensor, y: Tensor) -> Terms:
    """The terms where nothing is random but the targets, without Pyro's handlers."""
    log_p = model.log_prob(model.part("net")(x), y)
    likelihood = (log_p * (model.size / len(x))).sum()
    return Terms(likelihood, torch.zeros_like(likelihood), {"y": log_p.detach()}, (), {})


def _before_pyro(error: Exception) -> Exception:
    """The error that a network raised: Pyro makes it anew with all shapes in its message, and
    fails where the class takes other arguments."""
    while True:
        own = error.__cause__
        anew = type(own) is type(error) and "Trace Shapes:" in str(error)
        if own is None:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            anew = frame.f_globals.get("__name__") == trace_messenger.__name__
            own = error.__context__
        if not anew or not isinstance(own, Exception):
            return error
        error = own


@checked
def bound(
    model: nn.Module,
    guide: nn.Module,
    max_plate_nesting: float | None = None,
    particles: Count = 1,
) -> Bound:
    """The negative ELBO of a model and a guide of one signature, by :class:`EnumMeanFieldELBO`; by
    default with as many nested plates as the model says, or, of another's, as the first call finds.
    """
    if max_plate_nesting is None:
        max_plate_nesting = getattr(model, "plates", float("inf"))
    return Bound(model, guide, EnumMeanFieldELBO(particles, max_plate_nesting))
