"""Texts without labels: what the network in a folder says of them is learnt in their place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...data import Dataset
from ...inference.posterior import streamed
from ...models import evaluating, give
from ...models.networks import classes_in, pretrained
from ..methods import FOLDER


def is_unlabelled(data: Dataset, network: str) -> bool:
    """Texts have no targets, and a network that says something of them."""
    return "tokenizer" in data.source and not data.target and network.startswith(FOLDER)


def outputs_in(network: str) -> int | None:
    """Classes of the network in a folder; none of an encoder."""
    return classes_in(Path(network.removeprefix(FOLDER)))


def with_own_targets(
    data: Dataset, network: str, splits: Iterable[str] = ("train", "val", "test")
) -> Dataset:
    """Rows whose labels are the classes that the network in a folder finds the most probable; or
    whose targets are its embeddings, of length one."""
    classes = outputs_in(network)
    net = pretrained(network.removeprefix(FOLDER), classes)
    found: dict[str, Any] = {}
    for split in splits:
        said = _said(net, data, split)
        direction = nn.functional.normalize(said, dim=-1)
        found[f"y_{split}"] = direction if classes is None else said.argmax(-1)
    if classes is not None:
        return data.but(**found, task="classification", classes=classes)
    mean, std = torch.zeros(said.shape[1]), torch.ones(said.shape[1])
    scaling = data.scaling._replace(y_mean=mean.double(), y_std=std.double())
    return data.but(**found, y_mean=mean, y_std=std, scaling=scaling)


@torch.no_grad()
def _said(net: nn.Module, data: Dataset, split: str) -> Tensor:
    """``(N, outputs)``; texts of about one length pass together, as padding takes time."""
    x, _ = data.split(split)
    assert data.fields is not None  # texts have names
    lengths = data.fields.lengths(x)
    assert lengths is not None  # and a mask
    order = lengths.argsort()
    with evaluating(net):
        said = streamed(lambda part: give(net, part, data.fields)[None], x[order])[0]
    return said[order.argsort()]
