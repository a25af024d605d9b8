"""A network whose weights are those of layers that it calls, as far as that can be had."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, parametrize, remove_weight_norm
from torch.nn.utils.weight_norm import WeightNorm

from ...data import PyroccamError
from .attention import Attention, linear
from .recurrent import Recurrent
from .transformer import Encoder, EncoderLayer

# From the inside out: an encoder takes layers that are unpacked already.
_KINDS: dict[type[nn.Module], Callable[[Any], nn.Module | None]] = {
    nn.TransformerEncoderLayer: EncoderLayer,
    nn.TransformerEncoder: Encoder,
    nn.MultiheadAttention: Attention,
    nn.RNN: Recurrent,
    nn.GRU: Recurrent,
    nn.LSTM: Recurrent,
}


def unwrapped(net: Any) -> Any:
    """The network in what ``torch.compile``, ``DataParallel`` and the like have wrapped it in."""
    parallel = isinstance(net, nn.DataParallel | DistributedDataParallel)
    inner = getattr(net, "module" if parallel else "_orig_mod", None)
    return net if inner is None else unwrapped(inner)


def copied(net: Any) -> Any:
    """A copy of a network, without wrappers, which shares nothing with it."""
    net = unwrapped(net)
    # Torch refuses to copy a weight that the older hook has computed.
    computed = {
        id(value): value.detach().clone()
        for module in net.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    with torch.no_grad():  # copies of TorchScript's parameters are computed, too
        made = copy.deepcopy(net, computed)
    for given, own in zip(net.parameters(), made.parameters(), strict=True):
        own.requires_grad_(given.requires_grad)
    for module in made.modules():
        for name, part in module._modules.items():
            module._modules[name] = unwrapped(part)
        if parametrize.is_parametrized(module):
            # Torch's copies of one module have one class, from which removing takes attributes.
            kind = type(module)
            module.__class__ = type(kind.__name__, kind.__bases__, {**vars(kind)})
    return made


def folded(net: nn.Module) -> nn.Module:
    """The network with weights where weight normalisation has a direction and a length; it is
    changed, and computes the same.

    Warns:
        UserWarning: naming the layers whose weights were normalised.
    """
    names: list[str] = []

    def fold(name: str, module: nn.Module, key: str, remove: Callable[..., Any]) -> None:
        parts = f"{key}_g", f"{key}_v", f"parametrizations.{key}."
        learnt = any(p.requires_grad for n, p in module.named_parameters() if n.startswith(parts))
        remove(module, key)
        setattr(module, key, nn.Parameter(getattr(module, key).detach(), learnt))
        names.append(f"{name}.{key}".lstrip("."))

    for name, module in net.named_modules():
        for hook in [h for h in module._forward_pre_hooks.values() if isinstance(h, WeightNorm)]:
            fold(name, module, hook.name, remove_weight_norm)
        if parametrize.is_parametrized(module):
            kinds: Any = module.parametrizations
            for key in [k for k, found in kinds.items() if _is_normalised(found)]:
                fold(name, module, key, parametrize.remove_parametrizations)
        hooks = module._load_state_dict_pre_hooks  # torch leaves one that pickles refuse
        for number, hook in [*hooks.items()]:
            if "_weight_norm_compat_hook" in str(getattr(hook, "hook", hook)):
                del hooks[number]
    if names:
        warnings.warn(
            f"Weight normalisation is folded into the weights: {', '.join(names[:4])}"
            + (f" and {len(names) - 4} more" if names[4:] else "")
            + ". They are random as a whole, not by direction and length.",
            stacklevel=4,
        )
    return net


def _is_normalised(found: Any) -> bool:
    return [type(one) for one in found] == [parametrizations._WeightNorm]


def unpacked(net: nn.Module, names: Collection[str] | None = None) -> nn.Module:
    """The network with attention, layers of transformers and recurrent layers of torch made of
    linear ones, and those of transposed weights linear, but for those in which none of the layers
    is that are asked for; it is changed, and computes the same.

    Left as they are: subclasses, attention with ``add_bias_kv`` or ``add_zero_attn``, an LSTM with
    projections.
    """
    for kind, make in {**_KINDS, nn.Module: untransposed}.items():
        # The innermost first: what is outside holds what was made.
        for name, module in reversed([*net.named_modules()]):
            asked = names is None or any(f"{n}.".startswith(f"{name}." if name else "")
                                         for n in names)  # fmt: skip
            found = type(module) is kind and _can_be(module) if kind in _KINDS else bool(name)
            made = make(module) if found and asked else None
            if made is not None:
                made.train(module.training)
                if not name:
                    return made
                net.set_submodule(name, made)
                refuse_pretrained(net)
    return net


def refuse_pretrained(net: nn.Module) -> None:
    """From now on networks of transformers do not write a folder by themselves: their
    configurations say other layers than those that they have."""
    parts: Any = net.modules()
    for module in parts:
        if hasattr(module, "save_pretrained"):
            module.save_pretrained = _refused


def _refused(*args: object, **options: object) -> None:
    raise PyroccamError("save_pretrained of other layers", "inference.Small(net).save(folder)")


@torch.no_grad()
def untransposed(module: Any) -> nn.Module | None:
    """A linear layer that computes what a module of a transposed weight does, as GPT-2 has them;
    ``None`` of any other."""
    given = [(name, p.dim()) for name, p in module.named_parameters()]
    kind = type(module).__module__
    if given != [("weight", 2), ("bias", 1)] or [*module.buffers()] or kind.startswith("torch."):
        return None
    noise = torch.Generator().manual_seed(0)
    try:
        own = copy.deepcopy(module).cpu().double()
        for mode in (False, True):
            for p in own.parameters():  # its own may be zero, where any function is linear
                p.copy_(torch.randn(p.shape, generator=noise, dtype=p.dtype))
            x = torch.randn(2, 16, len(own.weight), generator=noise, dtype=torch.double)
            x *= torch.logspace(-2, 2, 16)[:, None]
            if not torch.allclose(own.train(mode)(x), linear(own.weight.T, own.bias)(x)):
                return None
    except Exception:  # it takes something else
        return None
    made: nn.Module = linear(module.weight.T, module.bias)
    return made


def _can_be(module: Any) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return module.bias_k is None and not module.add_zero_attn
    if isinstance(module, nn.TransformerEncoderLayer):
        return type(module.self_attn) is nn.MultiheadAttention and _can_be(module.self_attn)
    if isinstance(module, nn.TransformerEncoder):
        return all(type(layer) is EncoderLayer for layer in module.layers)
    return not getattr(module, "proj_size", 0)
