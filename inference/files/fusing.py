"""Batch normalisation that is part of the layer before it: a step less in every pass."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import chain
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.fx import Node
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.utils._pytree import tree_leaves

from ...models import has_other_hooks
from ..cutting import Example, Inputs, ValuesDecide, recorded

MOST_OFF = 5e-5
"""By how much outputs may differ, as a part of the largest, or of 1: an exported file, whose other
order of additions comes on top, may be off by twice that."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fused(net: nn.Module, rows: Inputs) -> nn.Module:
    r"""A copy in evaluation mode, whose batch normalisations are in the weights before them.

    .. math:: \mathrm{BN}(Wx + b) = \mathrm{diag}(s)\, W x + (s\, (b - m) + β),
              \qquad s = γ / \sqrt{v + ε}

    An ``nn.Identity`` stands where a normalisation was, so that the network is read, described and
    saved as before. Weights leave the few digits to which a compressed network is rounded: write
    the network to its file first, and fuse what :func:`~pyroccam.inference.load` gives.

    What stays as it is: a normalisation that does not follow right on a convolution or a linear
    layer (behind a ReLU, say), or follows on one whose outputs are used elsewhere, too; one without
    running statistics; layers that are called twice, share parameters, or are of a class of one's
    own; and a network whose path depends on values, or that would compute something else on the
    rows (what reads its normalisations, or changes a tensor in place between, for one).

    Arguments:
        net: plain; it is not changed.
        rows: some rows of its inputs, ``(B, *)``, B of 2 or more.

    References:
        Jacob et al. 2018, arXiv:1712.05877, section 3.2.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        >>> fused(net, torch.zeros(2, 3, 9, 9))
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
          (1): Identity()
          (2): ReLU()
        )
    """
    whole, before = copy.deepcopy(net).eval(), copy.deepcopy(net).eval()
    example = Example.of(whole, rows)
    try:
        graph, run = recorded(whole, example)
    except ValuesDecide:
        return whole
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    read = {str(n.target).rpartition(".")[0] for n in graph.nodes if n.op == "get_attr"}
    held = Counter(
        id(t)
        for part in whole.modules()
        for t in chain(part._parameters.values(), part._buffers.values())
        if t is not None
    )

    def alone(node: Node) -> Any:
        """The module of a step that no other step has anything of; ``None`` if there is none."""
        name = str(node.target)
        if node.op != "call_module" or calls[name] > 1 or name in read:
            return None
        part = whole.get_submodule(name)
        own = chain(part.parameters(), part.buffers())
        return None if has_other_hooks(part) or any(held[id(t)] > 1 for t in own) else part

    for node in graph.nodes:
        norm = alone(node)
        if type(norm) not in _NORMALISATIONS or norm.running_mean is None:
            continue
        (source,) = node.all_input_nodes
        made = (
            _together(alone(source), norm, run.shapes[source]) if len(source.users) == 1 else None
        )
        if made is not None:
            whole.set_submodule(str(source.target), made)
            whole.set_submodule(str(node.target), nn.Identity())
    after = whole.eval()
    return after if all(_agree(before, after, one) for one in (example, example.near())) else before


@torch.no_grad()
def _agree(before: nn.Module, after: nn.Module, example: Example) -> bool:
    """True if two networks give the same but for rounding."""
    expected = [t for t in tree_leaves(example.call(before)) if isinstance(t, Tensor)]
    try:
        found = [t for t in tree_leaves(example.call(after)) if isinstance(t, Tensor)]
    except Exception:  # what reads a normalisation finds none
        return False

    def close(one: Tensor, other: Tensor) -> bool:
        one, other = one.double(), other.double()
        size = float(one.nan_to_num(0.0, 0.0, 0.0).abs().amax()) if one.numel() else 0.0
        most = MOST_OFF * max(size, 1.0)
        return torch.allclose(one, other, rtol=0.0, atol=most, equal_nan=True)

    return len(found) == len(expected) and all(map(close, expected, found))


def _together(layer: Any, norm: _BatchNorm, outputs: Size) -> nn.Module | None:
    """A layer that normalises what it gives, of shape ``outputs``; ``None`` where it cannot."""
    whole = norm.weight is not None and norm.bias is not None
    if type(layer) in _CONVOLUTIONS:
        made: nn.Module = fuse_conv_bn_eval(layer, norm)
    elif type(layer) is nn.Linear and len(outputs) == 2 and whole:
        made = fuse_linear_bn_eval(layer, norm)
    else:
        return None
    return made if all(bool(t.isfinite().all()) for t in made.parameters()) else None
