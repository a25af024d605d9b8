"""A rival that makes networks smaller in fact: whole units and channels go, by Torch-Pruning.

Each layer loses the same share of its outputs, those with the smallest weights; the outputs of the
network and its inputs stay. The library is ``pip install -e '.[strangers]'``.

References:
    G. Fang et al., DepGraph: Towards any structural pruning, CVPR 2023.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from typing import Any

import torch
from pyroccam.data import Dataset
from torch import Tensor, nn

from .ordinary import Trained, retrain

__all__ = ["NotPrunedError", "prune_channels", "without_channels"]

_RATIOS = (0.3, 0.5, 0.7, 0.85)


class NotPrunedError(ValueError):
    """The library finds nothing to remove, or what it leaves does not run."""


def prune_channels(
    dense: Trained, data: Dataset, seed: int, ratios: Sequence[float] = _RATIOS
) -> list[Trained]:
    """The network without that share of each layer's channels, trained once more.

    Raises:
        NotPrunedError: with the reason, if the library cannot prune this network.
    """
    whole = _parameters(dense.net)
    found = []
    for ratio in ratios:
        net = without_channels(dense.net, data.head(2)[0], ratio)
        again = retrain(net, data, seed)
        found.append(replace(again, left=_parameters(again.net) / whole))
    return found


def without_channels(net: nn.Module, rows: Tensor, ratio: float) -> nn.Module:
    """A copy of the network that lacks a share of the outputs of each layer but the last linear.

    Arguments:
        net: left as it is.
        rows: some inputs; the library follows them through the network.
        ratio: of the channels to remove, rounded so that at least the others stay.

    Raises:
        NotPrunedError: if nothing can go, or the copy does not run.
    """
    tp = importlib.import_module("torch_pruning")
    small = copy.deepcopy(net).eval()
    output = [m for m in small.modules() if isinstance(m, nn.Linear)][-1]
    before = _parameters(small)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parameters that the library does not know
            tp.pruner.MetaPruner(
                small,
                rows,
                importance=tp.importance.MagnitudeImportance(p=2),
                pruning_ratio=ratio,
                ignored_layers=[output],
                round_to=_heads(small),
                # Embeddings are left out by default, though the library can prune them.
                root_module_types=[nn.modules.conv._ConvNd, nn.Linear, nn.LSTM, nn.Embedding],
                # Its defaults are dictionaries that all pruners share and write to.
                in_channel_groups={},
                out_channel_groups={},
                num_heads={},
            ).step()
            with torch.no_grad():
                small(rows)
    except Exception as error:  # whatever the library, or a network that it broke, may raise
        raise NotPrunedError(f"{type(error).__name__}: {error}") from error
    if _parameters(small) == before:
        raise NotPrunedError("Torch-Pruning finds no channels that it can remove")
    return small


def _heads(net: nn.Module) -> int | None:
    """What the width of a network with attention has to be a multiple of."""
    heads = [m.num_heads for m in net.modules() if isinstance(m, nn.MultiheadAttention)]
    return lcm(*heads) if heads else None


def _parameters(net: Any) -> int:
    return sum(p.numel() for p in net.parameters())
