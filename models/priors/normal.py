"""Normal priors, fixed or with parameters that each layer learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...data import Finite, Positive, PyroccamError
from .base import Latent, LayerPrior, LayerShape, WeightPrior


@dataclass(frozen=True)
class Normal(WeightPrior):
    """``N(loc, scale²)`` for every weight and bias.

    Arguments:
        scale: standard deviation; ``"fan_in"`` for 1/√fan_in of each layer.
        loc: mean of the weights, 0 where each has a scale; biases have mean 0 in a fixed prior.
        learn: ``"layer"`` for one loc and one scale per layer, shared by its weights and biases,
            that begin at the values given and are learnt with the guide (empirical Bayes); they
            tend to what :class:`~pyroccam.models.priors.SharedNormal` always has. ``"scale"`` for
            the scale alone, with a loc that stays. ``"weight"`` for one of each weight and bias,
            :math:`N(0, A^{-1})` with a diagonal A that is a parameter (learnt at the outer level of
            :func:`~pyroccam.inference.select`; where both levels are one,
            :class:`~pyroccam.models.priors.ARD` has the optimum in closed form). ``None`` for a
            fixed prior.

    References:
        Graves 2011, Practical variational inference for neural networks, shares a learnt prior;
        its published optimum leaves out the posterior variances.

    Example:
        >>> from pyroccam.models import priors
        >>> priors.Normal(scale=0.1)
        Normal(scale=0.1, loc=0.0, learn=None)
    """

    words = "normal:0.1, normal:fan_in, normal:learn, normal:learn-scale, normal:learn-each"

    scale: Positive | Literal["fan_in"] = 1.0
    loc: Finite = 0.0
    learn: Literal["layer", "scale", "weight"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learn == "weight" and self.loc != 0.0:
            raise PyroccamError(f"Normal(learn='weight') has means of 0, got loc={self.loc}.")

    @classmethod
    def from_words(cls, argument: str) -> WeightPrior:
        match argument:
            case "fan-in":
                return cls("fan_in")
            case "learn":
                return cls(learn="layer")
            case "learn-scale":
                return cls(learn="scale")
            case "learn-each":
                return cls(learn="weight")
        return super().from_words(argument)

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        scale = layer.fan_in**-0.5 if isinstance(self.scale, str) else self.scale
        if self.learn == "weight":
            return _DiagonalNormalLayer(layer, scale)
        if self.learn is not None:
            return _LearntNormalLayer(layer, self.loc, scale, self.learn == "layer")
        return _NormalLayer(layer, loc=self.loc, scale=scale)


class _NormalLayer(LayerPrior):
    loc: Tensor
    scale: Tensor

    def latents(self) -> Mapping[str, Latent]:
        return self.normals((self.loc, self.scale), (self.zero, self.scale))


class _LearntNormalLayer(LayerPrior):
    def __init__(self, layer: LayerShape, loc: float, scale: float, moves: bool) -> None:
        super().__init__(layer, **({} if moves else {"loc": loc}))
        if moves:
            self.loc = nn.Parameter(torch.tensor(float(loc)))
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def latents(self) -> Mapping[str, Latent]:
        own = self.loc, self.log_scale.exp()
        return self.normals(own, own)

    @torch.no_grad()
    def updated(self, normals: Mapping[str, tuple[Tensor, Tensor]]) -> bool:
        """``s² <- Σ (μ_i - m)² / γ``, with ``γ = Σ (1 - σ_i² / s²)`` weights that the data tell,
        and m the mean of μ if it is learnt.

        References:
            MacKay 1992, A practical Bayesian framework for backpropagation networks, for m = 0.
        """
        loc, scale = (
            torch.cat([p.flatten() for p in parts]) for parts in zip(*normals.values(), strict=True)
        )
        if isinstance(self.loc, nn.Parameter):
            self.loc.fill_(loc.mean())
        told = (1.0 - (scale / self.log_scale.exp()).square()).sum()
        apart = (loc - self.loc).square().sum()
        # Where the data tell nothing, or no weight is anything, the ratio is no variance.
        if told > 0 and apart > 0:
            self.log_scale.fill_(0.5 * (apart / told).log())
        return True


class _DiagonalNormalLayer(LayerPrior):
    def __init__(self, layer: LayerShape, scale: float) -> None:
        super().__init__(layer)
        self.log_scale = nn.Parameter(torch.full(layer.weight, math.log(scale)))
        self.log_scale_bias: nn.Parameter | None = None
        if layer.bias is not None:
            self.log_scale_bias = nn.Parameter(torch.full(layer.bias, math.log(scale)))

    def latents(self) -> Mapping[str, Latent]:
        of_bias = self.one if self.log_scale_bias is None else self.log_scale_bias.exp()
        return self.normals((self.zero, self.log_scale.exp()), (self.zero, of_bias))
