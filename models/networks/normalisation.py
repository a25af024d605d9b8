"""Batch normalisation with statistics of its own at every depth.

An exit that all depths share sees activations of very different scale, so running statistics
pooled over depths describe none of them and evaluation mode breaks. Here the affine part stays
shared, as the exit is, and only the statistics are kept for each depth.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ...data import PyroccamError
from .closed_form import ClosedFormLinear

M = TypeVar("M", bound=nn.Module)
_HELD = "statistics_are_held"
_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class DepthBatchNorm(nn.Module):
    r"""Batch normalisation of ``K`` depths stacked along the batch dimension.

    Row ``k * B + b`` of the input is observation ``b`` at depth ``k``. Each depth is normalised by
    its own mean and variance; scale and shift are shared by all.

    Arguments:
        norm: the batch normalisation to take features, options, affine part and (repeated for
            every depth) running statistics from.
        depths: K.

    Shapes:
        input and output ``(K * B, features, *)``.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, norm: _BatchNorm, depths: int) -> None:
        super().__init__()
        self.kind: type[_BatchNorm] = type(norm)
        self.num_features = norm.num_features
        self.eps = norm.eps
        self.momentum = norm.momentum
        self.depths = depths
        self.weight = norm.weight
        self.bias = norm.bias
        for name in ("running_mean", "running_var"):
            value = getattr(norm, name)
            # (features,) -> (K, features)
            self.register_buffer(name, None if value is None else value.repeat(depths, 1))
        tracked = norm.num_batches_tracked
        self.register_buffer("num_batches_tracked", None if tracked is None else tracked.clone())
        self.training = norm.training

    def forward(self, x: Tensor) -> Tensor:
        K, features = self.depths, self.num_features
        if isinstance(x, Tensor) and x.shape[0] % K:  # it may be traced
            raise PyroccamError(
                f"{x.shape[0]} rows for the statistics of {K} depths", "a multiple, of all depths"
            )
        # (K * B, C, *) -> (B, K * C, *): a depth's channels become channels of their own.
        stacked = x.unflatten(0, (K, -1)).transpose(0, 1).flatten(1, 2)
        track = self.running_mean is not None
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        out = F.batch_norm(
            stacked,
            self.running_mean.view(-1) if self.running_mean is not None else None,
            self.running_var.view(-1) if self.running_var is not None else None,
            None if self.weight is None else self.weight.repeat(K),
            None if self.bias is None else self.bias.repeat(K),
            self.training or not track,
            momentum,
            self.eps,
        )
        return out.unflatten(1, (K, features)).transpose(0, 1).flatten(0, 1)

    def select(self, depths: Sequence[int]) -> nn.Module:
        """The same normalisation for some of the depths: an ordinary one if there is only one."""
        norm = self.kind(
            self.num_features,
            eps=self.eps,
            momentum=self.momentum,
            affine=self.weight is not None,
            track_running_stats=self.running_mean is not None,
        )
        source = self.weight if self.weight is not None else self.running_mean
        if source is not None:
            norm = norm.to(device=source.device, dtype=source.dtype)
        with torch.no_grad():
            if self.weight is not None:
                norm.weight.requires_grad_(self.weight.requires_grad).copy_(self.weight)
                norm.bias.requires_grad_(self.bias.requires_grad).copy_(self.bias)
        norm.train(self.training)
        rows = list(depths)
        out: nn.Module = norm if len(rows) == 1 else DepthBatchNorm(norm, len(rows))
        for name in ("running_mean", "running_var"):
            mine = getattr(self, name)
            if mine is not None:
                getattr(out, name).copy_(mine[rows[0]] if len(rows) == 1 else mine[rows])
        if self.num_batches_tracked is not None:
            out.num_batches_tracked.copy_(self.num_batches_tracked)  # type: ignore[operator]
        setattr(out, _HELD, getattr(self, _HELD, False))
        return out.train(self.training)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, depths={self.depths}, eps={self.eps}, momentum={self.momentum}"
        )


def has_batch_norm(module: nn.Module) -> bool:
    """True if any part of ``module`` keeps batch statistics."""
    return any(isinstance(part, (_BatchNorm, DepthBatchNorm)) for part in module.modules())


