"""Vocabulary of a network's description: known modules, known functions, plain arguments.

A description is data. Nothing in it is looked up by name except in the tables of this file, and
every name in it is checked, because a rebuilt graph turns names into source code.
"""

from __future__ import annotations

import inspect
import keyword
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from ...data import PyroccamError, checked, shown
from ..networks import OrientedEdges
from ..unpacked import AttentionWeights, Heads
from .norms import PaddedLayerNorm


class DescriptionError(PyroccamError):
    """A network that cannot be described, or a description that cannot be used."""


# -- modules ---------------------------------------------------------------------------------------

_CONVS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
_TRANSPOSED = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
_KNOWN: list[type[nn.Module]] = [
    nn.Linear, nn.Bilinear, nn.Embedding, *_CONVS, *_TRANSPOSED, nn.BatchNorm1d, nn.BatchNorm2d,
    nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm,
    nn.LayerNorm, nn.RMSNorm, PaddedLayerNorm, nn.LocalResponseNorm, nn.MaxPool1d, nn.MaxPool2d,
    nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.SELU, nn.Hardswish,
    nn.Hardsigmoid, nn.Sigmoid, nn.Tanh, nn.LogSigmoid, nn.Softsign, nn.Identity, nn.ELU, nn.CELU,
    nn.LeakyReLU, nn.Hardtanh, nn.PReLU, nn.GELU, nn.Softplus, nn.Softmax, nn.LogSoftmax,
    nn.Softmin, nn.GLU, nn.Threshold, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink, nn.Dropout,
    nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Flatten, nn.Unflatten,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ReflectionPad1d, nn.ReflectionPad2d,
    nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d,
    nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.Unfold, nn.Fold, nn.Upsample,
    nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, Heads, AttentionWeights, OrientedEdges,
]  # fmt: skip
# What says nothing of the network, and old names of other arguments.
_BESIDE = {
    "device",
    "dtype",
    "args",
    "kwargs",
    "init",
    "_weight",
    "_freeze",
    "min_value",
    "max_value",
}
_PADDED = ("kernel_size", "stride", "padding", "dilation", "groups", "bias", "padding_mode")


def _names(kind: type[nn.Module]) -> tuple[str, ...]:
    """The constructor arguments of a module, each also an attribute of it."""
    if kind in _TRANSPOSED:
        return ("in_channels", "out_channels", *_PADDED, "output_padding")
    names = [name for name in inspect.signature(kind).parameters if name not in _BESIDE]
    # A normalisation has a bias of its own in newer torch alone.
    return tuple(name for name in names if not (name == "bias" and "affine" in names))


MODULES: dict[type[nn.Module], tuple[str, ...]] = {kind: _names(kind) for kind in _KNOWN}
_MODULE_NAMED = {kind.__name__: kind for kind in MODULES}
_AFFINE = {kind for kind, names in MODULES.items() if "affine" in names}
_WORDS = {  # that torch takes any text for
    "approximate": ("none", "tanh"),
    "mode": ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"),
}

LONGEST_NAME = 1000  # characters; a name of 10^6 parts is as many modules inside each other

# -- functions and methods ------------------------------------------------------------------------

_OPERATOR = "add sub mul truediv floordiv mod pow neg pos matmul getitem eq ne lt le gt ge"
_TORCH = """abs add amax amin argmax argmin atan baddbmm bmm cat ceil chunk clamp concat cos
    cumsum div einsum erf exp expm1 flatten flip floor index_select log log1p logsumexp matmul
    max maximum mean min minimum mul ones_like permute pow prod reciprocal relu reshape roll
    round rsqrt sigmoid sign sin softmax log_softmax split sqrt square squeeze stack std sub sum
    gru lstm rnn_relu rnn_tanh tanh transpose tril triu unbind unsqueeze var where zeros_like"""
_FUNCTIONAL = """adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear
    celu conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d dropout elu
    embedding fold gelu glu group_norm hardshrink hardsigmoid hardswish hardtanh instance_norm
    interpolate layer_norm leaky_relu linear log_softmax logsigmoid max_pool1d max_pool2d
    max_pool3d mish normalize pad pixel_shuffle pixel_unshuffle prelu relu relu6 rms_norm
    scaled_dot_product_attention selu sigmoid silu softmax softmin softplus softshrink softsign
    tanh tanhshrink threshold unfold"""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATOR.split()},
    **{f"torch.{name}": getattr(torch, name) for name in _TORCH.split()},
    **{f"functional.{name}": getattr(F, name) for name in _FUNCTIONAL.split()},
    "getattr": getattr,  # of these attributes only
}
_ATTRIBUTES = {"shape", "ndim"}
_WORD_FOR = {id(function): word for word, function in FUNCTIONS.items()}

_METHODS = """abs add amax amin argmax argmin atan bmm bool ceil chunk clamp contiguous cos
    cumsum dim div erf exp expand expand_as expm1 flatten flip float floor index_select log
    log1p log_softmax logsumexp long masked_fill matmul max maximum mean min minimum mul neg
    new_zeros norm permute pow prod reciprocal relu repeat reshape roll round rsqrt sigmoid sign
    sin size softmax split sqrt square squeeze std sub sum swapaxes t tanh to transpose tril
    triu type_as unbind unflatten unsqueeze var view view_as"""
