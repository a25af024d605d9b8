"""Networks as people bring them: ordinary modules, nothing of this package in them.

Each is a function of the shape of an input and the number of outputs, for ``--network``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["conv", "conv1d", "embedding", "gru", "lenet", "mlp", "norm", "transformer"]

Shape = tuple[int, ...]


def mlp(input_shape: Shape, outputs: int, *, width: int = 64) -> nn.Module:
    """Two hidden layers of rectified units."""
    layers = [nn.Linear(math.prod(input_shape), width), nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(nn.Flatten(), *layers, nn.ReLU(), nn.Linear(width, outputs))


def norm(input_shape: Shape, outputs: int, *, width: int = 128) -> nn.Module:
    """Two hidden layers with layer normalisation and GELU."""
    layers: list[nn.Module] = [nn.Flatten()]
    before = math.prod(input_shape)
    for _ in range(2):
        layers += [nn.Linear(before, width), nn.LayerNorm(width), nn.GELU()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, outputs))


def lenet(input_shape: Shape, outputs: int) -> nn.Module:
    """Hidden layers of 300 and 100 rectified units."""
    first, second = nn.Linear(math.prod(input_shape), 300), nn.Linear(300, 100)
    rest = (nn.ReLU(), second, nn.ReLU(), nn.Linear(100, outputs))
    return nn.Sequential(nn.Flatten(), first, *rest)


class _Residual(nn.Module):
    """Two convolutions with batch normalisation, around which the input goes, too."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(hidden)))


def conv(input_shape: Shape, outputs: int, *, channels: int = 16) -> nn.Module:
    """A convolutional network with two residual blocks."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], channels, 3, stride=2 if input_shape[1] > 16 else 1, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        _Residual(channels),
        nn.MaxPool2d(2),
        _Residual(channels),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, outputs),
    )


def conv1d(input_shape: Shape, outputs: int, *, channels: int = 32) -> nn.Module:
    """Convolutions along a sequence (channels, length)."""
    return nn.Sequential(
        nn.Conv1d(input_shape[0], channels, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(4 * channels, outputs),
    )


class _Recurrent(nn.Module):
    def __init__(self, channels: int, outputs: int, width: int) -> None:
        super().__init__()
        self.recurrent = nn.GRU(channels, width, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x.transpose(1, 2))
        found: Tensor = self.head(states[:, -1])
        return found


def gru(input_shape: Shape, outputs: int, *, width: int = 32) -> nn.Module:
    """A gated recurrent unit along a sequence (channels, length), read off at its end."""
    return _Recurrent(input_shape[0], outputs, width)


class _Encoder(nn.Module):
    def __init__(self, channels: int, outputs: int, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(channels, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder(self.into(x.transpose(1, 2))).mean(1))
        return found


def transformer(input_shape: Shape, outputs: int, *, width: int = 32) -> nn.Module:
    """Two layers of a transformer's encoder over a sequence (channels, length)."""
    return _Encoder(input_shape[0], outputs, width)


class _Words(nn.Module):
    def __init__(self, outputs: int, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.hidden, self.head = nn.Linear(width, 2 * width), nn.Linear(2 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.hidden(self.table(x))).mean(1))
        return found


def embedding(input_shape: Shape, outputs: int, *, words: int = 50, width: int = 32) -> nn.Module:
    """The mean of what is made of each word's embedding."""
    return _Words(outputs, words, width)
