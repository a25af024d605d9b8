"""Kinds that each constructor argument of a known module may have, where a file says it.

Torch takes texts, truth values and lists for numbers, and complains only when the network runs, or
never. So kinds are checked by name: an argument means the same in every module that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["KINDS", "misfit"]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _number(value: Any) -> bool:
    return isinstance(value, float) or _whole(value)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _some(single: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """One, or several in a row."""

    def check(value: Any) -> bool:
        many = isinstance(value, tuple | list)
        return all(map(single, value)) if many else single(value)

    return check


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


_same = _one_of("same", "valid")
_GROUPS: list[tuple[str, Callable[[Any], bool], str]] = [
    (
        "a whole number",
        _whole,
        """in_features out_features in_channels out_channels groups num_embeddings embedding_dim
        num_features num_groups num_channels num_parameters upscale_factor start_dim end_dim
        heads""",
    ),
    (
        "whole numbers",
        _some(_whole),
        """kernel_size stride dilation output_padding normalized_shape unflattened_size query_sizes
        value_sizes""",
    ),
    ("whole numbers", lambda v: _same(v) or _some(_whole)(v), "padding"),
    ("whole numbers, or null", _some(_or_none(_whole)), "output_size size"),
    ("a whole number, or null", _or_none(_whole), "padding_idx divisor_override dim"),
    (
        "a number",
        _number,
        "eps alpha beta k negative_slope min_val max_val threshold p norm_type scale",
    ),
    ("a number, or null", _or_none(_number), "momentum max_norm"),
    ("numbers, or null", _or_none(_some(_number)), "scale_factor"),
    (
        "true or false",
        _truth,
        """bias affine track_running_stats elementwise_affine return_indices ceil_mode
        count_include_pad inplace scale_grad_by_freq sparse""",
    ),
    ("true, false or null", _or_none(_truth), "align_corners recompute_scale_factor"),
    (
        "zeros, reflect, replicate or circular",
        _one_of("zeros", "reflect", "replicate", "circular"),
        "padding_mode",
    ),
    ("none or tanh", _one_of("none", "tanh"), "approximate"),
    (
        "a mode of torch.nn.Upsample",
        _one_of("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"),
        "mode",
    ),
]
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    name: (said, check) for said, check, names in _GROUPS for name in names.split()
}
"""What is expected of an argument, by its name, in words and as a test."""


def misfit(name: str, value: Any) -> str | None:
    """Text on what the argument `name` must be, if `value` is not; else ``None``."""
    said, check = KINDS[name]
    return None if check(value) else said
