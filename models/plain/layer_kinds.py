"""As what layer a module computes, whatever its class."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from ..unpacked import Matrix, untransposed

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, *CONVS, *TRANSPOSED, nn.Embedding, Matrix)
_SUBCLASSED = (nn.Linear, *CONVS, *TRANSPOSED)


def layer_kind(module: nn.Module) -> type[nn.Module] | None:
    """The type of :data:`LAYERS` that a module computes as: its own, or that of which its class is
    one, if ``forward`` is one product with its weight, of what it is given or of that with a
    border, in evaluation and in its mode; ``None`` if there is none."""
    if type(module) in LAYERS:
        return type(module)
    found = _product(module)
    return None if found is None or found.weight is not None else found.kind


def as_layers(net: nn.Module) -> nn.Module:
    """The network with layers of torch in place of modules that compute as one with a weight that
    they make of their own, such as a standardised one, or have transposed; it is changed."""
    for name, module in [*net.named_modules()]:
        if not name or type(module).__module__.startswith("torch."):
            continue
        new, found = untransposed(module), _product(module)
        if found is not None and found.weight is not None and not found.padded:
            new = copy.deepcopy(module)
            new.__class__, new._parameters = found.kind, {}
            for part, value in (("weight", found.weight), ("bias", found.bias)):
                number = None if value is None else nn.Parameter(value.to(module.weight))
                new.register_parameter(part, number)
        if new is not None:
            net.set_submodule(name, new)
    return net


class _Product(NamedTuple):
    """A product that a layer computes.

    Attributes:
        weight, bias: with which, where that is not the layer's own weight.
        padded: of what it is given with a border.
    """

    kind: type[nn.Module]
    weight: Tensor | None
    bias: Tensor | None
    padded: bool


class _Watch(TorchFunctionMode):
    """Remembers products and borders."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[Any, ...]] = []
        self.bordered: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "pad":
            self.bordered[id(out)] = args[0]
        elif name == "linear" or name.startswith("conv"):
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | (kwargs or {})
            self.products.append((given["input"], given["weight"], given.get("bias"), out))
        return out


@torch.no_grad()
def _product(module: nn.Module) -> _Product | None:
    kind = next((one for one in _SUBCLASSED if isinstance(module, one)), None)
    if kind is None or is_parametrized(module):
        return None
    try:
        own: Any = copy.deepcopy(module).cpu().double()
        features = own.in_features if kind is nn.Linear else own.in_channels
        shape = 2, features, *(n + 2 for n in getattr(own, "kernel_size", ()))
        noise = torch.Generator().manual_seed(0)
        seen = []
        for mode in (False, module.training):
            x = torch.randn(shape, generator=noise, dtype=torch.double)
            with _Watch() as watch:
                out = own.train(mode).forward(x)
            ((given, weight, bias, product),) = watch.products
            padded = watch.bordered.get(id(given)) is x
            if product is not out or not (padded or given is x):
                return None
            seen.append((weight, bias, padded))
    except Exception:  # it takes something else
        return None
    (weight, bias, padded), (again, other, _) = seen
    if weight is own.weight is again and bias is own.bias is other:
        return _Product(kind, None, None, padded)
    same = torch.equal(weight, again) and (bias is other or torch.equal(bias, other))
    same &= weight.shape == own.weight.shape
    return _Product(kind, weight, bias, padded) if same else None
