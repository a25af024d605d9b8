"""The tensors of a described network, by name: taken out, and put in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...data import shown
from .vocabulary import DescriptionError, dtype_named

_ORDER = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
"""The tensors of the known modules, as a new one registers them."""


def state(net: nn.Module, description: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that a description needs of its network, by name; of those that are tied the
    first."""
    found = dict(tensors_of(net, description["modules"]))
    found.update((name, attribute(net, name)) for name in description["direct"])
    return {k: v.detach() for k, v in found.items() if k not in description["tied"]}


def fill(net: nn.Module, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Put tensors into a rebuilt network, in place; tied names share one parameter."""
    expected = state(net, description)
    dtypes = declared_dtypes(description, expected)
    if set(expected) != set(tensors):
        odd = sorted(set(expected) ^ set(tensors))
        raise DescriptionError(f"The tensors do not fit the description: {', '.join(odd[:5])}.")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise DescriptionError(
                f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}."
            )
        if tensor.dtype != dtypes[name]:
            raise DescriptionError(f"{name} is of {tensor.dtype}, expected {dtypes[name]}.")
        _place(net, name, tensor)
    every = dict(tensors_of(net, description["modules"]))
    every.update((name, attribute(net, name)) for name in description["direct"])
    for name, owner in description["tied"].items():
        if owner not in expected or every[name].shape != expected[owner].shape:
            raise DescriptionError(f"{shown(name)} cannot share the numbers of {shown(owner)}.")
        _place(net, name, attribute(net, owner))


def declared_dtypes(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, torch.dtype]:
    """The dtype that a description says of each tensor of :func:`state`: float32 if nothing else,
    and of those of modules one that the module can use."""
    said = description["dtypes"]
    if odd := set(said) - set(tensors):
        raise DescriptionError(f"it says the dtype of {shown(min(odd))}, which it does not have.")
    found = {name: dtype_named(said.get(name, "float32")) for name in tensors}
    for name, tensor in tensors.items():
        counts = not (tensor.is_floating_point() or tensor.is_complex())
        whole = not (found[name].is_floating_point or found[name].is_complex)
        if whole != counts and name not in description["direct"]:
            raise DescriptionError(f"{name} is of {found[name]}, expected {tensor.dtype}.")
    return found


def checked_shape(shape: Any) -> list[int]:
    """A shape that a file says, a list of whole numbers from 0 on, of 64 dimensions at most."""
    good = isinstance(shape, list) and len(shape) <= 64
    if not good or not all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape
    ):
        raise DescriptionError(f"{shown(shape)} is no shape of a tensor.")
    return list(shape)


def tensors_of(net: nn.Module, modules: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of known modules by name, in an order that does not depend on how they came."""
    for name in modules:
        module = net.get_submodule(name)
        held = {**module._parameters, **module._buffers}
        for key in _ORDER:
            if (tensor := held.get(key)) is not None:
                yield f"{name}.{key}".removeprefix("."), tensor


def check_same(found: Mapping[str, Tensor], written: Mapping[str, Tensor]) -> None:
    """Refuse, by a DescriptionError, a file of which other numbers are read than were written."""
    try:
        torch.testing.assert_close(
            dict(found), dict(written), rtol=0, atol=0, equal_nan=True, check_device=False
        )
    except AssertionError as error:
        raise DescriptionError("it gives other numbers than were written.") from error


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
