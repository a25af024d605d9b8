"""As what layer a module computes, whatever its class."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from ..unpacked import Matrix, untransposed
from .norms import as_norm

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
    return found if isinstance(found, type) else None


def as_layers(net: nn.Module) -> nn.Module:
    """The network with layers of torch in place of modules that compute as one with a weight that
    they make of their own, such as a standardised one, or have transposed, and with its
    normalisations in place of those of other classes; it is changed."""
    for name, module in [*net.named_modules()]:
        if not name or type(module).__module__.startswith("torch."):
            continue
        found = _product(module)
        made = found if isinstance(found, nn.Module) else None
        new = made or untransposed(module) or as_norm(module)
        if new is not None:
            net.set_submodule(name, new)
    return net


class _Watch(TorchFunctionMode):
    """Remembers products and borders."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[Any, ...]] = []
        self.bordered: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "pad":
            self.bordered.append((args[0], out))
        elif name == "linear" or name.startswith("conv"):
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | (kwargs or {})
            self.products.append((given["input"], given["weight"], given.get("bias"), out))
        return out


@torch.no_grad()
def _product(module: nn.Module) -> type[nn.Module] | nn.Module | None:
    """The type that a layer computes as with its own weight, or a layer of torch with the weight
    that it makes; ``None`` if it computes something else."""
    kind = next((one for one in _SUBCLASSED if isinstance(module, one)), None)
    if kind is None or is_parametrized(module):
        return None
    try:
        own: Any = copy.deepcopy(module).cpu().double()
        features = own.in_features if kind is nn.Linear else own.in_channels
        parts = "kernel_size", "stride", "dilation"
        kernel, stride, dilation = (torch.tensor(getattr(own, part, ())) for part in parts)
        noise = torch.Generator().manual_seed(0)
        seen = []
        for more, mode in enumerate((False, module.training)):
            # Three places along each side, as another stride shows in the third.
            sides = (dilation * (kernel - 1) + 2 * stride + 1 + more).tolist()
            x = torch.randn(2, features, *sides, generator=noise, dtype=torch.double)
            with _Watch() as watch:
                out = own.train(mode).forward(x)
            ((given, weight, bias, product),) = watch.products
            plain = weight is own.weight and bias is own.bias
            padded = any(one is x and made is given for one, made in watch.bordered)
            if product is not out or not (given is x or (plain and padded)):
                return None
            seen.append((plain, x, out))
        if all(plain for plain, *_ in seen):
            return kind
        same = weight.shape == own.weight.shape
        own.__class__, own._parameters = kind, {}
        for name, value in (("weight", weight), ("bias", bias)):
            own.register_parameter(name, None if value is None else nn.Parameter(value))
        same &= all(torch.equal(own.forward(x), out) for *_, x, out in seen)
        return own.to(module.weight) if same else None
    except Exception:  # it takes something else
        return None
