"""Normalisation over the features of a row, of which some may go."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORMS = (nn.LayerNorm, nn.RMSNorm)
"""Modules over the last axis."""


class PaddedLayerNorm(nn.LayerNorm):
    r"""Layer normalisation of m features beside ``zeros`` others that are zero.

    .. math:: y_i = g_i \frac{x_i - \mu}{\sqrt{v + \epsilon}} + b_i, \qquad
              \mu = \frac1n \sum_{j \le m} x_j, \quad v = \frac1n \sum_{j \le m} x_j^2 - \mu^2

    with n = m + ``zeros``, for inputs ``(*, m)``.

    References:
        Ba, Kiros, Hinton 2016, arXiv:1607.06450, eq. 3, with zeros among the units.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5,
        elementwise_affine: bool = True, bias: bool = True, zeros: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, elementwise_affine, bias)
        self.zeros = zeros

    def forward(self, x: Tensor) -> Tensor:
        size = self.normalized_shape[0]
        wide = F.layer_norm(F.pad(x, (0, self.zeros)), (size + self.zeros,), eps=self.eps)
        out = wide[..., :size]
        out = out if self.weight is None else out * self.weight
        return out if self.bias is None else out + self.bias


def narrowed_norm(norm: Any, outputs: Sequence[int], seen: Sequence[int] | None) -> nn.Module:
    r"""A normalisation of fewer features.

    With zeros in place of those that go, n features have the mean square

    .. math:: \frac1n \sum_{j \le m} x_j^2 + \epsilon
              = \frac mn \Big(\frac1m \sum_{j \le m} x_j^2 + \frac nm \epsilon\Big),

    so that an RMSNorm is one of m features of another epsilon whose gain is
    :math:`\sqrt{n / m}` times as large.

    Arguments:
        outputs: the m features that are left.
        seen: those that are left and those that are zero, n of them, if there are others that go
            though they are not: then layer normalisation is one of m features, too, with such a
            gain, if it has one. By default all, and it is the same function as before.
    """
    index, size = torch.tensor(outputs), len(outputs)
    total = getattr(norm, "zeros", 0) + (norm.normalized_shape[0] if seen is None else len(seen))
    given = {name: p.detach()[index.to(p.device)] for name, p in norm.named_parameters()}
    centred = isinstance(norm, nn.LayerNorm)
    made: Any
    if centred and seen is None:
        made = PaddedLayerNorm(size, norm.eps, bool(given), "bias" in given, total - size)
    elif centred:
        made = nn.LayerNorm(size, norm.eps, bool(given), "bias" in given)
    else:
        eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
        made = nn.RMSNorm(size, eps * total / size)
    if given and type(made) in NORMS:
        given["weight"] *= math.sqrt(total / size)
    for name, value in given.items():
        setattr(made, name, nn.Parameter(value, getattr(norm, name).requires_grad))
    return made.train(norm.training)


@torch.no_grad()
def as_norm(module: Any) -> nn.Module | None:
    """Torch's normalisation over the last axis, with the weights of a module of another class that
    computes as one; ``None`` of any other."""
    sizes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    known = not sizes.keys() - {"weight", "bias"} and len({*sizes.values()}) == 1
    if type(module) in (*NORMS, PaddedLayerNorm) or not known or "weight" not in sizes:
        return None
    if len(sizes["weight"]) != 1 or [*module.buffers()]:
        return None
    kind: Any = NORMS["bias" not in sizes and not isinstance(module, nn.LayerNorm)]
    noise = torch.Generator().manual_seed(0)
    own = copy.deepcopy(module).cpu().double()
    for p in own.parameters():
        p.copy_(torch.randn(p.shape, generator=noise))
    x = torch.randn(2, 6, *sizes["weight"], generator=noise, dtype=torch.double)
    x *= torch.logspace(-5, 2, 6)[:, None]
    for eps in [value for value in vars(module).values() if isinstance(value, float)]:
        made = kind(len(module.weight), eps)
        made.weight = own.weight
        if kind is nn.LayerNorm:
            made.bias = getattr(own, "bias", None)
        try:
            same = all(torch.allclose(own.train(m)(x), made(x), 1e-4) for m in (False, True))
        except Exception:  # it takes something else
            return None
        if same:
            made._parameters.update(module._parameters)
            return made.train(module.training)
    return None