METHODS = frozenset(_METHODS.split())


def word_for(op: str, target: Any) -> str | None:
    """The word for a function or method of a traced node; ``None`` if there is none."""
    if op == "call_function":
        return _WORD_FOR.get(id(target))
    return target if target in METHODS else None


# -- modules into words and back ------------------------------------------------------------------


def arguments_of(module: nn.Module) -> dict[str, Any]:
    """Constructor arguments of a known module, encoded."""
    values = {}
    for name in MODULES[type(module)]:
        value = getattr(module, name)
        values[name] = encode(value is not None if name == "bias" else value)  # the tensor itself
    if type(module) in _AFFINE and module.affine and module.bias is None:
        values["bias"] = False
    return values


def make(kind: str, arguments: dict[str, Any]) -> nn.Module:
    """Build a module from its words."""
    if not isinstance(kind, str) or kind not in _MODULE_NAMED:
        raise DescriptionError(f"unknown module {shown(kind)}; known: {', '.join(_MODULE_NAMED)}.")
    built = _MODULE_NAMED[kind]
    optional = {"bias"} if built in _AFFINE else set()
    if not isinstance(arguments, dict) or set(arguments) - optional != set(MODULES[built]):
        raise DescriptionError(
            f"{kind} has the arguments {shown(arguments)}, expected {sorted(MODULES[built])}."
        )
    values = {name: decode(value, {}) for name, value in arguments.items()}
    for name in _WORDS.keys() & values.keys():
        if values[name] not in _WORDS[name]:
            raise DescriptionError(f"{kind} has {name}={shown(values[name])}, no word of torch's.")
    made = built.__new__(built)
    # Of another type torch would complain only when the network runs, or never.
    checked(built.__init__)(made, **values)
    return made


# -- arguments into JSON and back -----------------------------------------------------------------


def checked_name(name: Any, *, dotted: bool = False) -> str:
    """``name`` if it is a plain identifier, or a dotted path of identifiers and numbers: a graph is
    turned into source code, and anything else in a name could smuggle code in."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise DescriptionError(f"{shown(name)} is not a name.")
    for part in name.split(".") if dotted else [name]:
        if not part.isascii() or not (part.isidentifier() or (dotted and part.isdigit())):
            raise DescriptionError(f"{shown(name)} is not a name.")
        if keyword.iskeyword(part) or part.startswith("__"):
            raise DescriptionError(f"{shown(name)} is not a name a network can use.")
    return name


def dtype_named(word: Any) -> torch.dtype:
    """``float32`` to ``torch.float32``."""
    found = getattr(torch, word, None) if isinstance(word, str) else None
    if not isinstance(found, torch.dtype):
        raise DescriptionError(f"unknown dtype {shown(word)}.")
    return found


def encode(value: Any) -> Any:
    """An argument of a node or module as JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, slice):
        return {"slice": [encode(v) for v in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple):
        return {"tuple": [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {checked_name(key): encode(v) for key, v in value.items()}}
    raise DescriptionError(f"an argument of type {type(value).__name__} is no plain data")


def decode(value: Any, nodes: dict[str, fx.Node]) -> Any:
    """The inverse of :func:`encode`."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise DescriptionError(f"{shown(value)} is no number of torch's.")
    if value is None or isinstance(value, int | str | float):
        return value
    if isinstance(value, list):
        return [decode(v, nodes) for v in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise DescriptionError(f"{shown(value)} is no argument.")
    ((kind, inner),) = value.items()
    if kind == "node":
        if not isinstance(inner, str) or inner not in nodes:
            raise DescriptionError(f"node {shown(inner)} is used before it exists.")
        return nodes[inner]
    if kind == "float" and inner in ("inf", "-inf", "nan"):
        return float(inner)
    if kind == "slice" and isinstance(inner, list) and len(inner) == 3:
        return slice(*(decode(v, nodes) for v in inner))
    if kind == "ellipsis" and inner is True:
        return Ellipsis
    if kind == "dtype":
        return dtype_named(inner)
    if kind == "tuple" and isinstance(inner, list):
        return tuple(decode(v, nodes) for v in inner)
    if kind == "dict" and isinstance(inner, dict):
        return {checked_name(key): decode(v, nodes) for key, v in inner.items()}
    raise DescriptionError(f"{shown(value)} is no argument.")


def checked_call(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse ``getattr`` of anything but a shape, and ``to`` anything but a kind of numbers."""
    if function == "to" and (kwargs or [type(a) for a in args[1:]] != [torch.dtype]):
        raise DescriptionError(f"to{shown(args[1:])} is not allowed; only to a dtype.")
    if function != "getattr":
        return
    asked = args[1] if len(args) == 2 and not kwargs and isinstance(args[1], str) else None
    if asked not in _ATTRIBUTES:
        raise DescriptionError(f"getattr{shown(args)} is not allowed; only {sorted(_ATTRIBUTES)}.")
