"""A network that is not among the ready ones, as a person would bring it:

pyroccam fit gnj --network pyroccam.experiments.reproduce.small_resnet:small_resnet --data cifar10
"""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["small_resnet"]


def small_resnet(
    input_shape: tuple[int, ...], outputs: int, *, blocks: int = 1, pool: bool = True
) -> nn.Module:
    """torchvision's ResNet with three stages of 64, 128 and 256 channels.

    Arguments:
        input_shape: ``(C, H, W)``.
        outputs: classes.
        blocks: in each stage.
        pool: keep its 7 x 7 stem with pooling, which leaves an eighth of 32 x 32 pixels.
    """
    from torchvision.models.resnet import BasicBlock, ResNet

    net: Any = ResNet(BasicBlock, [blocks] * 4, num_classes=outputs)
    net.layer4 = nn.Identity()
    net.fc = nn.Linear(256, outputs)
    if not pool or input_shape[0] != 3:
        stem = (3, 1, 1) if not pool else (7, 2, 3)
        net.conv1 = nn.Conv2d(input_shape[0], 64, *stem, bias=False)
    if not pool:
        net.maxpool = nn.Identity()
    module: nn.Module = net
    return module
