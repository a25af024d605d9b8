"""Ready networks, as stacks that can stop at any depth."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data import Count, PyroccamError, Whole, checked, shown
from .. import asking
from .plain import torchvision_resnet
from .stack import DepthStack, match_adapters


class Residual(nn.Module):
    """``a + f(a)``."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.f = nn.Sequential(*parts)

    def forward(self, a: Tensor) -> Tensor:
        return a + self.f(a)


class GlobalMeanPool(nn.Module):
    """``(B, C, H, W) -> (B, C)``."""

    def forward(self, a: Tensor) -> Tensor:
        return a.mean(dim=(-2, -1))


@asking
@checked
def residual_mlp(
    input_shape: Sequence[Count], outputs: Count, *, width: Count = 20, max_depth: Whole = 20
) -> DepthStack:
    """The residual perceptron of the spirals: block ``a + BN(ReLU(Linear(a)))``.

    Arguments:
        input_shape: shape of one input; it is flattened.
        width: units in every layer.
        max_depth: D, the number of blocks.

    References:
        Antoran et al. 2020, arXiv:2002.02797 (normalisation after the ReLU, as they released it).
    """
    features = math.prod(input_shape)
    stem = nn.Sequential(nn.Flatten(), nn.Linear(features, width))
    blocks = [
        Residual(nn.Linear(width, width), nn.ReLU(), nn.BatchNorm1d(width))
        for _ in range(max_depth)
    ]
    description = _described("mlp", input_shape, outputs, width=width, max_depth=max_depth)
    return DepthStack(stem, blocks, nn.Linear(width, outputs), description=description)


@asking
@checked
def residual_conv(
    input_shape: Sequence[Count],
    outputs: Count,
    *,
    width: Count = 64,
    inner: Count = 32,
    max_depth: Whole = 50,
    pool: Count = 2,
) -> DepthStack:
    """The convolutional net of the images: pre-activation bottlenecks at one resolution.

    Stem: 5x5 convolution and average pooling by ``pool``. Block: BN-ReLU-1x1, BN-ReLU-3x3,
    BN-ReLU-1x1 around a skip. Exit: global mean, residual perceptron with batch normalisation
    (statistics for each depth), linear layer.

    Arguments:
        input_shape: ``(C, H, W)``.
        width: channels outside a bottleneck (the authors' 64).
        inner: channels inside (the authors' 32).
        max_depth: D (the authors' 50).
        pool: side of the stem's average pooling (the authors' 2; larger is cheaper).

    Raises:
        PyroccamError: if the input is not ``(C, H, W)`` or too small for stem and pooling.

    References:
        Antoran et al. 2020, arXiv:2002.02797.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4 + pool:
        expected = f"images (C, H, W) of at least {4 + pool} pixels a side, for pool={pool}"
        raise PyroccamError(f"inputs {tuple(input_shape)}", expected, "residual_mlp")
    stem = nn.Sequential(nn.Conv2d(input_shape[0], width, 5), nn.AvgPool2d(pool))

    def stage(channels: int, conv: nn.Module) -> list[nn.Module]:
        return [nn.BatchNorm2d(channels), nn.ReLU(), conv]

    blocks = [
        Residual(
            *stage(width, nn.Conv2d(width, inner, 1)),
            *stage(inner, nn.Conv2d(inner, inner, 3, padding=1)),
            *stage(inner, nn.Conv2d(inner, width, 1)),
        )
        for _ in range(max_depth)
    ]
    head = nn.Sequential(
        Residual(nn.Linear(width, width), nn.ReLU(), nn.BatchNorm1d(width)),
        nn.Linear(width, outputs),
    )
    own = {"width": width, "inner": inner, "max_depth": max_depth, "pool": pool}
    description = _described("conv", input_shape, outputs, **own)
    return DepthStack(stem, blocks, head, adapters=GlobalMeanPool(), description=description)


@checked
def take_apart(net: nn.Module, example: Tensor) -> DepthStack:
    """A torchvision ResNet (or one of its shape) as a stack: its residual blocks are the depths.

    Stem: everything before ``layer1``. Head: ``avgpool``, flatten, ``fc``. Earlier stages reach the
    head through 1x1 convolutions (:func:`~pyroccam.models.networks.stack.match_adapters`). The
    modules are used as they are, so pretrained weights stay.

    Arguments:
        net: a ``torchvision.models.ResNet``.
        example: inputs ``(B, C, H, W)`` of the size the network will see.

    Raises:
        PyroccamError: if ``net`` has not the parts of a torchvision ResNet.
    """
    parts = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer4", "avgpool", "fc")
    missing = [name for name in parts if not hasattr(net, name)]
    if missing:
        found = f"{type(net).__name__} has no {', '.join(missing)}"
        raise PyroccamError(found, "a torchvision ResNet", "DepthStack(stem, blocks, head)")
    modules = dict(net.named_children())
    stem = nn.Sequential(modules["conv1"], modules["bn1"], modules["relu"], modules["maxpool"])
    blocks = [
        b for name in ("layer1", "layer2", "layer3", "layer4") for b in modules[name].children()
    ]
    head = nn.Sequential(modules["avgpool"], nn.Flatten(), modules["fc"])
    stack = DepthStack(stem, blocks, head, adapters=match_adapters(stem, blocks, example))
    stack.training = net.training
    return stack


@asking
@checked
def resnet(
    input_shape: Sequence[Count],
    outputs: Count,
    *,
    variant: str = "resnet18",
    small: bool = True,
    max_depth: Whole | None = None,
) -> DepthStack:
    """A torchvision ResNet, not pretrained, taken apart into stem, blocks and head.

    Arguments:
        input_shape: ``(C, H, W)``.
        variant: ``resnet18``, ``resnet34``, ``resnet50``, ...
        small: 3x3 stem without pooling, the usual change for images of 28 to 64 pixels.
        max_depth: keep only the first blocks (all by default).
    """
    net = torchvision_resnet(tuple(input_shape), outputs, variant=variant, small=small)
    stack = take_apart(net, torch.zeros(2, *input_shape))
    own = {"variant": variant, "small": small, "max_depth": stack.max_depth}
    stack.description = _described("resnet", input_shape, outputs, **own)
    return stack if max_depth is None else stack.truncated(min(max_depth, stack.max_depth))


NETWORKS: dict[str, Callable[..., DepthStack]] = {
    "mlp": residual_mlp,
    "conv": residual_conv,
    "resnet": resnet,
}
"""By the names that the command line has for them."""


def build(description: dict[str, Any]) -> DepthStack:
    """Build a ready network from its description (the inverse of ``stack.description``).

    Raises:
        PyroccamError: for another network than :data:`NETWORKS`, or arguments that it does not
            have.
        TooLarge: if it is larger than a file may ask for (:mod:`pyroccam.data.limits`).
    """
    arguments = dict(description)
    name = arguments.pop("network", None)
    if not isinstance(name, str) or name not in NETWORKS:
        raise PyroccamError(f"Unknown network {shown(name)}; known: {', '.join(NETWORKS)}.")
    try:
        inspect.signature(NETWORKS[name]).bind(**arguments)
    except TypeError as error:
        raise PyroccamError(f"The network {name}: {error}") from None
    return NETWORKS[name](**arguments)


def _described(
    network: str, input_shape: Sequence[int], outputs: int, **own: object
) -> dict[str, object]:
    return {"network": network, **own, "input_shape": list(input_shape), "outputs": outputs}
