"""Dropout in front of the layers of any network."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ...data import PyroccamError, Share, checked
from .. import unknown_name


@checked
def with_dropout(
    net: nn.Module, rate: Share = 0.5, layers: str | Iterable[str] | None = None
) -> nn.Module:
    """A copy of a network with binary dropout on the inputs of layers.

    Arguments:
        net: any module; the names of the layers gain ``.1``.
        rate: of units that are dropped.
        layers: names. By default all linear layers but one that is the first of all.

    References:
        Srivastava et al. 2014, Dropout: a simple way to prevent neural networks from overfitting.
    """
    net = copy.deepcopy(net)
    weighted = [name for name, m in net.named_modules() if isinstance(m, nn.Linear | _ConvNd)]
    if layers is None:
        chosen = [n for n in weighted[1:] if isinstance(net.get_submodule(n), nn.Linear)]
    else:
        chosen = [layers] if isinstance(layers, str) else list(layers)
    if not chosen:
        found = f"{type(net).__name__} without a linear layer after its first"
        raise PyroccamError(found, f"layers=, of {', '.join(weighted) or 'none'}")
    for name in chosen:
        if name not in weighted:
            raise PyroccamError(unknown_name("layer", name, weighted))
        layer = net.get_submodule(name)
        dropped = nn.Sequential(nn.Dropout(rate), layer)
        if not name:
            return dropped
        net.set_submodule(name, dropped)
    return net