def _is_frozen(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False)]
    return own != [] and not any(p.requires_grad for p in own)


def hold_statistics(net: M) -> M:
    """The network itself, in which normalisations that are frozen have a mark of it: those whose
    parameters need no gradient, and those in evaluation mode while the network, and not its root
    alone, is in training."""
    owners = (m for m in net.modules() if [*m.parameters(recurse=False)])
    mixed = net.training and any(m.training for m in owners)
    for part in net.modules():
        stays = _is_frozen(part) or (mixed and not part.training)
        if stays and isinstance(part, (_NormBase, DepthBatchNorm)):
            setattr(part, _HELD, True)
    return net


def with_held_statistics(module: M) -> M:
    """The module itself, in which normalisations that have that mark are in evaluation mode."""
    for part in module.modules():
        if vars(part).get(_HELD):
            part.training = False
    return module


def _replace(module: nn.Module, change: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace the parts for which ``change`` gives something, in place; returns the new root."""
    new = change(module)
    if new is not None:
        return new
    for name, child in module.named_children():
        setattr(module, name, _replace(child, change))
    return module


@torch.no_grad()
def without_statistics(module: nn.Module) -> nn.Module:
    r"""Write what a batch normalisation computes in evaluation mode into its scale and shift, in
    place.

    .. math:: \frac{x - m}{\sqrt{v + ε}} γ + β = x\, \frac{γ}{\sqrt{v + ε}}
              + \Big(β - \frac{m γ}{\sqrt{v + ε}}\Big)

    A mean of zero, a variance of one and no batches are left, which take no room in a file. What is
    computed is the same to rounding, in evaluation mode alone. A class of somebody's own, one
    without scale, shift or statistics, one that is frozen, or whose numbers another module has,
    too, stays as it is.
    """
    held = Counter(
        id(t)
        for m in module.modules()
        for t in chain(m._parameters.values(), m._buffers.values())
        if t is not None
    )
    for part in module.modules():
        if not isinstance(part, _BatchNorm) or type(part) not in _PLAIN or _is_frozen(part):
            continue
        tensors = {**part._parameters, **part._buffers}
        names = ("weight", "bias", "running_mean", "running_var")
        own = [t for name in names if (t := tensors.get(name)) is not None]
        if len(own) < len(names) or any(held[id(t)] > 1 for t in own):
            continue
        weight, bias, mean, variance = own
        factor = weight.double() / (variance.double() + part.eps).sqrt()
        shift = (bias - mean.double() * factor).to(bias)
        scale = (factor * (1.0 + part.eps) ** 0.5).to(weight)
        if not (scale.isfinite().all() and shift.isfinite().all()):
            continue
        weight.copy_(scale)
        bias.copy_(shift)
        mean.zero_()
        variance.fill_(1.0)
        if part.num_batches_tracked is not None:
            part.num_batches_tracked.zero_()
    return module


def per_depth(module: nn.Module, depths: int) -> nn.Module:
    """The module with statistics for each of ``depths`` depths in every batch normalisation inside;
    a copy, if there is one."""

    def change(m: nn.Module) -> nn.Module | None:
        if isinstance(m, DepthBatchNorm) and m.depths != depths:
            found = f"a module with statistics of {m.depths} depths in a stack of {depths}"
            raise PyroccamError(found, "one that is in no other stack", "copy.deepcopy")
        return DepthBatchNorm(m, depths) if isinstance(m, _BatchNorm) else None

    return _replace(copy.deepcopy(module) if has_batch_norm(module) else module, change)


def select_depths(module: nn.Module, depths: Sequence[int]) -> nn.Module:
    """Keep only what belongs to some depths (positions in the stack), in place."""
    kinds = (DepthBatchNorm, ClosedFormLinear)
    return _replace(module, lambda m: m.select(depths) if isinstance(m, kinds) else None)


def single_depth(module: nn.Module, depth: int) -> nn.Module:
    """Turn every :class:`DepthBatchNorm` back into the ordinary one of ``depth``, in place."""
    return select_depths(module, [depth])
