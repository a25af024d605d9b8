"""Primitives that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...data import Count, checked

__all__ = ["One", "Zero"]


class Zero(nn.Module):
    """Zeros of the shape of the input, or of one output channel in ``stride`` places: an edge that
    may be left out."""

    @checked
    def __init__(self, stride: Count = 1) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = x[..., :: self.stride, :: self.stride]
        return torch.zeros_like(x)

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


class One(nn.Module):
    """One feature that is 1 for every row, ``(B, 1)``: a linear layer behind it is a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x.flatten(1)[:, :1])
