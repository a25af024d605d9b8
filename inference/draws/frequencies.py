"""Networks whose kernels are made of independent frequencies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..coding import cosine_waves, from_frequencies

Grid = tuple[int, int]
COMPOSED = ".in_frequencies."
"""Between the name of a layer and that of its weight, where that is one of frequencies."""


class Frequencies(nn.Module):
    """What an input has of each pair of waves: in the windows of a convolution, or in the whole
    maps of which a row of features consists. C channels become ``C H W``.

    Attributes:
        waves: ``(H W, 1, H, W)``, products of those of
            :func:`~pyroccam.inference.coding.cosines.cosine_waves`.
    """

    waves: Tensor

    def __init__(self, grid: Grid, layer: nn.Module) -> None:
        super().__init__()
        self.grid, self.flat = grid, isinstance(layer, nn.Linear)
        self.windows = {
            name: getattr(layer, name)
            for name in ("stride", "padding", "dilation")
            if hasattr(layer, name)
        }
        down, right = (torch.from_numpy(cosine_waves(n)) for n in grid)
        waves = down[:, None, :, None] * right[None, :, None, :]
        self.register_buffer("waves", waves.reshape(-1, 1, *grid).float())

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, ...)`` or, of whole maps, ``(N, C H W)``."""
        if self.flat:
            x = x.reshape(len(x), -1, *self.grid)
        channels = x.shape[1]
        waves = self.waves.repeat(channels, 1, 1, 1)
        found = nn.functional.conv2d(x, waves, groups=channels, **self.windows)
        return found.flatten(1) if self.flat else found


class _Composed(nn.Sequential):
    """A layer of frequencies in place of one of weights, which it remembers."""

    def __init__(self, frequencies: Frequencies, layer: nn.Module, whole: nn.Module) -> None:
        super().__init__()
        self.frequencies, self.in_frequencies = frequencies, layer
        self.whole = (whole,)


def in_frequencies(net: nn.Module, x: Tensor) -> nn.Module:
    """A copy that computes the same, and reads frequencies where a layer has a kernel or reads
    whole maps, as it does with the input."""
    grids = _grids(net, x)
    net = copy.deepcopy(net)
    for name, grid in grids.items():
        whole: Any = net.get_submodule(name)
        frequencies = Frequencies(grid, whole)
        waves = frequencies.waves.flatten(1).double()
        own = whole.weight.detach().double().reshape(len(whole.weight), -1, len(waves))
        parts = (own @ waves.mT / waves.square().sum(1)).flatten(1).to(whole.weight)
        layer = copy.deepcopy(whole)
        if not frequencies.flat:
            channels = whole.in_channels * len(waves)
            layer = nn.Conv2d(channels, whole.out_channels, 1, groups=whole.groups, bias=False)
            layer.bias, parts = whole.bias, parts[..., None, None]
        layer.weight = nn.Parameter(parts)
        net.set_submodule(name, _Composed(frequencies, layer, whole))
    return net


def in_weights(net: nn.Module) -> tuple[nn.Module, dict[str, Grid]]:
    """The inverse, and the grids of the weights that are made of frequencies, by their names; the
    network is changed."""
    grids = {}
    for name, part in [*net.named_modules()]:
        if not isinstance(part, _Composed):
            continue
        layer: Any = part.in_frequencies
        whole: Any = copy.deepcopy(part.whole[0])
        grid = grids[f"{name}.weight"] = part.frequencies.grid
        parts = layer.weight.detach().cpu().reshape(len(layer.weight), -1, *grid)
        own = torch.from_numpy(from_frequencies(parts.float().numpy()))
        whole.weight = nn.Parameter(own.reshape(whole.weight.shape).to(layer.weight))
        whole.bias = layer.bias
        net.set_submodule(name, whole.train(net.training))
    return net, grids


@torch.no_grad()
def _grids(net: nn.Module, x: Tensor) -> dict[str, Grid]:
    """The grids of layers, by their names."""
    net = copy.deepcopy(net).eval()
    found: dict[str, Grid] = {}
    before = [x]

    def look(name: str, layer: Any, out: Any) -> None:
        maps, fits = before[-1], False
        grid: Sequence[int] = (1, 1)
        if type(layer) is nn.Conv2d:
            grid = layer.kernel_size
            fits = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        elif type(layer) is nn.Linear and maps.dim() == 4:
            grid, fits = maps.shape[2:], maps[0].numel() == layer.in_features
        if fits and max(grid) > 1:
            found[name] = grid[0], grid[1]
        if isinstance(out, Tensor) and (out.dim() == 4 or type(layer) is nn.Linear):
            before.append(out)

    for name, layer in net.named_modules():
        if name and not [*layer.children()]:
            layer.register_forward_hook(lambda part, _, out, name=name: look(name, part, out))
    net(x)
    return found
