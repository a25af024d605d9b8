"""Posteriors that are functions of a number, such as the weight of the KL: a path from one fit."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self, cast

import pyro
import torch
from torch import Tensor, nn

from ..data import Between, Positive, PyroccamError, checked
from ..models import Model, Number, Numbering, Weighing, unknown_name
from ..models.distributions import lend
from .base import (
    Guide,
    KLSettings,
    NetworkGuide,
    Schedule,
    Traits,
    Words,
    made_from_another,
)
from .edges import EdgeFactor
from .factors import Evidence, Factor
from .forms import Form, Piecewise

KL_WEIGHT = "kl_weight"
"""λ, where it is no number of the model."""


class ConditionalFactor(Factor):
    """The posterior of a site whose parameters are functions of a number u in [0, 1], which all
    begin with those of a factor that is copied.

    What it says of itself it says at one u, the usual one.
    """

    usual: Tensor

    def __init__(self, factor: Factor, form: Form, usual: float) -> None:
        super().__init__()
        self.form = form
        self.is_point, self.no_density = factor.is_point, factor.no_density
        self.within = _copied(factor)
        # Of each parameter what is trained beside it.
        self.more = nn.ModuleDict()
        for name, p in self._varying():
            begun = form.begin(p.detach())
            setattr(self.within, name, nn.Parameter(begun.pop("own")))
            self.more[name] = nn.ParameterDict({k: nn.Parameter(t) for k, t in begun.items()})
        like = next(factor.parameters())
        where = torch.tensor(usual, dtype=like.dtype, device=like.device)
        self.register_buffer("usual", where, persistent=False)

    def _varying(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.within.named_parameters(recurse=False))

    def at(self, u: Tensor) -> Factor:
        """The factor at a u, ``()``, with tensors for parameters, through which gradients pass."""
        found = copy.copy(self.within)
        # The copy has all of the factor, tensors as attributes where that has parameters.
        vars(found)["_parameters"] = {}
        for name, own in self._varying():
            more: Any = self.more[name]
            trained = {"own": own, **{key: more[key] for key in more}}
            vars(found)[name] = self.form.value(name, trained, u)
        return found

    def settled(self, u: Tensor) -> Factor:
        """An ordinary factor, whose parameters are those at a u."""
        found, here = _copied(self.within), vars(self.at(u))
        for name, _ in self._varying():
            setattr(found, name, nn.Parameter(here[name].detach().clone()))
        return found

    def _usual(self) -> Factor:
        return self.at(self.usual)

    def forward(self) -> Any:
        return self._usual()()

    def moments(self, power: float) -> tuple[Tensor, Tensor]:
        return self._usual().moments(power)

    def evidence(self) -> Evidence | None:
        return self._usual().evidence()

    def cdf(self, value: Tensor) -> Tensor | None:
        return self._usual().cdf(value)


class ConditionalEdge(ConditionalFactor):
    """The same of an edge of random structure; a q(d) moves by its gradient here."""

    closed = False

    def __init__(self, factor: Factor, form: Form, usual: float) -> None:
        super().__init__(factor, form, usual)
        # By which a guide is known to go with its model.
        lend(vars(factor).get("temperature"), self)

    def _usual(self) -> EdgeFactor:
        return cast(EdgeFactor, super()._usual())

    def probs(self) -> Tensor:
        return self._usual().probs()

    def entropy(self) -> float:
        return self._usual().entropy()

    def vertex(self, *, empty: bool = True) -> Tensor:
        return self._usual().vertex(empty=empty)

    def vertex_log_prob(self, vertex: Tensor) -> float:
        return self._usual().vertex_log_prob(vertex)


class Conditional(NetworkGuide):
    r"""A posterior for each weight of the KL, all from one fit: its parameters are functions of λ.

    .. math:: \max_φ \, E_λ \Big[ E_{q_φ(w \mid λ)} \log p(y \mid w)
        - λ \, KL\big(q_φ(w \mid λ) \,\|\, p(w)\big) \Big], \qquad \log λ \sim U(\log a, \log b)

    Every parameter of the guide (means and logarithms of deviations, logits of structure) is a
    function of :math:`u = (\log λ - \log a) / (\log b - \log a)`. The likelihood is summed over all
    N rows, so λ means what the ``kl_weight`` of a fit does. In training mode each call draws a λ,
    one for each of the ``particles`` of a fit, and its ``handler`` weighs the KL with it in guide
    and model. Afterwards :meth:`Fit.at <pyroccam.inference.Fit.at>` gives the fit of any λ, with an
    ordinary guide.

    By ``over`` λ is another number, of which the model has several by path (``model.numbers()``),
    and the KL is not weighed: in each step the prior has the number that was drawn, and
    :meth:`Fit.at <pyroccam.inference.Fit.at>` gives a fit of a model that has it.

    =========================  ===================================================================
    ``prior.scale``            standard deviation of the weights, by which a precision 1 / scale²
                               of the prior weighs them; so for each argument of a prior that stands
                               in it as it is (``prior.tau0`` of a half-Cauchy)
    ``structure.temperature``  of a relaxed structure, in prior and posterior
    ``structure.power``        of the probabilities of a structure, or of a depth: the nats that an
                               edge, or a block, costs are multiplied by it (the weights of a
                               Dirichlet are no such costs)
    =========================  ===================================================================

    Random structure has a posterior for each λ as well. A q(d) over the depth of a stack moves by
    its gradient here, after the share of the steps that it is held for; that of
    :meth:`Fit.at <pyroccam.inference.Fit.at>` is the best beside its weights.

    What is no latent (weights that are numbers, the noise of a regression, what a prior learns) has
    one value for all λ. In evaluation mode the guide is the one of λ = 1 (or of the number that the
    model has), or of the middle of the range (in logarithms) where that is outside, and the KL is
    not weighed: so are the validation rows judged, and the fit before ``at``. Running statistics of
    batch normalisation are of all λ together until ``at`` renews them.

    Arguments:
        guide: whose parameters become functions; a copy is made, and every λ begins with it.
        over: what λ is, ``kl_weight`` or a number of the model by path.
        model: of the guide, where λ is a number of it.
        low, high: a and b.
        pivots: of the functions, which are broken lines through equally spaced pivots; more of
            them are trained by fewer steps each, and a line, through two, cannot follow a path over
            decades.

    Attributes:
        form: of the functions; another one is a class below this one's.
        usual: the λ of the evaluation mode.
        handler: that weighs, or sets the number, with the local reparameterisation of the guide
            inside. With ``pyro.infer.SVI`` train by ``with guide.handler: svi.step(x, y)``: without
            it nothing is weighed or set, and the guide is the one of the usual λ.

    Raises:
        PyroccamError: for what is not a guide whose parameters may be functions, a model say.
        ValueError: for structure whose temperature is learnt; for an empty range, or a number that
            the model has not.

    References:
        Lorraine, Duvenaud 2018, Stochastic hyperparameter optimization through hypernetworks,
        arXiv:1802.09419; Grebenkova, Bakhteev, Strijov (ICAART 2023), who have these functions and
        this objective, github.com/Intelligent-Systems-Phystech/VarHyperNet.

    Example:
        >>> from pyroccam import data, inference, models
        >>> digits = data.load("digits")
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> from pyroccam.guides import MeanField
        >>> guide = Conditional(MeanField(model), low=0.1, high=10.0)
        >>> fit = inference.fit(model, guide, digits, epochs=2, progress=False)
        >>> type(fit.at(0.5).guide).__name__
        'MeanField'
    """

    words: ClassVar[Words] = {}
    form: ClassVar[type[Form]] = Piecewise

    def __init__(
        self,
        guide: NetworkGuide,
        *,
        over: str = KL_WEIGHT,
        model: Model | None = None,
        low: Positive = 1e-3,
        high: Positive = 1e1,
        pivots: Annotated[int, Between(2)] = 6,
    ) -> None:
        if not low < high:
            raise PyroccamError(f"low={low:g}, high={high:g}", "low < high")
        made = self.form(pivots)
        name = f"guides.{type(guide).__name__}"
        if not guide.varies:
            expected = "a guides.Delta, MeanField or VariationalDropout"
            raise PyroccamError(f"{name}, whose parameters cannot be functions", expected)
        if guide.edges and guide.structure_family.temperature == "learnt":
            expected = "guides.StructureFamily(temperature='tied')"
            raise PyroccamError(f"{name} of structure whose temperature is learnt", expected)
        super(Guide, self).__init__()  # the rest is as the guide has it
        # All of the guide but its factors: what an ordinary one is made of again.
        self._shell, self._options = (_without_factors(guide),), guide.options()
        object.__setattr__(self, "_mark_of_model", vars(guide).get("_mark_of_model"))
        self.low, self.high = float(low), float(high)
        self.pivots = pivots
        self._over = over
        within: Any = copy.deepcopy(guide.handler)
        own: float | None = 1.0
        handler = Weighing(guide.latents(), within)
        if over != KL_WEIGHT:
            number = _number(guide, over, model)
            handler, own = Numbering(number.slots, within), number.own
        elif model is not None:
            raise PyroccamError(
                "over='kl_weight', which is no number of model=", "such as over='prior.scale'"
            )
        if own is None or not low <= own <= high:
            own = math.sqrt(low * high)
        self.usual = own
        self.structure_family, self.edges = guide.structure_family, list(guide.edges)
        self.counting, self.sites = guide.counting, list(guide.sites)
        self.schedule = Schedule(guide.schedule.start or None)
        usual = self._of(self.usual)
        self.factors = nn.ModuleDict()
        for site in self.latents():
            kind = ConditionalEdge if site in self.edges else ConditionalFactor
            self.factors[self.key(site)] = kind(guide.factor_of(site), made, usual)
        self.handler = handler

    def _of(self, weight: float) -> float:
        """u of λ."""
        return math.log(weight / self.low) / math.log(self.high / self.low)

    # -- what it says of itself -------------------------------------------------------------------

    @property
    def traits(self) -> Traits:
        return replace(super().traits, variable=self._over)

    def options(self) -> dict[str, Any]:
        return super().options() | {**self.arguments(), "of": self._options}

    def arguments(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("low", "high", "pivots")}
        return {"over": self._over, **own}

    def rebuild(self, model: Model, names: Mapping[str, str] | None = None) -> Self:
        self.refuse(model)
        whose = None if self._over == KL_WEIGHT else model
        inner = self.condition(self.usual).rebuild(model, names)
        return type(self)(inner, model=whose, **self.arguments())

    def check(self, model: Model, settings: KLSettings, batches: int) -> None:
        super().check(model, settings, batches)
        handler = cast(Weighing, self.handler)
        parts = set(map(id, model.modules()))
        if any(id(slot.module) not in parts for slot in handler.slots):
            found = f"the guide was made from another {type(model).__name__}, with its {self._over}"
            raise PyroccamError(found, "copy.deepcopy((model, guide)) of both at once")
        if settings.kl_weight != 1.0 and self._over == KL_WEIGHT:
            raise PyroccamError(
                f"kl_weight={settings.kl_weight:g} of guides.Conditional, which learns all from "
                f"{self.low:g} to {self.high:g}",
                "1",
                f"fit.at({settings.kl_weight:g}) afterwards",
            )

    # -- in training, and afterwards --------------------------------------------------------------

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample every site at a λ: a new one if it is training and its handler is in place."""
        weighing = cast(Weighing, self.handler)
        like = cast(ConditionalFactor, self.factor_of(self.latents()[0])).usual
        u, value = like, None
        if self.training and weighing in pyro.poutine.runtime._PYRO_STACK:
            u = torch.rand((), dtype=like.dtype, device=like.device)
            value = (math.log(self.low) + u * math.log(self.high / self.low)).exp()
        weighing.take(value)
        factors = self.part("factors")
        values = {site: factors[self.key(site)].at(u).drawn(site) for site in self.edges}
        with nullcontext() if self.counting is None else self.counting.given(values):
            for site in self.sites:
                pyro.sample(site, factors[self.key(site)].at(u)())

    @checked
    def condition(self, value: Positive, *, extrapolate: bool = False) -> NetworkGuide:
        """The ordinary guide of one λ; for another number than the weight of the KL it is for a
        model that has it.

        Arguments:
            value: λ.
            extrapolate: take one outside of the range as well, where no step has trained it: on
                the line through the last two pivots, or as the form goes on.

        Raises:
            PyroccamError: for a number that is not positive, or outside of the range.
        """
        given = float(value)
        if not (extrapolate or self.low <= given <= self.high):
            raise PyroccamError(
                f"{self._over}={given:g}", f"{self.low:g} to {self.high:g}", "extrapolate=True"
            )
        found = copy.deepcopy(self._shell[0])
        for site in self.latents():
            factor = cast(ConditionalFactor, self.factor_of(site))
            u = factor.usual.new_tensor(self._of(given))
            found.factors[found.key(site)] = factor.settled(u)
        return found


def _number(guide: NetworkGuide, over: str, model: Model | None) -> Number:
    if model is None:
        raise PyroccamError(
            f"over={over!r}, a number of a model, and no model", "the model of the guide", "model="
        )
    if made_from_another(guide, model):
        raise PyroccamError(
            f"model={type(model).__name__}, which the guide was not made from",
            "the model of the guide",
        )
    known = model.numbers()
    if over not in known:
        raise PyroccamError(
            unknown_name("number over= of this model", str(over), [KL_WEIGHT, *known])
        )
    return known[over]


def _copied(factor: Factor) -> Any:
    """A copy, with the temperature that all edges have."""
    shared = vars(factor).get("temperature")
    return copy.deepcopy(factor, {} if shared is None else {id(shared): shared})


def _without_factors(guide: NetworkGuide) -> NetworkGuide:
    found = copy.copy(guide)
    vars(found)["_modules"] = {**vars(guide)["_modules"], "factors": nn.ModuleDict()}
    return copy.deepcopy(found)
