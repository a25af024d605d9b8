"""Primitives that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["One", "Zero"]


class Zero(nn.Module):
    """Zeros of the shape of the input: an edge that may be left out."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class One(nn.Module):
    """One feature that is 1 for every row, ``(B, 1)``: a linear layer behind it is a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x.flatten(1)[:, :1])
