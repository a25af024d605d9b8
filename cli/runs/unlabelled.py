"""Texts without labels: what the network in a folder says of them is learnt in their place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...data import Dataset
from ...inference.posterior import streamed
from ...inference.training import FitProgress
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
    data: Dataset, network: str, splits: Sequence[str] = ("train", "val", "test"), pieces: int = 0
) -> Dataset:
    """Rows whose labels are the classes that the network in a folder finds the most probable; or
    whose targets are its embeddings, of length one.

    Arguments:
        pieces: for each training row so many more, whose texts are made of pieces of the others;
            where rows have weights, each has their mean.
    """
    if pieces:
        made, weights = _made_of_pieces(data, pieces), data.weights
        if weights is not None:
            weights = torch.cat([weights, weights.mean().expand(len(made))])
        data = data.but(x_train=torch.cat([data.x_train, made]), weights=weights)
    classes = outputs_in(network)
    net = pretrained(network.removeprefix(FOLDER), classes)
    found: dict[str, Any] = {}
    with FitProgress("own targets", sum(len(data.split(split)[0]) for split in splits)) as bar:
        for split in splits:
            said = _said(net, data, split, bar)
            direction = nn.functional.normalize(said, dim=-1)
            found[f"y_{split}"] = direction if classes is None else said.argmax(-1)
    if classes is not None:
        return data.but(**found, task="classification", classes=classes)
    mean, std = torch.zeros(said.shape[1]), torch.ones(said.shape[1])
    scaling = data.scaling._replace(y_mean=mean.double(), y_std=std.double())
    return data.but(**found, y_mean=mean, y_std=std, scaling=scaling)


@torch.no_grad()
def _said(net: nn.Module, data: Dataset, split: str, bar: FitProgress) -> Tensor:
    """``(N, outputs)``."""
    x, _ = data.split(split)

    def said(part: Tensor) -> Tensor:
        outputs: Tensor = give(net, part, data.fields)
        bar.advance(bar.task, len(part))
        return outputs[None]

    with evaluating(net):
        return streamed(said, x, data.fields)[0]


def _made_of_pieces(data: Dataset, times: int) -> Tensor:
    """Texts, so many times as many as are trained on, that no person would write: a piece of one,
    and for every other text one of another, between a first and a last token. What the network
    says of them is known all the same."""
    assert data.fields is not None  # texts have names
    names = [one.name for one in data.fields.each]
    rows, mask = data.x_train.unflatten(1, (len(names), -1)), names.index("attention_mask")
    padding = rows[rows[:, mask].sum(1).argmin(), :, -1:]
    random = torch.Generator().manual_seed(data.source["seed"])
    found = padding.expand(times * len(rows), *rows.shape[1:]).clone()
    found[:, mask] = 0.0
    for new in found:
        places = torch.randint(len(rows), (2,), generator=random)
        first, second = (rows[i][:, rows[i, mask] > 0] for i in places)
        parts = [_piece(first, random)]
        if torch.rand((), generator=random) < 0.5:
            parts.append(_piece(second, random))
        inner = torch.cat(parts, 1)[:, : new.shape[1] - 2]
        tokens = torch.cat([first[:, :1], inner, first[:, -1:]], 1)
        new[:, : tokens.shape[1]] = tokens
    return found.flatten(1)


def _piece(tokens: Tensor, random: torch.Generator) -> Tensor:
    """Some tokens that follow each other, without the first and the last of a text."""
    inner = tokens[:, 1:-1]
    ends = torch.randint(inner.shape[1] + 1, (2,), generator=random)
    return inner[:, int(ends.min()) : int(ends.max())]
