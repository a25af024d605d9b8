"""A layer whose weights are sites of a Pyro model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from ...data import PyroccamError, checked
from ..priors import Latent, Scaling, Share, WeightPrior
from .affine import Affine, with_weights


class _Unseen:
    """What there is to see of random weights: of what type and shape they are, and where."""

    def __init__(self, layer: str, like: Tensor) -> None:
        self._why = (
            f"The weights of layer {layer!r} are random: nothing can look at them, the network has "
            "to call the layer. Or leave it out by layers=[...]."
        )
        self.dtype, self.device, self.shape, self.ndim = (
            like.dtype,
            like.device,
            like.shape,
            like.ndim,
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self.__dict__.get("_why", name))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AttributeError(
            next(a._why for a in tree_leaves((args, kwargs)) if isinstance(a, cls))
        )


class BayesianLayer(nn.Module):
    """A layer whose weights are sites of a Pyro model.

    Arguments:
        name: in the network; the sites are ``name.weight``, ``name.bias`` and those of the prior.
        layer: of a type in :data:`~pyroccam.models.layers.affine.AFFINE`, or one that computes as
            such a layer. It is not changed. Where the prior has no latent ``bias``, a bias stays a
            parameter.
        prior: of its weights.
        position: in the order in which the network uses its layers.
        random_bias: or leave the bias a parameter, whatever the prior says of it, as one is that is
            frozen, beside a weight that is none.

    Attributes:
        start: its weight and bias, with which a guide begins.
        weight_prior: of which the layer's prior was made.
        share: how its prior depends on the structure it is part of, in this pass.
    """

    @checked
    def __init__(
        self,
        name: str,
        layer: nn.Module,
        prior: WeightPrior,
        position: int = 0,
        random_bias: bool = True,
    ) -> None:
        super().__init__()
        self.name, self.position = name, position
        self.share: tuple[Scaling, Share] | None = None
        self.start_weight: Tensor
        self.affine = Affine(name, layer)
        made: Any = layer
        self.weight_prior = prior
        self.prior = prior.for_layer(self.affine.shape).to(made.weight)
        self.prior.begin_at(made.weight)
        # Not a submodule: a blank of the layer, without weights, to make plain layers of.
        self.blank = (copy.deepcopy(layer).to("meta"),)
        if frozen := not made.weight.requires_grad:
            self.blank[0].requires_grad_()
        self.register_buffer("start_weight", made.weight.detach().clone(), persistent=False)
        found = getattr(made, "bias", None)
        bias = None if found is None else found.detach().clone()
        self.register_buffer("start_bias", bias, persistent=False)
        self.bias: nn.Parameter | None = None
        self.bias_stays = found is not None and not (found.requires_grad or frozen)
        self.random_bias = random_bias and not self.bias_stays
        if bias is not None and "bias" not in self.latents():
            self.bias = nn.Parameter(bias.clone(), not self.bias_stays)

    @property
    def start(self) -> dict[str, Tensor]:
        return {
            name: value
            for name in ("weight", "bias")
            if (value := getattr(self, f"start_{name}")) is not None
        }

    def __getattr__(self, name: str) -> Any:
        """Attributes of the layer beside its weights, such as ``in_features``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            blank = self.__dict__.get("blank")
            if blank is None:
                raise
            if name == "weight":
                return _Unseen(self.name, self.start_weight)
            if name.startswith("_") or name not in vars(blank[0]):
                raise
            return vars(blank[0])[name]

    def latents(self) -> Mapping[str, Latent]:
        """Its random tensors, by their names below the layer's."""
        latents: Mapping[str, Latent] = self.prior()
        if self.random_bias:
            return latents
        return {name: latent for name, latent in latents.items() if name != "bias"}

    def site(self, latent: str) -> str:
        """The name of a latent in the model; a network that is this layer alone has no other."""
        return f"{self.name}.{latent}".removeprefix(".")

    def forward(self, x: Tensor | None = None) -> Any:
        """Outputs for ``x``; weight and bias themselves of a layer that hands them out."""
        latents = self.latents()
        if self.share is not None:
            scaling, share = self.share
            latents = scaling.latents(self.name, latents, share)
        values = {
            name: pyro.sample(self.site(name), latent.prior) for name, latent in latents.items()
        }
        out = affine(self, x, values, latents)
        if self.share is None:
            return out
        if isinstance(out, Tensor):
            return scaling.outputs(out, share)
        if share.rows.dim():
            found = f"layer {self.name!r} hands out its weights in an enumerated structure"
            raise PyroccamError(found, "a relaxed one, such as priors.GumbelSoftmax")
        return tuple(None if part is None else scaling.outputs(part, share) for part in out)

    def effective(
        self, values: Mapping[str, Tensor], latents: Mapping[str, Latent] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias that the layer computes with, from values of its latents."""
        weight, bias = values["weight"], values.get("bias", self.bias)
        for name, latent in (self.latents() if latents is None else latents).items():
            if name in ("weight", "bias"):
                continue
            factor = power(values[name], latent.power)
            weight = weight * self.affine.on_weight(factor)
            if bias is not None and self.covers_bias(factor.shape):
                bias = bias * factor
        return self.affine.held(weight, self.start_weight), bias

    def covers_bias(self, multiplier: torch.Size) -> bool:
        """True if a multiplier of this shape scales the bias too: where it scales whole outputs,
        and the bias is not frozen."""
        return self.affine.shape.output_groups and len(multiplier) < 2 and not self.bias_stays

    def plain(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """An ordinary layer with these weights."""
        return with_weights(self.blank[0], weight, bias)

    def extra_repr(self) -> str:
        return f"{self.name}: {type(self.blank[0]).__name__}, {tuple(self.affine.shape.weight)}"


def convolves(net: nn.Module) -> bool:
    """True if it has convolutions, Bayesian ones included."""
    return any(
        isinstance(part, _ConvNd)
        or (isinstance(part, BayesianLayer) and len(part.affine.shape.weight) > 2)
        for part in net.modules()
    )


def power(value: Tensor, exponent: float) -> Tensor:
    """``value ** exponent``; the square root of something positive, mostly."""
    if exponent == 1.0:
        return value
    return value.sqrt() if exponent == 0.5 else value**exponent


@effectful(type="affine")
def affine(
    layer: BayesianLayer, x: Any, values: dict[str, Tensor], latents: Mapping[str, Latent]
) -> Any:
    """The outputs of a layer for drawn weights; an effect that a handler may compute otherwise
    (:class:`~pyroccam.models.local_reparameterisation.LocalReparameterization`)."""
    return layer.affine(x, *layer.effective(values, latents))
