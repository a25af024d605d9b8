"""Simulation-based calibration of a variational posterior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from pyro import poutine
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...data import Between, PyroccamError, Seed, checked
from ...guides import Guide
from ...models import Model, evaluating, local_parameters, seeded
from ...models.distributions import base
from ..posterior import exact_depth_posterior, outputs_of, posterior_of, weights_of
from ..training import fit_repeats
from .calibration import Calibration
from .log_joint import is_discrete, is_improper

if TYPE_CHECKING:
    from ...data import Dataset

DRAWS = 1000  # from q, where ranks are needed
AT_ONCE = 100  # simulations that are fitted in common steps

Floats = NDArray[np.float64]
Build = Callable[[int], tuple[Any, Guide, "Dataset"]]

# From a model and values of its sites (S, *) to S values of something, (S, *).
Quantity = Callable[[Any, Mapping[str, Tensor]], Tensor]


def outputs_at(x: Tensor) -> Quantity:
    """The outputs of the network for given inputs, as a quantity for :func:`vsbc`.

    Arguments:
        x: inputs ``(K, *)``, on the scale of the data.
    """

    def outputs(model: Any, values: Mapping[str, Tensor]) -> Tensor:
        if not model.random_weights:
            return model.components(x.to(model.log_prior.device))[values["depth"]]
        weights = weights_of(model, values)
        device = next(iter(weights.values())).device
        return outputs_of(model.start_network(), weights, x.to(device))

    return outputs


@checked
def vsbc(
    build: Build,
    simulations: Annotated[int, Between(20)] = 200,
    *,
    sites: Sequence[str] | None = None,
    quantities: Mapping[str, Quantity] | None = None,
    seed: Seed = 0,
    device: str = "auto",
    **settings: Any,
) -> Calibration:
    r"""The calibration of what a guide learns, by simulations in which the truth is known.

    .. math:: θ^* \sim p(θ), \quad y \sim p(y \mid θ^*, x), \quad q \text{ fitted to } y, \quad
        p = P_q(θ < θ^*)

    Over simulations p is uniform if q is the exact posterior. If it is not symmetric about ½, q is
    biased; if it gathers at 0 and 1, q is too narrow; about ½, too wide.

    Each simulation has the inputs of the data set that ``build`` gives, and new targets at the
    training and the validation rows. Random are the latents: weights with a prior, scales, depth,
    structure. What the model holds as numbers (the noise of regression, weights without a prior,
    what a prior learns) is part of the model that is simulated, and is held in the fit too. Learnt
    depth in closed form then has the exact posterior of the depth at once.

    Of a normal or log-normal factor p is in closed form. Of what is discrete (depth, enumerated
    structure) it is randomised, :math:`P_q(d < d^*) + U\, P_q(d = d^*)` with a uniform U, which is
    as uniform; of everything else it is the rank among draws, randomised likewise.

    A q that stays at the prior passes as well. The exact posterior of weights of hidden units,
    which can change places and signs, has many equal modes, and q, in one of them, fails: there
    test what a network computes, by ``sites=[]`` and ``quantities={"f": outputs_at(x)}``.

    Arguments:
        build: makes model, guide and data for a seed, as for
            :func:`~pyroccam.inference.fit_repeats`; an equal pair each time.
        simulations: n; below about 100 only gross errors are seen.
        sites: latents whose numbers are tested, all by default.
        quantities: to test as well, by name: functions of the model and of values of all its sites
            ``(S, *)`` that give ``(S, *)``.
        seed: of the first simulation; the others follow.
        device, settings: of the fits, see :func:`~pyroccam.inference.fit_repeats`. Each
            is evaluated once, at its end, unless ``evaluations`` says otherwise.

    Raises:
        PyroccamError: for a prior without draws, a network that computes otherwise in training than
            afterwards (dropout, batch statistics), a model without latents, or unknown sites.
        NonFiniteLoss: if a fit fails.

    References:
        Yao, Vehtari, Simpson, Gelman 2018, arXiv:1802.02538; Talts et al. 2018, arXiv:1804.06788;
        Modrák et al. 2023, arXiv:2211.02383, for quantities that depend on data and parameters.
    """
    if sites is not None and not sites and not quantities:
        raise PyroccamError("sites=[] and no quantities", "something to test")
    settings = {"progress": False, "evaluations": 1, **settings}
    rng = np.random.default_rng(seed)
    rows: list[Floats] = []
    names: list[str] = []
    for first in range(0, simulations, AT_ONCE):
        seeds = range(seed + first, seed + min(first + AT_ONCE, simulations))
        for one in _fitted(build, seeds, device, settings):
            names, found = one.probabilities(sites, quantities or {}, rng)
            rows.append(found)
    return Calibration.of(names, np.stack(rows), seed)


class _Simulation:
    """A pair, the truth of its targets, and where that lies in the posterior."""

    def __init__(self, build: Build, seed: int) -> None:
        self.seed = seed
        self.model, self.guide, data = build(seed)
        _refuse(self.model, self.guide)
        data.refuse_weights("Simulation")
        self.model.requires_grad_(False)
        x = torch.cat([data.x_train, data.x_val])
        around = local_parameters(), pyro.validation_enabled(False)
        with evaluating(self.model), seeded(_simulated(seed), x.device), around[0], around[1]:
            run: Any = poutine.trace(self.model)
            trace: Any = run.get_trace(x)
        y = trace.nodes["y"]["value"].to(data.y_train.dtype)
        self.data = replace(data, y_train=y[: data.N], y_val=y[data.N :])
        self.truth = {name: trace.nodes[name]["value"] for name in self.model.latents()}

    def probabilities(
        self,
        sites: Sequence[str] | None,
        quantities: Mapping[str, Quantity],
        rng: np.random.Generator,
    ) -> tuple[list[str], Floats]:
        """Names of the numbers, and of each the posterior probability of what is below the
        truth, ``(P,)``."""
        each: list[tuple[str, Floats]] = []
        known = self.model.latents()
        sites = known if sites is None else sites
        for site in sites:
            if site not in known:
                raise PyroccamError(f"site {site!r}", f"one of {known}")
        with evaluating(self.model), evaluating(self.guide):
            device = next(self.guide.parameters()).device
            truth = {name: value.to(device) for name, value in self.truth.items()}
            with seeded(_simulated(self.seed), device):
                each += [(site, self.below(site, truth[site], rng)) for site in sites]
                drawn = posterior_of(self.model, self.guide).draw(DRAWS) if quantities else {}
            for name, quantity in quantities.items():
                value = quantity(self.model, {n: t[None] for n, t in truth.items()})
                each.append((name, _rank(quantity(self.model, drawn), value[0], rng)))
        names = [number for name, found in each for number in _numbered(name, found)]
        return names, np.concatenate([found.ravel() for _, found in each])

    def below(self, site: str, truth: Tensor, rng: np.random.Generator) -> Floats:
        """``P_q(θ < θ*)`` of each number of a site, in its shape."""
        q = self.guide.posterior(site)
        if is_discrete(q):
            probs = q.probs.double().cpu().numpy()
            k = int(truth)
            return np.array(min(probs[:k].sum() + rng.uniform() * probs[k], 1.0))
        if (counting := self.model.counting) is not None and site in counting.used:
            # Where the depth does not reach a weight, its posterior is its prior.
            depth = self.guide.posterior(counting.site).sample((DRAWS,))
            counts = torch.as_tensor(self.model.counts(site, {counting.site: depth}))
            p = self.model.priors_given({counting.site: depth[:1]})[site]
            counts = counts.expand(DRAWS).reshape(-1, *[1] * truth.dim()) > 0
            return _rank(torch.where(counts, q.sample((DRAWS,)), p.sample((DRAWS,))), truth, rng)
        known = self.guide.cdf(site, truth)
        return _rank(q.sample((DRAWS,)), truth, rng) if known is None else known.cpu().numpy()


def _fitted(build: Build, seeds: range, device: str, settings: dict[str, Any]) -> list[_Simulation]:
    """Simulations with posteriors that were fitted to them."""
    made: dict[int, _Simulation] = {}

    def simulate(seed: int) -> tuple[Any, Guide, Dataset]:
        one = made[seed] = _Simulation(build, seed)
        return one.model, one.guide, one.data

    cpu = torch.device("cpu")
    with seeded(seeds[0], cpu):
        first = _Simulation(build, seeds[0])
    if first.guide.traits.moves and not first.model.random_weights:
        # Where the weights are held, the closed-form update has one step, and ends there.
        for seed in seeds:
            with seeded(seed, cpu):
                model, guide, data = simulate(seed)
            exact = exact_depth_posterior(model, data)
            with torch.no_grad():
                guide.get_parameter("logits").copy_(exact.log().clamp_min(-1e4))
    else:
        fit_repeats(simulate, seeds, device=device, **settings)
    return [made[seed] for seed in seeds]


def _simulated(seed: int) -> int:
    """The seed of a simulation: far from that of its fit, whose random numbers begin the guide, and
    from those of its neighbours."""
    return int(np.random.SeedSequence((seed, 1)).generate_state(1)[0])


def _refuse(model: Model, guide: Guide) -> None:
    """Refuse what cannot be simulated."""
    if not guide.latents():
        raise PyroccamError(f"Nothing is random in a {type(model).__name__}", "a posterior")
    if model.likelihood.own_head:
        found = "a last layer in closed form, which knows rows that are simulated"
        raise PyroccamError(found, "another likelihood")
    for name, part in model.named_modules():
        noisy = isinstance(part, _DropoutNd) and part.p > 0.0
        if not guide.traits.moves and (noisy or isinstance(part, _BatchNorm)):
            raise PyroccamError(
                f"Module {name!r} ({type(part).__name__})",
                "modules that compute in training as in evaluation",
            )
    for site, (layer, name) in model.sites.items():
        prior = layer.latents()[name].prior
        if is_improper(prior):
            raise PyroccamError(
                f"The prior of site {site!r}, {type(base(prior)).__name__}", "a proper one"
            )


def _rank(drawn: Tensor, truth: Tensor, rng: np.random.Generator) -> Floats:
    """The share of S draws below the truth: uniform if the truth is one more of them, whatever
    ties there are.
    """
    less = (drawn < truth).sum(0).cpu().numpy()
    equal = (drawn == truth).sum(0).cpu().numpy()
    found: Floats = (less + rng.uniform(size=less.shape) * (equal + 1)) / (len(drawn) + 1)
    return found


def _numbered(name: str, values: Floats) -> list[str]:
    if values.ndim == 0:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(values.shape)]
