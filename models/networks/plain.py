"""Ready networks as plain modules, for methods that take any network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ...data import Count, Positive, PyroccamError, checked
from .. import asking
from .oriented_edges import OrientedEdges

VGG_WIDTHS: tuple[int | str, ...] = (
    64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool",
    512, 512, 512, "pool", 512, 512, 512, "pool",
)  # fmt: skip


@asking
@checked
def perceptron(
    input_shape: tuple[Count, ...], outputs: Count, *, hidden: Sequence[Count] = (100, 100)
) -> nn.Sequential:
    """Linear layers with ReLU between them; the input is flattened.

    Arguments:
        hidden: units of the hidden layers.
    """
    widths = [math.prod(input_shape), *hidden, outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@checked
def lenet_300_100(input_shape: tuple[int, ...], outputs: Count) -> nn.Sequential:
    """LeNet-300-100: 266,200 weights for images of 28 x 28 and ten classes.

    References:
        LeCun et al. 1998; the standard small network of compression papers since Han et al. 2015,
        arXiv:1506.02626.
    """
    return perceptron(input_shape, outputs, hidden=(300, 100))


@asking
@checked
def lenet_5_caffe(
    input_shape: tuple[int, ...],
    outputs: Count,
    *,
    channels: Sequence[int] = (20, 50),
    hidden: Count = 500,
    batch_norm: bool = False,
) -> nn.Sequential:
    """LeNet-5 as Caffe has it: two 5 x 5 convolutions, each with max-pooling, then 500 units with
    ReLU; 430,500 weights for images of 28 x 28 and ten classes. No nonlinearity between a
    convolution and its pooling.

    Arguments:
        input_shape: ``(C, H, W)``, at least 16 x 16.
        channels: of the two convolutions.
        hidden: units of the linear layer.
        batch_norm: batch normalisation and ReLU after each convolution and the first linear layer,
            as in experiments with variance networks.

    References:
        Caffe's ``lenet_train_test.prototxt``; used by Louizos et al. 2017, arXiv:1705.08665.
    """
    height, width = _image(input_shape, least=16)
    first, second = channels
    flat = second * math.prod(((side - 4) // 2 - 4) // 2 for side in (height, width))
    conv: list[list[nn.Module]] = [[], []]
    linear: list[nn.Module] = [nn.ReLU()]
    if batch_norm:
        conv = [[nn.BatchNorm2d(units), nn.ReLU()] for units in (first, second)]
        linear = [nn.BatchNorm1d(hidden), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(input_shape[0], first, 5),
        *conv[0],
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        *conv[1],
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, hidden),
        *linear,
        nn.Linear(hidden, outputs),
    )


@asking
@checked
def small_cnn(
    input_shape: tuple[int, ...], outputs: Count, *, channels: Count = 8
) -> nn.Sequential:
    """Fixed filters (:class:`~pyroccam.models.networks.OrientedEdges`), a 3 x 3 convolution, both
    with max-pooling, and a linear layer: 1,946 weights and biases for images of 28 x 28 and ten
    classes. So few serve where each is paid for, as in a certificate.

    Arguments:
        input_shape: ``(C, H, W)``, at least 10 x 10.
        channels: of the convolution.

    Example:
        >>> sum(p.numel() for p in small_cnn((1, 28, 28), 10).parameters())
        1946
    """
    height, width = _image(input_shape, least=10)
    first = OrientedEdges(input_shape[0])
    flat = channels * math.prod((side // 2 - 2) // 3 for side in (height, width))
    return nn.Sequential(
        first, nn.MaxPool2d(2),
        nn.Conv2d(input_shape[0] * (1 + first.directions), channels, 3), nn.MaxPool2d(3), nn.ReLU(),
        nn.Flatten(), nn.Linear(flat, outputs),
    )  # fmt: skip


@asking
@checked
def vgg(
    input_shape: tuple[int, ...],
    outputs: Count,
    *,
    width: Positive = 1.0,
    hidden: Count = 512,
    dropout: float = 0.0,
) -> nn.Sequential:
    """The VGG of CIFAR-10: thirteen 3 x 3 convolutions (2 x 64, 2 x 128, 3 x 256, 6 x 512) with
    batch normalisation and ReLU, five poolings, a linear layer with batch normalisation.

    Arguments:
        input_shape: ``(C, H, W)``, at least 32 x 32.
        width: factor on all widths.
        hidden: units of the linear layer.
        dropout: before each linear layer.

    References:
        Simonyan and Zisserman 2014, arXiv:1409.1556; Zagoruyko 2015 for CIFAR-10.
    """
    height, width_ = _image(input_shape, least=32)
    channels = input_shape[0]
    layers: list[nn.Module] = []
    for item in VGG_WIDTHS:
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2))
            continue
        units = max(1, round(item * width))
        layers += [
            nn.Conv2d(channels, units, 3, padding=1, bias=False),
            nn.BatchNorm2d(units),
            nn.ReLU(),
        ]
        channels = units
    units = max(1, round(hidden * width))
    layers += [nn.Flatten(), nn.Dropout(dropout)]
    layers += [nn.Linear(channels * (height // 32) * (width_ // 32), units, bias=False)]
    layers += [nn.BatchNorm1d(units), nn.ReLU(), nn.Dropout(dropout), nn.Linear(units, outputs)]
    return nn.Sequential(*layers)


@asking
@checked
def torchvision_resnet(
    input_shape: tuple[int, ...], outputs: Count, *, variant: str = "resnet18", small: bool = True
) -> nn.Module:
    """A torchvision ResNet, not pretrained.

    Arguments:
        input_shape: ``(C, H, W)``.
        variant: ``resnet18``, ``resnet34``, ``resnet50``, ...
        small: 3x3 stem without pooling, the usual change for images of 28 to 64 pixels.
    """
    import torchvision  # seconds that only this network needs

    known = torchvision.models.list_models(include="*resnet*")
    if variant not in known:
        raise PyroccamError(f"torchvision has no {variant!r}; it has {', '.join(known)}.")
    net: Any = torchvision.models.get_model(variant, weights=None, num_classes=outputs)
    if small:
        net.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif input_shape[0] != 3:
        net.conv1 = nn.Conv2d(input_shape[0], 64, 7, stride=2, padding=3, bias=False)
    module: nn.Module = net
    return module


def _image(shape: tuple[int, ...], least: int) -> tuple[int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        expected = f"images (C, H, W) of at least {least} x {least} pixels"
        raise PyroccamError(f"inputs {tuple(shape)}", expected, "perceptron")
    return shape[1], shape[2]


PLAIN: dict[str, Callable[..., nn.Module]] = {
    "perceptron": perceptron,
    "lenet-300-100": lenet_300_100,
    "lenet-5-caffe": lenet_5_caffe,
    "small-cnn": small_cnn,
    "vgg": vgg,
    "resnet": torchvision_resnet,
}
