"""The one module that a cut network may have and torch has not: pick features by their index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["Select"]


class Select(nn.Module):
    """``x.index_select(dim, index)``: keeps some features, in the order of ``index``.

    Arguments:
        index: positions of the kept features; saved with the weights.
        dim: the axis of the features: 1 in front of a convolution, -1 in front of a linear layer.

    Example:
        >>> Select([0, 2])(torch.tensor([[5.0, 6.0, 7.0]]))
        tensor([[5., 7.]])
    """

    index: Tensor

    def __init__(self, index: Sequence[int] | Tensor, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("index", torch.as_tensor(index, dtype=torch.long).clone())

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.dim, self.index)

    def extra_repr(self) -> str:
        return f"{len(self.index)}, dim={self.dim}"
