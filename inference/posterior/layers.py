"""The moments of the weights of a Bayesian network, and the network of their means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ...models.layers import BayesianLayer


class Layer(NamedTuple):
    """Moments of the weights that a layer computes with, scales included.

    Attributes:
        mean, variance: of the weight, in its shape.
        bias: its mean, or ``None``.
        bias_variance: or ``None`` without a bias; zero where it is a parameter.
    """

    mean: Tensor
    variance: Tensor
    bias: Tensor | None
    bias_variance: Tensor | None


@torch.no_grad()
def layer_moments(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, Layer]:
    r"""Posterior means and variances of all weights, by layer.

    The factors of a weight ``w = w̃ Π v_k^{p_k}`` are independent, so ``E[w]`` and ``E[w²]`` are the
    products of theirs, and ``V[w] = E[w²] - E[w]²``.

    References:
        Louizos et al. 2017, arXiv:1705.08665, eq. 10-11, for one scale.
    """
    if (drawn := guide.samples) is not None:
        return {name: _of_draws(drawn_weights(one, drawn)) for name, one in model.layers.items()}
    return {name: _moments(layer, guide) for name, layer in model.layers.items()}


def drawn_weights(layer: BayesianLayer, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``weight`` and, of a layer that has one, ``bias`` that a layer computes with, ``(S, *)``,
    from values ``(S, *)`` of the sites."""
    latents = layer.latents()

    def effective(one: dict[str, Tensor]) -> dict[str, Tensor]:
        weight, bias = layer.effective(one, latents)
        return {"weight": weight} if bias is None else {"weight": weight, "bias": bias}

    own = {name: values[layer.site(name)] for name in latents}
    drawn: dict[str, Tensor] = vmap(effective)(own)
    return drawn


def _of_draws(drawn: Mapping[str, Tensor]) -> Layer:
    """Moments of weights and biases by draws of them, whose sites depend on each other."""
    found = {name: torch.var_mean(values, 0, correction=0) for name, values in drawn.items()}
    (variance, mean), (bias_variance, bias) = found["weight"], found.get("bias", (None, None))
    return Layer(mean, variance, bias, bias_variance)


def _moments(layer: BayesianLayer, guide: NetworkGuide) -> Layer:
    found = {
        name: guide.factor_of(layer.site(name)).moments(latent.power)
        for name, latent in layer.latents().items()
    }
    first, second = found.pop("weight")
    bias, bias_second = found.pop("bias", (layer.bias, None))
    if bias is not None and bias_second is None:
        bias_second = bias.square()
    for mean, square in found.values():
        first = first * layer.affine.on_weight(mean)
        second = second * layer.affine.on_weight(square)
        if bias is not None and bias_second is not None and layer.covers_bias(mean.shape):
            bias, bias_second = bias * mean, bias_second * square
    # Rounding may leave a tiny negative number.
    variance = layer.affine.held((second - first.square()).clamp_min(0.0), 0.0)
    first = layer.affine.held(first, layer.start_weight).detach()  # it may be the parameter itself
    if bias is None or bias_second is None:
        return Layer(first, variance, None, None)
    return Layer(first, variance, bias.detach(), (bias_second - bias.square()).clamp_min(0.0))


@torch.no_grad()
def mean_network(
    model: BayesianNetwork, guide: NetworkGuide, layers: Mapping[str, Layer] | None = None
) -> nn.Module:
    """The plain network with the posterior means as weights, in evaluation mode.

    Of random structure it has the most probable: its graphs are at a vertex.

    Arguments:
        layers: the moments, where they are known.
    """
    layers = layer_moments(model, guide) if layers is None else layers
    weights = {name: (m.mean, m.bias) for name, m in layers.items()}
    gammas = {prior.edge: guide.edge(site).vertex() for site, prior in model.structure.items()}
    return model.plain(weights, gammas)
