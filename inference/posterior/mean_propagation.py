"""Which weights may be replaced by their means: curvature beside the posterior's variance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vjp

from ...data import Between, Count, Fraction, PyroccamError, Seed, checked
from ...guides import NetworkGuide
from ...models import BayesianNetwork, evaluating, plain_kernels, seeded
from ...models.distributions import base
from .draws import draw_weights

if TYPE_CHECKING:
    from .posteriors import Posterior

At = Literal["means", "posterior"]


@dataclass(frozen=True)
class Curvature:
    """Curvature along the weights of one layer.

    Attributes:
        kappa: σ² times the second derivative, in nats for each observation, in the weight's shape.
        error: its standard error.
        rows: observations that it is the mean of.
    """

    kappa: Tensor
    error: Tensor
    rows: int


class Curvatures(dict[str, Curvature]):
    """The curvature along the weights of each layer."""

    @checked
    def to_sample(self, *, share: Fraction) -> dict[str, Tensor]:
        """The weights that have to be drawn, by layer, as ``only=`` of ``Posterior.outputs`` takes
        them; the others are set to their means.

        Arguments:
            share: of all weights, those of the greatest ``|κ|``, and whatever ties with the last of
                them: many are exactly zero behind units that a ReLU cuts off.
        """
        sizes = {layer: one.kappa.abs() for layer, one in self.items()}
        ordered = torch.cat([size.flatten() for size in sizes.values()]).sort().values
        first = len(ordered) - round(share * len(ordered))
        threshold = float(ordered[first]) if first < len(ordered) else math.inf
        return {layer: size >= threshold for layer, size in sizes.items()}


@checked
def curvature(
    posterior: Posterior,
    *,
    at: At = "means",
    probes: Annotated[int, Between(2)] = 64,
    rows: Count = 512,
    seed: Seed = 0,
) -> Curvatures:
    r"""The curvature test for mean propagation, for every random weight.

    .. math:: κ_{ij} = σ_{ij}^2 \, \frac{1}{N} \sum_n
        \frac{∂^2}{∂W_{ij}^2} \log p(y_n \mid x_n, W) \Big|_{W = M}

    Half of it is, to second order, what the log-likelihood of an observation changes if the weight
    is drawn and not set to its mean. With piecewise linear activations a unit whose inputs are all
    zero lies on a bend, where the second derivative that is computed is zero: ``at="posterior"``
    takes the mean of the derivative over draws of all weights instead, as
    :math:`σ^2 E[∂^2 f] = E[σ ε \, ∂f]` (Stein's lemma), which has no such gaps.

    Arguments:
        posterior: of random weights, with its data.
        at: where the derivative is taken.
        probes: random directions (or draws, ``at="posterior"``) of the estimate.
        rows: at most this many of the training rows, the first ones.
        seed: of the probes; the state of the generator is left as it was.

    Returns:
        by layer. Hutchinson's estimate ``v ⊙ H v`` of a diagonal, v = ±1 in one layer and zero in
        the others, is unbiased; its variance is the sum of the squared off-diagonal entries of the
        row.

    Raises:
        PyroccamError: over the posterior, for weights whose posterior is not normal.

    References:
        Neklyudov et al. 2018, arXiv:1803.03764 (version 1), for the test; Bekas, Kokiopoulou, Saad
        2007, An estimator for the diagonal of a matrix; Stein 1981, Estimation of the mean of a
        multivariate normal distribution.
    """
    model, guide, data = posterior.model, posterior.guide, posterior.data
    assert data is not None
    x, y = (part[:rows] for part in data.split("train"))
    net, layers = posterior.mean_network(), posterior.layers
    names = {layer: f"{layer}.weight" if layer else "weight" for layer in model.layers}
    means = {name: p.detach() for name, p in net.named_parameters()}

    def log_likelihood(weights: Mapping[str, Tensor]) -> Tensor:
        outputs = functional_call(net, dict(weights), (x,))
        found: Tensor = model.likelihood(outputs[None]).log_prob(y).mean()
        return found

    with evaluating(model), seeded(seed, x.device), plain_kernels():
        if at == "posterior":
            return _over_posterior(log_likelihood, model, guide, means, names, probes, len(x))
        found = Curvatures()
        for layer, name in names.items():
            diagonal, error = _diagonal(log_likelihood, means, name, probes)
            variance = layers[layer].variance
            found[layer] = Curvature(variance * diagonal, variance * error, len(x))
        return found


def _diagonal(
    f: Callable[[Mapping[str, Tensor]], Tensor],
    means: Mapping[str, Tensor],
    name: str,
    probes: int,
) -> tuple[Tensor, Tensor]:
    """Diagonal of the Hessian of f in one weight tensor, and the standard error of the estimate."""
    at = means[name]

    def own(w: Tensor) -> Tensor:
        return f({**means, name: w})

    back = vjp(grad(own), at)[1]  # the Hessian is symmetric

    def product(v: Tensor) -> Tensor:
        """``v ⊙ H v``"""
        found: Tensor = v * back(v)[0]
        return found

    drawn = (2.0 * torch.bernoulli(torch.full_like(at, 0.5)) - 1.0 for _ in range(probes))
    return _mean_and_error(product(v) for v in drawn)


def _over_posterior(
    f: Callable[[Mapping[str, Tensor]], Tensor],
    model: BayesianNetwork,
    guide: NetworkGuide,
    means: Mapping[str, Tensor],
    names: Mapping[str, str],
    draws: int,
    rows: int,
) -> Curvatures:
    """Curvature by Stein's lemma, for normal posteriors of the weights themselves."""
    for layer, part in model.layers.items():
        normal = isinstance(base(guide.posterior(part.site("weight"))), torch.distributions.Normal)
        if not normal or {*part.latents()} - {"weight", "bias"}:
            raise PyroccamError(
                f"at='posterior' where weights of layer {layer!r} are not normal or have scales",
                "at='means'",
            )
    found: dict[str, list[Tensor]] = {layer: [] for layer in names}
    for _ in range(draws):
        drawn = {name: value[0] for name, value in draw_weights(model, guide, 1).items()}
        slopes = grad(f)({**means, **drawn})
        for layer, name in names.items():
            found[layer].append((drawn[name] - means[name]) * slopes[name])
    return Curvatures(
        {layer: Curvature(*_mean_and_error(each), rows) for layer, each in found.items()}
    )


def _mean_and_error(values: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean of equally distributed tensors and its error, without keeping them (Welford's
    algorithm)."""
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for value in values:
        count += 1
        gap = value - mean
        mean = mean + gap / count
        squares = squares + gap * (value - mean)
    return mean, (squares / (count * (count - 1))).sqrt()
