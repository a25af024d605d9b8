"""Whole numbers of a learnt step, with learnt probabilities: weights that are cheap to send."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ...data import Count, Positive
from ..distributions import BlurredLogistics
from .base import Latent, LayerPrior, LayerShape, WeightPrior


@dataclass(frozen=True)
class Integers(WeightPrior):
    r"""The weights of a layer are a step times whole numbers, and the step is learnt.

    .. math:: w_i = step \, k_i, \qquad P(k) = \sum_c π_c [F((k + ½) / s_c) - F((k - ½) / s_c)]

    with the logistic distribution function F, and π and s learnt by each layer. What a posterior
    pays, :math:`-\log P(k)`, is the length of an ideal code for the whole numbers. Made for
    ``guides.WholeSteps``, which has the weights rounded; to other guides it is a prior of real
    numbers, P at k and between, of which no KL to a normal is known (``MeanField(local=False)``).

    Biases are whole multiples of the step where a layer's groups are its outputs (convolutions), of
    ``bias_step`` elsewhere, and have probabilities of their own.

    Arguments:
        step: at the start, over 1/√fan_in of the layer.
        bias_step: of the biases of linear layers, which is not learnt; a power of two, for half
            precision to hold them exactly.
        components: C, with scales from 1/4 to 2 at the start.

    References:
        Oktay, Ballé, Singh, Shrivastava 2020, arXiv:1906.06624.

    Example:
        >>> from pyroccam.models import priors
        >>> priors.Integers().for_layer(
        ...     priors.LayerShape("fc", torch.Size([3, 4]), None, 1, False, 4)
        ... )()["step"].prior.event_shape
        torch.Size([])
    """

    words = "integers, integers:0.5"

    step: Positive = 0.5
    bias_step: Positive = 2.0**-5
    components: Count = 2

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        return _IntegersLayer(layer, self)


class _Masses(nn.Module):
    """Probabilities of whole numbers, learnt."""

    def __init__(self, components: int) -> None:
        super().__init__()
        scales = torch.logspace(-2, 1, components, base=2) if components > 1 else torch.ones(1)
        self.log_scale = nn.Parameter(scales.log())
        self.logits = nn.Parameter(torch.zeros(components))

    def forward(self, shape: torch.Size, width: Tensor) -> Latent:
        mixing = torch.log_softmax(self.logits, 0)
        fn = BlurredLogistics(mixing, self.log_scale, width, shape)
        return Latent(fn.to_event(len(shape)))


class _IntegersLayer(LayerPrior):
    bias_width: Tensor
    log_step: Tensor

    def __init__(self, layer: LayerShape, prior: Integers) -> None:
        width = 1.0 if layer.output_groups else prior.bias_step
        step = prior.step * layer.fan_in**-0.5
        super().__init__(layer, log_step=math.log(step), bias_width=width)
        self.start = math.log(step)
        self.weight_masses = _Masses(prior.components)
        self.bias_masses = None if layer.bias is None else _Masses(prior.components)

    def latents(self) -> Mapping[str, Latent]:
        step = dist.LogNormal(self.log_step, self.one, validate_args=False)
        found = {
            "step": Latent(step, start=(self.start, 0.1)),
            "weight": self.weight_masses(self.layer.weight, self.one),
        }
        if self.layer.bias is not None and self.bias_masses is not None:
            found["bias"] = self.bias_masses(self.layer.bias, self.bias_width)
        return found
