"""Which groups or weights of a plain network are kept, and the network with the others at zero."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...data import PyroccamError, checked
from ...models.plain import as_layers, layer_kind, output_dim


@dataclass(frozen=True)
class Mask:
    """The groups, or single weights, of a layer that are kept, ``True``; ``None`` keeps all.

    Arguments:
        inputs: ``(in_features,)`` or ``(in_channels,)``, bool. The weights of the others are zero.
        outputs: ``(out_features,)`` or ``(out_channels,)``, bool. The weights *and the bias* of the
            others are zero.
        weights: of the shape of the layer's weight, bool, for methods that drop them one by one.
            Units that die of it can be cut, as those that are dropped.
    """

    inputs: Tensor | None = None
    outputs: Tensor | None = None
    weights: Tensor | None = None


@checked
@torch.no_grad()
def masked(net: nn.Module, masks: Mapping[str, Mask]) -> nn.Module:
    """A copy of ``net`` where each group and weight that is not kept is zero, of the old shapes.

    Arguments:
        net: any network with linear and convolutional layers.
        masks: by the names of the layers, as in ``net.named_modules()``.

    Raises:
        PyroccamError: for a name or a shape that does not fit, or a layer whose weight is computed.
    """
    try:
        copied = as_layers(copy.deepcopy(net))
    except RuntimeError as error:
        raise PyroccamError(f"{type(net).__name__} holds computed tensors", "parameters") from error
    named = copied.named_modules(remove_duplicate=False)
    layers: dict[str, Any] = {n: m for n, m in named if layer_kind(m) is not None}
    for name, mask in masks.items():
        if name not in layers:
            raise PyroccamError(f"A mask of {name!r}", f"one of {', '.join(layers) or 'no layers'}")
        layer = layers[name]
        for kept, dim in ((mask.inputs, 1 - output_dim(layer)), (mask.outputs, output_dim(layer))):
            if kept is not None:
                size = layer.weight.shape[dim] * (getattr(layer, "groups", 1) if dim else 1)
                _check(name, kept, (size,))
        keep_groups(layer, mask.inputs, mask.outputs)
        if mask.weights is not None:
            _check(name, mask.weights, layer.weight.shape)
            layer.weight[~mask.weights.to(layer.weight.device)] = 0
    return copied


def keep_groups(layer: Any, inputs: Tensor | None, outputs: Tensor | None) -> None:
    """Set the other groups of a layer to zero, in place; arguments are those of a :class:`Mask`."""
    for kept, dim in ((inputs, 1 - output_dim(layer)), (outputs, output_dim(layer))):
        if kept is not None:
            layer.weight.masked_fill_(~_on_weight(layer, kept, dim), 0)
    if outputs is not None and getattr(layer, "bias", None) is not None:
        layer.bias[~outputs.to(layer.bias.device)] = 0


def _on_weight(layer: Any, kept: Tensor, dim: int) -> Tensor:
    """``kept``, which runs along ``dim`` of the weight (0 or 1), so that it broadcasts against it.

    With groups the weight is short along dim 1, and every block along dim 0 has its own part.
    """
    weight = layer.weight
    kept = kept.to(weight.device).view(-1, 1)
    if dim == 1:
        groups = getattr(layer, "groups", 1)
        kept = kept.view(groups, -1).repeat_interleave(len(weight) // groups, 0)
    return kept.view(*kept.shape, *[1] * (weight.ndim - 2))


def _check(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool or mask.shape != shape:
        found = f"{tuple(mask.shape)} of {mask.dtype}"
        raise PyroccamError(f"The mask of {name!r} is {found}", f"{tuple(shape)} of bools")
