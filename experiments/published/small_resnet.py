"""A network that is not among the ready ones, as a person would bring it:

NETWORK=experiments.published.small_resnet:small_resnet
pyroccam fit gnj --network $NETWORK --data experiments.sets:cifar10_part
"""

from __future__ import annotations

from typing import Any

import torch
from pyroccam.models.networks.ready import take_apart
from pyroccam.models.networks.stack import DepthStack
from torch import nn

__all__ = ["small_resnet", "small_resnet_stack"]

WIDTH = 64  # of torchvision's first stage


def small_resnet(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    blocks: int = 1,
    pool: bool = True,
    width: int = WIDTH,
) -> nn.Module:
    """torchvision's ResNet with three stages, each of twice the channels of the one before.

    Arguments:
        input_shape: ``(C, H, W)``.
        outputs: classes.
        blocks: in each stage.
        pool: keep its 7 x 7 stem with pooling, which leaves an eighth of 32 x 32 pixels.
        width: channels of the first stage.
    """
    from torchvision.models.resnet import BasicBlock, ResNet

    net: Any = ResNet(BasicBlock, [blocks] * 4, num_classes=outputs)
    net.layer4 = nn.Identity()

    def stem() -> nn.Conv2d:
        size = (7, 2, 3) if pool else (3, 1, 1)
        return nn.Conv2d(input_shape[0], width, *size, bias=False)

    if width == WIDTH:
        net.fc = nn.Linear(4 * width, outputs)
        if not pool or input_shape[0] != 3:
            net.conv1 = stem()
    else:  # these begin as torch's layers do, those of the ResNet as He's
        net.conv1, net.bn1, net.inplanes = stem(), nn.BatchNorm2d(width), width
        for number, stride in enumerate((1, 2, 2)):
            stage = net._make_layer(BasicBlock, width * 2**number, blocks, stride=stride)
            setattr(net, f"layer{number + 1}", stage)
        net.fc = nn.Linear(4 * width, outputs)
    if not pool:
        net.maxpool = nn.Identity()
    module: nn.Module = net
    return module


def small_resnet_stack(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    blocks: int = 1,
    pool: bool = True,
    width: int = WIDTH,
) -> DepthStack:
    """:func:`small_resnet` taken apart, which can stop after any of its residual blocks.

    Arguments:
        input_shape, outputs, blocks, pool, width: as for it.
    """
    net = small_resnet(input_shape, outputs, blocks=blocks, pool=pool, width=width)
    return take_apart(net, torch.zeros(2, *input_shape))
