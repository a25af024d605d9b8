"""Layers of every kind as one operation of input, weight and bias."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ...data import PyroccamError
from ..plain import LAYERS, layer_kind, output_dim
from ..priors import LayerShape
from ..unpacked import Matrix

_CONV: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
    nn.ConvTranspose1d: F.conv_transpose1d,
    nn.ConvTranspose2d: F.conv_transpose2d,
    nn.ConvTranspose3d: F.conv_transpose3d,
}

AFFINE: tuple[type[nn.Module], ...] = LAYERS
"""Layers whose weights can be random, and subclasses that compute the same."""
KNOWN = ", ".join(kind.__name__ for kind in AFFINE if kind is not Matrix)
"""The types of torch among them, in words."""


def affine_kind(layer: nn.Module) -> type[nn.Module] | None:
    """The type of :data:`AFFINE` that a layer computes as, from its weight and bias alone; ``None``
    if there is none."""
    kind = layer_kind(layer)
    return kind if type(layer) is kind or layer.state_dict().keys() <= {"weight", "bias"} else None


class Affine:
    """The function of a layer: affine in its weight and bias, for any values of them.

    Attributes:
        shape: what a prior needs to know.
        feature_dim: of the channels, in inputs and outputs.
        output_dim: of the weight, along which its outputs run.
        drawn: its weights are used at several places for one row, so that they have to be drawn:
            noise of its own at each place would belong to other weights there.
        padding: row of an embedding that is no weight, but stays as it is.
    """

    def __init__(self, name: str, layer: Any) -> None:
        kind = affine_kind(layer)
        if kind is None:
            found = f"layer {name!r} is a {type(layer).__name__}"
            raise PyroccamError(found, f"one of {KNOWN}", "leave it out of layers=")
        weight, bias = layer._parameters.get("weight"), getattr(layer, "bias", None)
        if weight is None:
            found = f"layer {name!r} computes its weight by a hook (normalisation, pruning)"
            raise PyroccamError(found, "a weight that is a parameter", "leave it out of layers=")
        self.drawn = isinstance(layer, nn.Embedding | Matrix)
        self.padding: int | None = getattr(layer, "padding_idx", None)
        self._function: Callable[..., Any] = F.linear
        self._options: dict[str, Any] = {}
        self._pad: tuple[list[int], str] | None = None
        self._own: tuple[nn.Module, ...] = ()  # of another class, which may make a border
        group_dim: int | None = 1
        self.output_dim = output_dim(layer)
        self.feature_dim = -1  # of channels, in inputs and outputs
        if isinstance(layer, _ConvNd):
            transposed = isinstance(layer, _ConvTransposeNd)
            spatial = weight.dim() - 2
            self.feature_dim = -1 - spatial
            if type(layer) is not kind:
                self._own = (copy.deepcopy(layer).to("meta").eval(),)
            self._function = _CONV[kind]
            self._options = {
                "stride": layer.stride,
                "padding": layer.padding,
                "dilation": layer.dilation,
                "groups": layer.groups,
            }
            group_dim = 0
            if transposed:
                self._options["output_padding"] = layer.output_padding
                # A group of several is spread over the blocks of a grouped convolution.
                group_dim = 1 if layer.groups == 1 else None
            elif layer.padding_mode != "zeros":
                self._pad = list(layer._reversed_padding_repeated_twice), layer.padding_mode
                self._options["padding"] = 0
        if isinstance(layer, Matrix):
            self._function = _handed_out
        if isinstance(layer, nn.Embedding):
            if layer.max_norm is not None:
                found = f"layer {name!r} has max_norm={layer.max_norm}"
                raise PyroccamError(found, "none for random weights", "leave it out of layers=")
            self._function = _looked_up
            self._options = {"scale_grad_by_freq": layer.scale_grad_by_freq}
        fan_in = math.prod(weight.shape[1:])
        if isinstance(layer, _ConvTransposeNd):
            fan_in = weight.shape[0] // layer.groups * math.prod(weight.shape[2:])
        elif isinstance(layer, nn.Embedding):
            fan_in = 1
        self.shape = LayerShape(
            name,
            weight.shape,
            None if bias is None else bias.shape,
            group_dim,
            output_groups=isinstance(layer, _ConvNd | nn.Embedding),
            fan_in=fan_in,
        )

    def __call__(self, x: Any, weight: Tensor, bias: Tensor | None) -> Any:
        """Outputs of the layer with this weight and bias."""
        if self._own:
            given = {"weight": weight}
            if self.shape.bias is not None:
                given["bias"] = weight.new_zeros(self.shape.bias) if bias is None else bias
            return torch.func.functional_call(self._own[0], given, (x,))
        if self._pad is not None:
            x = F.pad(x, self._pad[0], mode=self._pad[1])
        return self._function(x, weight, bias, **self._options)

    def on_weight(self, multiplier: Tensor) -> Tensor:
        """A multiplier of the weights, ``()``, ``(groups,)``, one for so many groups beside each
        other, or of the weight's shape, so that it broadcasts against them."""
        if multiplier.shape == self.shape.weight or multiplier.dim() == 0:
            return multiplier
        if len(multiplier) < self.shape.groups:
            multiplier = multiplier.repeat_interleave(self.shape.groups // len(multiplier))
        shape = [1] * len(self.shape.weight)
        assert self.shape.group_dim is not None
        shape[self.shape.group_dim] = -1
        return multiplier.reshape(shape)

    def held(self, weight: Tensor, number: Tensor | float) -> Tensor:
        """A weight, or what is known of it, with a number in the row of the padding."""
        if self.padding is None:
            return weight
        rows = torch.arange(len(weight), device=weight.device) == self.padding
        return torch.where(rows[:, None], number, weight)

    def on_features(self, multiplier: Tensor, features: Tensor) -> Tensor:
        """A multiplier ``(B or 1, groups or 1)`` so that it broadcasts against what it scales: the
        inputs ``(B, *, in)`` of a linear layer, the outputs ``(B, out, *spatial)`` of a
        convolution."""
        shape = [1] * features.dim()
        shape[0], shape[self.feature_dim] = multiplier.shape
        return multiplier.reshape(shape)


def _handed_out(x: None, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight, bias


def _looked_up(x: Tensor, weight: Tensor, bias: None, **options: Any) -> Tensor:
    return F.embedding(x, weight, **options)


def with_weights(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A copy of a layer (which may be on the meta device) with this weight and bias."""
    made: Any = copy.deepcopy(layer).to_empty(device=weight.device)
    made.weight = nn.Parameter(weight.detach().clone())
    if getattr(made, "bias", None) is not None:
        assert bias is not None
        made.bias = nn.Parameter(bias.detach().clone(), made.bias.requires_grad)
    return made
