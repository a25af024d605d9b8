"""The tensors of a described network, by name: taken out, and put in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn

from .vocabulary import DescriptionError

__all__ = ["attribute", "fill", "state", "tensors_of"]


def state(net: nn.Module, description: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors a description needs, by name; of those that are tied the first.

    Arguments:
        net: the network that was described, or the rebuilt one.
        description: of :func:`describe`.
    """
    found = dict(tensors_of(net, description["modules"]))
    found.update((name, attribute(net, name)) for name in description["direct"])
    return {k: v.detach() for k, v in found.items() if k not in description["tied"]}


def fill(net: nn.Module, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Put tensors into a rebuilt network, in place; tied names share one parameter.

    Raises:
        DescriptionError: if names or shapes are not those of the description.
    """
    expected = state(net, description)
    if set(expected) != set(tensors):
        odd = sorted(set(expected) ^ set(tensors))
        raise DescriptionError(f"The tensors do not fit the description: {', '.join(odd[:5])}.")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise DescriptionError(
                f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}."
            )
        _place(net, name, tensor)
    for name, owner in description["tied"].items():
        _place(net, name, attribute(net, owner))


def tensors_of(net: nn.Module, modules: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name in modules:
        module = net.get_submodule(name)
        for key, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:
                yield f"{name}.{key}", tensor


def attribute(net: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    return getattr(net.get_submodule(path), last)


def _place(net: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, last = name.rpartition(".")
    module = net.get_submodule(path)
    if last in module._parameters:
        if not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
        module._parameters[last] = tensor
    else:
        module._buffers[last] = tensor
