"""Layers with which the residual branches of a transformer end."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from torch import nn

from ...data import PyroccamError

# The last linear layers of attention and of what feeds forward, by their names in transformers.
_LAST = re.compile(r"(output\.dense|out_lin|lin2|linear2|fc2|(c|o|down|out)_proj)$")
_HEAD = ("attention_head_size", "head_dim")


Kind = Literal["heads", "inner units"]


class Branch(NamedTuple):
    """The parts of a layer that writes into a residual stream.

    Attributes:
        of: what one part is.
        block: inputs of the layer that belong to one part.
        weights: of the block, in all of its layers, that go with one part. Heads that share keys
            and values have a share of theirs.
    """

    of: Kind
    block: int
    weights: float


def branches(net: nn.Module) -> dict[str, Branch]:
    """Layers that write into the residual stream of alike blocks, in their order, by their names.

    Raises:
        PyroccamError: for a network without such blocks, or with heads whose size they do not say.
    """
    found: dict[str, Branch] = {}
    for path, blocks in net.named_modules():
        if not isinstance(blocks, nn.ModuleList):
            continue
        for number, block in blocks.named_children():
            last: dict[str, Any] = {
                name: layer
                for name, layer in block.named_modules()
                if _LAST.search(name) and getattr(layer, "weight", None) is not None
            }
            for name in last:
                of = _kind(name)
                size = _head_size(block) if of == "heads" else 1
                own = [layer for other, layer in last.items() if _kind(other) == of]
                # GPT-2's are transposed, and have no in_features.
                inputs = sum(getattr(layer, "in_features", len(layer.weight)) for layer in own)
                all_of = [p for other, p in block.named_parameters() if _kind(other) == of]
                weights = sum(p.numel() for p in all_of if p.dim() > 1)
                found[f"{path}.{number}.{name}"] = Branch(of, size, weights * size / inputs)
    if not found:
        known = "blocks of a transformer, such as those of BERT, ViT or Llama"
        raise PyroccamError(f"a {type(net).__name__} without residual branches", known)
    return found


def _kind(name: str) -> Kind:
    return "heads" if "att" in name else "inner units"


def _head_size(block: nn.Module) -> int:
    """Features of one head of a block."""
    for part in block.modules():
        for name in _HEAD:
            if isinstance(size := getattr(part, name, None), int):
                return size
    found = f"a {type(block).__name__} that does not say the size of its heads"
    raise PyroccamError(found, f"an attribute {' or '.join(_HEAD)}")
