"""Networks whose kernels are made of independent frequencies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ..coding import cosine_waves, from_frequencies

Grid = tuple[int, int]
COMPOSED = ".in_frequencies."
"""Between the name of a layer and that of its weight, where that is one of frequencies."""


class Composed(nn.Module):
    """A layer that computes as another does, whose weights are amplitudes of waves: a convolution,
    or a linear layer that reads whole maps.

    Arguments:
        whole: the other, which is remembered.
        grid: height and width of its kernel, or of its maps.

    Attributes:
        waves: ``(H W, 1, H, W)``, products of those of
            :func:`~pyroccam.inference.coding.cosines.cosine_waves`.
        in_frequencies: the layer that reads what the input has of each wave in each window, of C
            channels ``C H W``.
    """

    waves: Tensor

    def __init__(self, whole: Any, grid: Grid) -> None:
        super().__init__()
        self.whole, self.grid = (whole,), grid
        down, right = (torch.from_numpy(cosine_waves(n)) for n in grid)
        flat = torch.kron(down, right)
        self.register_buffer("waves", flat.reshape(-1, 1, *grid).float())
        weight = whole.weight.detach().double()
        own = weight.reshape(len(weight), -1, len(flat)) @ flat.mT / flat.square().sum(1)
        layer, parts = copy.copy(whole), own.flatten(1).to(whole.weight)
        if isinstance(whole, nn.Conv2d):
            channels = whole.in_channels * len(flat)
            layer = nn.Conv2d(channels, whole.out_channels, 1, groups=whole.groups, bias=False)
            parts = parts[..., None, None]
        layer._parameters = {"weight": nn.Parameter(parts), "bias": whole.bias}
        self.in_frequencies = layer

    def forward(self, x: Tensor) -> Tensor:
        """As that of the other."""
        whole, (down, right) = self.whole[0], self.grid
        flat, windows = isinstance(whole, nn.Linear), ("stride", "padding", "dilation")
        maps = x.unflatten(1, (-1, down, right)) if flat else x
        how: Any = {} if flat else {name: getattr(whole, name) for name in windows}
        waves = self.waves.repeat(maps.shape[1], 1, 1, 1)
        found = nn.functional.conv2d(maps, waves, groups=maps.shape[1], **how)
        out: Tensor = self.in_frequencies(found.flatten(1) if flat else found)
        return out

    def merged(self) -> nn.Module:
        """The other with the weights of this one."""
        layer: Any = self.in_frequencies
        whole = copy.deepcopy(self.whole[0]).train(self.training)
        parts = layer.weight.detach().cpu().float().reshape(len(layer.weight), -1, *self.grid)
        own = torch.from_numpy(from_frequencies(parts.numpy())).reshape(whole.weight.shape)
        whole._parameters = {"weight": nn.Parameter(own.to(layer.weight)), "bias": layer.bias}
        return whole


def in_frequencies(net: nn.Module, x: Tensor) -> nn.Module:
    """A copy on the CPU that computes the same, with composed layers where there is a kernel or
    whole maps of another layer are read, as they are with the input.

    Raises:
        PyroccamError: where there are none.
    """
    net = copy.deepcopy(net).cpu()
    grids = _grids(net, x.cpu())
    if not grids:
        raise PyroccamError("basis='frequencies' of a network without convolutions", "'weights'")
    for name, grid in grids.items():
        net.set_submodule(name, Composed(net.get_submodule(name), grid))
    return net


def in_weights(net: nn.Module) -> tuple[nn.Module, dict[str, Grid]]:
    """The inverse, and the grids of the weights that are made of frequencies, by their names; the
    network is changed."""
    grids = {}
    for name, part in [*net.named_modules()]:
        if isinstance(part, Composed):
            grids[f"{name}.weight"] = part.grid
            net.set_submodule(name, part.merged())
    return net, grids


@torch.no_grad()
def _grids(net: nn.Module, x: Tensor) -> dict[str, Grid]:
    """The grids of layers, by their names."""
    net = copy.deepcopy(net).eval()
    found: dict[str, Grid] = {}
    seen = [x.flatten(1)]  # rows of a layer that reads the input itself are not smooth

    def look(name: str, layer: Any, out: Any) -> None:
        maps, fits = seen[0], False
        grid: Sequence[int] = (1, 1)
        if type(layer) is nn.Conv2d:
            grid, fits = layer.kernel_size, layer.padding_mode == "zeros"
        elif type(layer) is nn.Linear and (maps.dim(), out.dim()) == (4, 2):
            grid, fits = maps.shape[2:], maps[0].numel() == layer.in_features
        if fits and max(grid) > 1:
            found[name] = grid[0], grid[1]
        if isinstance(out, Tensor) and (out.dim() == 4 or type(layer) is nn.Linear):
            seen[0] = out

    for name, layer in net.named_modules():
        if name and not [*layer.children()]:
            layer.register_forward_hook(lambda part, _, out, name=name: look(name, part, out))
    net(x)
    return found
