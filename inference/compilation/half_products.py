"""Products of matrices and convolutions of numbers with half the bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

Precision = Literal["bf16"] | None

LEAST = 2**20
"""Multiplications of a product from which on they save more time than rounding takes, on a CPU with
AVX-512 and bfloat16: half as many take longer, twice as many half the time."""


class _Bfloat16Products(TorchDispatchMode):
    """Large products in single precision are found from factors rounded to bfloat16, within.

    Factors and results keep 8 bits of their mantissa, an error of at most 1/256 each (of up to
    2.3/256 for gradients of convolutions on some processors); sums within a product are of single
    precision, and so is everything else. It acts below autograd, so that products of a backward
    pass are rounded too, and may be entered while a graph is recorded.

    References:
        Kalamkar et al. 2019, arXiv:1905.12322, train networks so without another change.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rounded = _ROUNDED.get(func)
        if rounded is not None and not kwargs:
            found = rounded(*args)
            if found is not NotImplemented:
                return found
        return func(*args, **(kwargs or {}))


def products(precision: Precision) -> AbstractContextManager[Any]:
    """Within it, products are found in a precision."""
    return _Bfloat16Products() if precision == "bf16" else nullcontext()


def _large(multiplications: int, *factors: Tensor) -> bool:
    return multiplications >= LEAST and all(t.dtype == torch.float32 for t in factors)


def _low(*factors: Tensor) -> list[Tensor]:
    return [t.to(torch.bfloat16) for t in factors]


def _product(one: Tensor, other: Tensor) -> Any:
    if not _large(one.numel() * other.shape[-1], one, other):
        return NotImplemented
    return torch.matmul(*_low(one, other)).float()


def _added(bias: Tensor, one: Tensor, other: Tensor) -> Any:
    found = _product(one, other)
    return found if found is NotImplemented else bias + found


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
    *_, transposed, _, _ = how
    if transposed or not _large(_of_convolution(x, weight, *how), x, weight):
        return NotImplemented
    found = aten.convolution.default(*_low(x, weight), None, *how).float()
    return found if bias is None else found + bias.view(-1, *[1] * (x.dim() - 2))


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Any, *how: Any) -> Any:
    *rest, mask = how
    *_, transposed, _, _ = rest
    if transposed or not _large(grad.numel() * weight[0].numel(), grad, x, weight):
        return NotImplemented
    wanted = [mask[0], mask[1], False]
    found = aten.convolution_backward.default(*_low(grad, x, weight), None, *rest, wanted)
    sums = grad.sum([0, *range(2, grad.dim())]) if mask[2] else None
    return *[None if t is None else t.float() for t in found[:2]], sums


def _of_convolution(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], *_: Any
) -> int:
    """Multiplications of a convolution; ``(B, C, *size)``, weight ``(O, C / groups, *kernel)``."""
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    places = math.prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    return int(x.shape[0]) * places * weight.numel()


_ROUNDED: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _added,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
