"""Vocabulary of a network's description: known modules, known functions, plain arguments.

A description is data. Nothing in it is looked up by name except in the tables of this file, and
every name in it is checked, because a rebuilt graph turns names into source code.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from ...data import PyroccamError
from .. import shown
from ..unpacked import AttentionWeights, Heads
from .argument_kinds import misfit

__all__ = [
    "FUNCTIONS",
    "METHODS",
    "MODULES",
    "DescriptionError",
    "arguments_of",
    "checked_call",
    "checked_name",
    "decode",
    "dtype_named",
    "encode",
    "make",
    "word_for",
]


class DescriptionError(PyroccamError):
    """A network that cannot be described, or a description that cannot be used."""


# -- modules: the constructor arguments, each also an attribute of the module ----------------------

_CONV = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
_CONV_ARGUMENTS = (*_CONV, "bias", "padding_mode")
_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
_AVG_POOL = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_EMBEDDING = ("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type")

_GROUPS: list[tuple[tuple[str, ...], list[type[nn.Module]]]] = [
    (("in_features", "out_features", "bias"), [nn.Linear]),
    ((*_EMBEDDING, "scale_grad_by_freq", "sparse"), [nn.Embedding]),
    (_CONV_ARGUMENTS, [nn.Conv1d, nn.Conv2d, nn.Conv3d]),
    (
        (*_CONV_ARGUMENTS, "output_padding"),
        [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d],
    ),
    (_NORM, [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d]),
    (_NORM, [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d]),
    (("num_groups", "num_channels", "eps", "affine"), [nn.GroupNorm]),
    (("normalized_shape", "eps", "elementwise_affine", "bias"), [nn.LayerNorm]),
    (("size", "alpha", "beta", "k"), [nn.LocalResponseNorm]),
    (_MAX_POOL, [nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d]),
    (_AVG_POOL, [nn.AvgPool1d]),
    ((*_AVG_POOL, "divisor_override"), [nn.AvgPool2d, nn.AvgPool3d]),
    (("output_size",), [nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d]),
    (("output_size", "return_indices"), [nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d]),
    (("inplace",), [nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.SELU, nn.Hardswish, nn.Hardsigmoid]),
    ((), [nn.Sigmoid, nn.Tanh, nn.LogSigmoid, nn.Softsign, nn.Identity]),
    (("alpha", "inplace"), [nn.ELU, nn.CELU]),
    (("negative_slope", "inplace"), [nn.LeakyReLU]),
    (("min_val", "max_val", "inplace"), [nn.Hardtanh]),
    (("num_parameters",), [nn.PReLU]),
    (("approximate",), [nn.GELU]),
    (("beta", "threshold"), [nn.Softplus]),
    (("dim",), [nn.Softmax, nn.LogSoftmax]),
    (("p", "inplace"), [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout]),
    (("start_dim", "end_dim"), [nn.Flatten]),
    (("dim", "unflattened_size"), [nn.Unflatten]),
    (("padding",), [nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d]),
    (("padding",), [nn.ReflectionPad1d, nn.ReflectionPad2d]),
    (("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor"), [nn.Upsample]),
    (("upscale_factor",), [nn.PixelShuffle]),
    (("query_sizes", "value_sizes", "scale", "p"), [Heads]),
    (("heads", "scale"), [AttentionWeights]),
]
MODULES: dict[type[nn.Module], tuple[str, ...]] = {
    kind: names for names, kinds in _GROUPS for kind in kinds
}
_MODULE_NAMED = {kind.__name__: kind for kind in MODULES}
# An argument that says whether a tensor exists: the attribute is that tensor, or None.
_PRESENCE = {"bias"}
# Newer torch can switch off the bias of a normalisation alone; older torch has no such argument.
_AFFINE = {kind for kind, names in MODULES.items() if "affine" in names}

LONGEST_NAME = 1000  # characters; a name of 10^6 parts is as many modules inside each other

# -- functions and methods ------------------------------------------------------------------------

_OPERATOR = "add sub mul truediv floordiv mod pow neg pos matmul getitem eq ne lt le gt ge"
_TORCH = """abs add amax amin argmax bmm cat chunk clamp concat cos div einsum erf exp flatten
    index_select log logsumexp matmul max maximum mean min minimum mul permute pow reciprocal relu
    reshape rsqrt sigmoid sign sin softmax log_softmax split sqrt square squeeze stack std sub sum
    gru lstm rnn_relu rnn_tanh tanh transpose unbind unsqueeze var where"""
_FUNCTIONAL = """adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
    avg_pool1d avg_pool2d avg_pool3d conv1d conv2d conv3d dropout elu gelu hardswish hardtanh
    interpolate layer_norm leaky_relu linear log_softmax logsigmoid max_pool1d max_pool2d
    max_pool3d mish normalize pad relu relu6 scaled_dot_product_attention selu sigmoid silu softmax
    softplus tanh"""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATOR.split()},
    **{f"torch.{name}": getattr(torch, name) for name in _TORCH.split()},
    **{f"functional.{name}": getattr(F, name) for name in _FUNCTIONAL.split()},
    "getattr": getattr,  # of these attributes only
}
_ATTRIBUTES = {"shape", "ndim"}
_WORD_FOR = {id(function): word for word, function in FUNCTIONS.items()}

_METHODS = """abs add amax amin argmax bool chunk clamp contiguous cos dim div erf exp expand
    flatten flip float index_select log log_softmax logsumexp long masked_fill matmul max
    maximum mean min minimum mul new_zeros permute pow reciprocal relu repeat reshape rsqrt
    sigmoid sign sin size softmax split sqrt square squeeze std sub sum tanh to transpose
    unbind unflatten unsqueeze var view"""
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
        values[name] = encode(value is not None if name in _PRESENCE else value)
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
    for name, value in values.items():
        if expected := misfit(name, value):
            raise DescriptionError(f"{kind} has {name}={shown(value)}, expected {expected}.")
    return built(**values)


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
    if value is None or isinstance(value, bool | int | str | float):
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
