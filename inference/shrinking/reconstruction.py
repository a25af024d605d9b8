"""What is left makes up for what went: layers are fitted to what the whole network gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...models import evaluating

if TYPE_CHECKING:
    from ...data import Dataset
    from ..training import Fit

ROWS = 1024
"""Rows to which a layer is fitted, at most."""

BATCH = 64
"""Rows of a pass."""

RIDGE = 1e-4
"""What a change of a weight costs, as a share of the mean square of an input."""

_SUMS = {"add", "add_", "__add__", "__iadd__", "__radd__"}


@torch.no_grad()
def reconstructed(zeros: nn.Module, whole: nn.Module, fit: Fit) -> nn.Module:
    r"""A network whose linear layers have other weights, where they read a part of their inputs.

    .. math:: W' = \arg\min_V \sum_n \lVert t_n - V x_n \rVert^2
              + \lambda \lVert V - W \rVert^2

    over the inputs x that the layer still reads, as its own network gives them, and over its bias;
    t is what the layer of the whole network gives. Where both add it to something else, as in a
    residual branch, t is what makes the sum right: the branch takes back what those before it have
    changed. Layers follow each other, each behind those that are fitted already, and no labels are
    looked at. What a layer does not read any more stays at zero.

    Arguments:
        zeros: with columns of zeros in weights, on the CPU.
        whole: the network that it was made of.
        fit: of its data the inputs of training rows are taken, and the names of its layers.

    References:
        Hassibi, Stork 1993, Optimal brain surgeon; He, Zhang, Sun 2017, arXiv:1707.06168, for
        units and the least squares of a layer; Frantar, Alistarh 2022, arXiv:2208.11580, for
        inputs that have changed already.
    """
    net, whole = copy.deepcopy(zeros), copy.deepcopy(whole).cpu()
    weights = {
        name: net.get_parameter(f"{name}.weight".lstrip(".")).transpose(0, layer.affine.output_dim)
        for name, layer in fit.model.layers.items()
        if not layer.affine.drawn and len(layer.affine.shape.weight) == 2
    }
    read = {name: one.any(0) for name, one in weights.items()}
    cut = [name for name, kept in read.items() if kept.any() and not kept.all()]
    parts = list(_parts(fit.data.first(ROWS)))
    with evaluating(net), evaluating(whole):
        asked = [{n: one.sum() for n, one in _seen(whole, cut, part).items()} for part in parts]
        for name in asked[0]:
            rows = zip(parts, (one[name] for one in asked), strict=True)
            own = (_rows(net, name, part, target) for part, target in rows)
            _fit_least_squares(net.get_submodule(name), weights[name], read[name], own)
    return net


def _fit_least_squares(
    layer: Any, weight: Tensor, kept: Tensor, rows: Iterator[tuple[Tensor, Tensor]]
) -> None:
    """Change the weight ``(O, I)`` of a layer at the inputs that are kept, and its bias."""
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias
    before = torch.cat([weight[:, kept], bias[:, None]], 1).mT.double()
    gram, cross = before.new_zeros(len(before), len(before)), torch.zeros_like(before)
    for x, target in rows:
        one = x.new_full((len(x), 1), float(layer.bias is not None))
        x = torch.cat([x[:, kept], one], 1)
        gram += x.mT @ x
        cross += x.mT @ target
    slope = cross - gram @ before
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    after = (before + torch.linalg.solve(gram, slope)).mT.to(weight)
    weight[:, kept] = after[:, :-1]
    bias.copy_(after[:, -1])


def _parts(data: Dataset) -> Iterator[Tensor]:
    """Batches of rows; of texts those of one length, so that nothing in them is padding."""
    x = data.x_train.cpu()
    lengths = None if data.fields is None else data.fields.lengths(x)
    same = [x] if lengths is None else [x[lengths == length] for length in lengths.unique()]
    for rows in same:
        yield from rows.split(BATCH)


def _rows(net: nn.Module, name: str, part: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer reads, and what it should give for a sum to be right, ``(rows, features)``."""
    seen = _seen(net, [name], part)[name]
    beside = target if seen.beside is None else target - seen.beside
    return seen.read.flatten(0, -2), beside.flatten(0, -2)


@dataclass
class _Seen:
    """What a layer reads and gives, and what that is added to, if it is."""

    read: Tensor
    gives: Tensor
    beside: Tensor | None = None

    def sum(self) -> Tensor:
        return self.gives if self.beside is None else self.gives + self.beside


def _seen(net: nn.Module, names: Sequence[str], part: Tensor) -> dict[str, _Seen]:
    """Of the first calls of layers in a pass, which ends where all of them are seen."""
    watch = _Watch(len(names))
    layers = ((name, net.get_submodule(name)) for name in names)
    hooks = [one.register_forward_hook(partial(watch.note, name)) for name, one in layers]
    try:
        with watch, suppress(_AllSeen):
            net(part.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return watch.seen


class _AllSeen(Exception):
    """The rest of a pass is not needed."""


class _Watch(TorchFunctionMode):
    """Sums are seen as functions that are called; what was added first counts."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.seen: dict[str, _Seen] = {}
        self.last: tuple[str, Tensor] | None = None

    def note(self, name: str, layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if name not in self.seen:
            self.seen[name] = _Seen(args[0].clone(), out.clone())
            self.last = name, out

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in _SUMS and self.last is not None:
            for one, other in (args[:2], args[1::-1]):
                self._note_sum(one, other)
        return func(*args, **(kwargs or {}))

    def _note_sum(self, one: Any, other: Any) -> None:
        """Note what the layer's outputs, maybe after a dropout that does nothing, are added to."""
        if self.last is None or not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return
        name, out = self.last
        if one.data_ptr() == out.data_ptr() and one.shape == other.shape:
            self.seen[name].beside, self.last = other.clone(), None
            if len(self.seen) == self.layers:
                raise _AllSeen
