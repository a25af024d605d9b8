"""A network that is not among the ready ones, as a person would bring it:

NETWORK=experiments.published.small_resnet:small_resnet
pyroccam fit gnj --network $NETWORK --data experiments.sets:cifar10_part
"""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["small_resnet"]


def small_resnet(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """torchvision's ResNet with three stages of one block, each of twice the channels of the one
    before.

    Arguments:
        input_shape: ``(C, H, W)``.
        outputs: classes.
    """
    from torchvision.models.resnet import BasicBlock, ResNet

    net: Any = ResNet(BasicBlock, [1] * 4, num_classes=outputs)
    net.layer4 = nn.Identity()
    net.fc = nn.Linear(256, outputs)
    if input_shape[0] != 3:
        net.conv1 = nn.Conv2d(input_shape[0], 64, 7, 2, 3, bias=False)
    module: nn.Module = net
    return module
