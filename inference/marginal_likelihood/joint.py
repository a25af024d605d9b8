"""The log joint density of a Bayesian network as a function of one real vector."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import Tensor
from torch.distributions import biject_to
from torch.func import functional_call

from ...data import PyroccamError
from ...guides import NetworkGuide
from ...models import BayesianNetwork, Model, evaluating
from ...models.distributions import base
from ..diagnostics import is_improper
from ..posterior import at_once, mean_network, outputs_of, require, weights_of

if TYPE_CHECKING:
    from ...data import Dataset
    from ..training import Fit


class Joint:
    """``log p(y | θ) + log p(θ)`` for a real vector θ ``(n,)`` in place of all weights and scales.

    A positive site stands in θ by its logarithm, one in the unit interval by its logit, and ``log
    p(θ)`` has the Jacobian of that. Everything is float64: an evidence is a difference of large
    numbers. What the model holds as numbers is what it is at present.

    Arguments:
        structure: values of the sites of random structure ``(*)``, of a model that has some;
            without them only densities of values are known, not of θ.

    Attributes:
        size: n.
        rows: N.
        numbers: weights of the network, random or not.
        passes: of one network through all rows, counted.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: NetworkGuide,
        data: Dataset,
        structure: Mapping[str, Tensor] | None = None,
    ) -> None:
        # Not only values: the logarithm of a float32 scale is wrong in the eighth digit, N times.
        self.model, self.guide = copy.deepcopy(model).double(), guide
        self.net = mean_network(model, guide).double()
        self.data, self.device = data, data.device
        given = {} if structure is None else structure
        self.structure = {site: value[None] for site, value in given.items()}
        self.size, self.rows, self.passes = 0, data.N, 0.0
        self.priors = self._priors()
        self.transforms = {site: biject_to(p.support) for site, p in self.priors.items()}
        self.shapes = {site: tuple(prior.event_shape) for site, prior in self.priors.items()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self.sizes)
        self.numbers = max(1, sum(p.numel() for p in self.net.parameters()))

    def _priors(self) -> dict[str, Any]:
        if not self.model.structure.keys() <= self.structure.keys():
            return {}
        priors = self.model.priors_given(self.structure)
        return {s: prior for s, prior in priors.items() if s not in self.structure}

    # -- θ and the sites ---------------------------------------------------------------------------

    def values(self, theta: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Values of the sites, ``(S, *)``, and the log Jacobian ``(S,)``, for θ ``(S, n)``."""
        found, jacobian = {}, theta.new_zeros(len(theta))
        for part, (site, shape) in zip(
            theta.split(self.sizes, 1), self.shapes.items(), strict=True
        ):
            real = part.reshape(len(theta), *shape)
            value = self.transforms[site](real)
            each = self.transforms[site].log_abs_det_jacobian(real, value)
            jacobian = jacobian + each.reshape(len(theta), -1).sum(1)
            found[site] = value
        return found, jacobian

    def theta(self, values: Mapping[str, Tensor]) -> Tensor:
        """θ ``(S, n)`` of values of the sites, ``(S, *)``."""
        parts = []
        for site in self.shapes:
            value = values[site].double()
            parts.append(self.transforms[site].inv(value).reshape(len(value), -1))
        return torch.cat(parts, 1)

    def centre(self) -> Tensor:
        """θ ``(n,)`` at the posterior means of the guide."""
        means = {}
        for site, shape in self.shapes.items():
            mean, _ = self.guide.factor_of(site).moments(1.0)
            means[site] = mean.detach().expand(shape)[None]
        return self.theta(means)[0]

    def draw_prior(self, draws: int) -> Tensor:
        """θ ``(S, n)`` from the prior, which is proper."""
        found = {}
        for site, prior in self.priors.items():
            drawn = prior.sample(() if prior.batch_shape else (draws,))
            found[site] = drawn.expand(draws, *self.shapes[site])
        return self.theta(found)

    # -- rows -------------------------------------------------------------------------------------

    @cached_property
    def whole(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of all training rows."""
        return _in_double(*self.data.split("train"))

    def parts(
        self, size: int | None = None, chosen: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of training rows: all at once, or in parts if they are streamed."""
        found: Iterable[tuple[Tensor, Tensor]]
        if not self.data.streamed:
            x, y = self.whole
            found = [(x, y) if chosen is None else (x[chosen], y[chosen])]
        elif chosen is not None:
            found = [_in_double(*self.data.take("train", chosen))]
        else:
            found = (_in_double(*part) for part in self.data.parts("train", weighted=False))
        for x, y in found:
            if size is None:
                yield x, y
            else:
                yield from zip(x.split(size), y.split(size), strict=True)

    # -- densities ---------------------------------------------------------------------------------

    def log_prior_of(self, values: Mapping[str, Tensor]) -> Tensor:
        """Log prior density ``(S,)`` of values of all sites, ``(S, *)``, in their coordinates; that
        of given structure is not part of it."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        held = self._held(values)
        for site, prior in self.model.priors_given(held).items():
            if site in values:
                found = prior.log_prob(values[site]).reshape(len(values[site]), -1).sum(1)
                total = total + self.model.counts(site, held) * found
        return total

    def log_likelihood_of(
        self, values: Mapping[str, Tensor], chosen: Tensor | None = None
    ) -> Tensor:
        """``log p(y | values)`` of all rows, ``(S,)``, for values of all sites, ``(S, *)``; of
        chosen rows ``(R,)`` the sum times N / R stands for that of all."""
        count = self.rows if chosen is None else len(chosen)
        found = [self._of_part(values, x, y) for x, y in self.parts(chosen=chosen)]
        return sum(found[1:], found[0]) * (self.rows / count)

    def of_rows(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """``log p(y | x, θ)`` of some rows, ``(S,)``, for θ ``(S, n)``."""
        return self._of_part(self.values(theta)[0], x, y)

    def _of_part(self, values: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        (draws,) = {len(value) for value in values.values()}
        found = []
        most = at_once(self.numbers, len(x))
        for start in range(0, draws, most):
            part = {s: value[start : start + most] for s, value in values.items()}
            weights = self._weights(part)
            self.passes += len(next(iter(part.values()))) * len(x) / self.rows
            found.append(self.model.log_prob(outputs_of(self.net, weights, x), y).sum(1))
        return torch.cat(found)

    def log_prior(self, theta: Tensor) -> Tensor:
        """``log p(θ)``, ``(S,)``, for θ ``(S, n)``."""
        values, jacobian = self.values(theta)
        return self.log_prior_of(values) + jacobian

    def log_likelihood(self, theta: Tensor, chosen: Tensor | None = None) -> Tensor:
        """``log p(y | θ)``, ``(S,)``, for θ ``(S, n)``; see :meth:`log_likelihood_of`."""
        return self.log_likelihood_of(self.values(theta)[0], chosen)

    def __call__(self, theta: Tensor) -> Tensor:
        """``log p(y, θ)``, ``(S,)``, for θ ``(S, n)``."""
        return self.log_likelihood(theta) + self.log_prior(theta)

    def gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """``log p(y, θ)`` ``(S,)`` and its gradient ``(S, n)``."""
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            total = self.log_prior(theta)
            (slope,) = torch.autograd.grad(total.sum(), theta)
            total = total.detach()
            for x, y in self.parts():  # what one part has computed goes before the next is read
                value = self.of_rows(theta, x, y)
                slope = slope + torch.autograd.grad(value.sum(), theta)[0]
                total = total + value.detach()
        return total, slope

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs ``(B, outputs)`` of the network with θ ``(n,)``."""
        weights = self.weights(theta[None])
        one = {name: value[0] for name, value in weights.items()}
        found: Tensor = functional_call(self.net, one, (x,))
        return found

    def weights(self, theta: Tensor) -> dict[str, Tensor]:
        """Weights ``(S, *)`` by their names in the plain network, for θ ``(S, n)``."""
        return self._weights(self.values(theta)[0])

    def _held(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        draws = len(next(iter(values.values()))) if values else 1
        held = {s: v.expand(draws, *v.shape[1:]) for s, v in self.structure.items()}
        return {**held, **values}

    def _weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = weights_of(self.model, self._held(values))
        return {n: v.double() if v.is_floating_point() else v for n, v in found.items()}

    # -- normal priors -----------------------------------------------------------------------------

    def normal_prior(self) -> tuple[Tensor, Tensor] | None:
        """Mean and standard deviation of θ, each ``(n,)``, where the prior of every site is normal;
        else ``None``."""
        means: list[Tensor] = []
        scales: list[Tensor] = []
        for site, prior in self.priors.items():
            one: Any = base(prior)
            if type(one).__name__ != "Normal":
                return None
            for kept, value in ((means, one.loc), (scales, one.scale)):
                shape = self.shapes[site]
                kept.append(value.detach().double().expand(1, *shape).reshape(-1))
        return torch.cat(means), torch.cat(scales)

    def update_priors(self, theta: Tensor, variance: Tensor) -> dict[str, float]:
        """MacKay's update of what priors learn, at a normal with this mean and these variances,
        ``(n,)`` each; the standard deviation of the prior of the weights by layer, where there is
        one. The model of the fit is not changed."""
        found = {}
        parts = (part.split(self.sizes) for part in (theta, variance.sqrt()))
        moments = dict(zip(self.shapes, zip(*parts, strict=True), strict=True))
        for name, layer in self.model.layers.items():
            sites = {k: s for s, (owner, k) in self.model.sites.items() if owner is layer}
            if layer.prior.updated({key: moments[site] for key, site in sites.items()}):
                prior: Any = base(layer.latents()["weight"].prior)
                found[name] = float(prior.scale.flatten()[0])
        self.priors = self._priors()
        return found


def _in_double(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.double() if x.is_floating_point() else x, y


@contextmanager
def joint(
    fit: Fit, by: str, structure: Mapping[str, Tensor] | None = None, *, summed: bool = False
) -> Iterator[Joint]:
    """The :class:`Joint` of a fit, with its pair in evaluation mode and Pyro's validation off."""
    model, guide = require(fit, BayesianNetwork, f'inference.evidence(by="{by}")')
    missing = [site for site in model.structure if structure is None or site not in structure]
    if missing and not summed:
        raise PyroccamError(f"random structure (site {missing[0]!r})", "weights alone to be random")
    with evaluating(model), evaluating(guide), pyro.validation_enabled(False):
        yield Joint(model, guide, fit.data, structure)


def refuse_improper(model: Model, given: bool = False) -> None:
    if (site := improper_site(model, given)) is not None:
        layer, name = model.sites[site]
        prior = base(layer.latents()[name].prior)
        raise PyroccamError(
            f"the prior of site {site!r}, {type(prior).__name__}, has no fixed finite integral",
            "a proper prior",
        )


def improper_site(model: Model, given: bool = False) -> str | None:
    """The first site whose prior has no finite integral, or none that is fixed. If ``given``, a
    prior whose numbers depend on the posterior is not one: a bound, or a message, can take them as
    given."""
    for site, (layer, name) in model.sites.items():
        prior = layer.latents()[name].prior
        if is_improper(prior) and not (given and numbers_of(prior)):
            return site
    return None


def numbers_of(prior: Any) -> int:
    return int(getattr(prior, "numbers", 0))
