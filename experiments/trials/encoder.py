"""A transformer's encoder that can stop after any of its layers:

NETWORK=experiments.trials.encoder:encoder_stack
pyroccam fit occam --network $NETWORK --data experiments.sets:wisdm_series
"""

from __future__ import annotations

from pyroccam.models.networks.stack import DepthStack
from torch import Tensor, nn

__all__ = ["encoder_stack"]

_AXES = 3  # numbers of a record
_PATCH, _STRIDE = 10, 5  # records of a token, and from one to the next


class _Tokens(nn.Module):
    """Overlapping stretches of a series, each as one vector, from its end to its start. Where it
    is, a token does not say: the layers see a set, and which of it is the end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Conv1d(_AXES, width, _PATCH, stride=_STRIDE)

    def forward(self, x: Tensor) -> Tensor:
        back = x.unflatten(1, (-1, _AXES)).transpose(1, 2).flip(-1)
        found: Tensor = self.into(back)
        return found.transpose(1, 2)


class _OfTheEnd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def encoder_stack(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    width: int = 32,
    heads: int = 4,
    max_depth: int = 6,
) -> DepthStack:
    """Layers of a transformer's encoder over a series of records, read off where it ends.

    Arguments:
        input_shape: ``(3 * records,)``, the axes of a record beside each other.
        outputs: classes, or regression targets.
        width: of a token; the feed-forward part is twice as wide.
        heads: of attention.
        max_depth: layers.
    """
    blocks = [
        nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(max_depth)
    ]
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))
    return DepthStack(_Tokens(width), blocks, head, adapters=_OfTheEnd())
