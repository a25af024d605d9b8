"""Layers with which the residual branches of a transformer end."""

from __future__ import annotations

import re

from torch import nn

from ...data import PyroccamError

# The last linear layers of attention and of what feeds forward, by their names in transformers.
_LAST = re.compile(r"(output\.dense|out_lin|lin2|linear2|fc2|(c|o|down|out)_proj)$")
_HEAD = ("attention_head_size", "head_dim")


def branches(net: nn.Module) -> dict[str, int]:
    """Names of the layers that write into the residual stream of alike blocks, in their order, and
    how many of their inputs belong together: those of a head, or one inner unit.

    Raises:
        PyroccamError: for a network without such blocks.
    """
    found: dict[str, int] = {}
    for path, blocks in net.named_modules():
        if not isinstance(blocks, nn.ModuleList):
            continue
        for number, block in blocks.named_children():
            for name, layer in block.named_modules():
                if _LAST.search(name) and getattr(layer, "weight", None) is not None:
                    heads = "att" in name
                    found[f"{path}.{number}.{name}"] = _head_size(block) if heads else 1
    if not found:
        known = "blocks of a transformer, such as those of BERT, ViT or Llama"
        raise PyroccamError(f"a {type(net).__name__} without residual branches", known)
    return found


def _head_size(block: nn.Module) -> int:
    """Features of one head of a block."""
    each = (getattr(part, name, None) for part in block.modules() for name in _HEAD)
    return next((size for size in each if isinstance(size, int)), 1)
