"""Attention as linear layers, and what is between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data import PyroccamError


class Heads(nn.Module):
    r"""The attention of every head, of queries, keys and values that are computed already.

    .. math:: o_h = \mathrm{softmax}\big(s \, q_h k_h^T + m\big) \, v_h

    Written out and not a fused kernel, which could neither be differentiated twice nor pass with
    the weights of several draws at once.

    Arguments:
        query_sizes: features of the queries, and of the keys, that belong to each head.
        value_sizes: features of the values of each head; a head without any is passed over.
        scale: s; one over the root of the features that a head of the keys had at first.
        p: dropout of the attention, in training.

    References:
        Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
    """

    def __init__(
        self, query_sizes: Sequence[int], value_sizes: Sequence[int], scale: float, p: float = 0.0
    ) -> None:
        super().__init__()
        self.query_sizes, self.value_sizes = list(query_sizes), list(value_sizes)
        self.scale, self.p = scale, p

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:
        """Outputs ``(B, T, values)``, head after head, for queries ``(B, T, queries)``, keys
        ``(B, S, queries)`` and values ``(B, S, values)``.

        Arguments:
            mask: ``(T, S)`` or ``(B * heads, T, S)``: true where nothing is looked at, or numbers
                that are added.
            padding: ``(B, S)``, the same for the keys.
        """
        added = _added(query, len(self.query_sizes), mask, padding)
        even = len({*self.query_sizes}) == len({*self.value_sizes}) == 1
        if even:
            q, k, v = (
                t.unflatten(-1, (len(self.query_sizes), -1)).transpose(1, 2)
                for t in (query, key, value)
            )
            return self._attend(q, k, v, added).transpose(1, 2).flatten(2)
        found = []
        each = zip(
            query.split(self.query_sizes, -1),
            key.split(self.query_sizes, -1),
            value.split(self.value_sizes, -1),
            strict=True,
        )
        for h, (q, k, v) in enumerate(each):
            if v.shape[-1]:
                own = None if added is None else added[:, min(h, added.shape[1] - 1)]
                found.append(self._attend(q, k, v, own))
        return torch.cat(found, -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None) -> Tensor:
        probs = _probabilities(q, k, added, self.scale)
        return nn.functional.dropout(probs, self.p, self.training) @ v

    def extra_repr(self) -> str:
        return f"{self.query_sizes}, {self.value_sizes}, scale={self.scale:.3g}, p={self.p}"


class AttentionWeights(nn.Module):
    """The probabilities with which heads of equal sizes look at keys: ``(B, T, S)`` averaged over
    the heads, or ``(B, heads, T, S)``; see :class:`Heads`."""

    def __init__(self, heads: int, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
        average: bool = True,
    ) -> Tensor:
        q, k = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (query, key))
        probs = _probabilities(q, k, _added(query, self.heads, mask, padding), self.scale)
        return probs.mean(1) if average else probs


def _probabilities(q: Tensor, k: Tensor, added: Tensor | None, scale: float) -> Tensor:
    scores = (q * scale) @ k.transpose(-2, -1)
    return (scores if added is None else scores + added).softmax(-1)


def _added(query: Tensor, heads: int, *masks: Tensor | None) -> Tensor | None:
    """The masks as numbers that are added to scores, ``(B or 1, heads or 1, T or 1, S)``."""
    total: Tensor | None = None
    for which, mask in enumerate(masks):
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -torch.inf)
        if which == 1:  # of the keys
            mask = mask[:, None, None, :]
        else:
            mask = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (-1, heads))
        total = mask if total is None else total + mask
    return total


class Attention(nn.Module):
    """An ``nn.MultiheadAttention`` without ``bias_k`` and ``add_zero_attn``, whose four weights are
    linear layers: ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``; called as that is, with
    batches."""

    def __init__(self, packed: nn.MultiheadAttention) -> None:
        super().__init__()
        self.batch_first, self.embed_dim = packed.batch_first, packed.embed_dim
        self.num_heads = packed.num_heads
        if packed.in_proj_weight is None:
            weights = (packed.q_proj_weight, packed.k_proj_weight, packed.v_proj_weight)
        else:
            weights = packed.in_proj_weight.chunk(3)
        biases = [None] * 3 if packed.in_proj_bias is None else packed.in_proj_bias.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = map(linear, weights, biases)
        self.out_proj = linear(packed.out_proj.weight, packed.out_proj.bias)
        sizes, scale = [packed.head_dim] * packed.num_heads, packed.head_dim**-0.5
        self.heads = Heads(sizes, sizes, scale, packed.dropout)
        self.weights = AttentionWeights(packed.num_heads, scale)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs, and the weights if they are needed (without dropout); ``is_causal`` is a hint on
        the mask, which has to be given."""
        if is_causal and attn_mask is None:
            raise PyroccamError("is_causal=True says what attn_mask= is: give the mask too.")
        if not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        out = self.out_proj(self.heads(q, k, v, attn_mask, key_padding_mask))
        if not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        return out, self.weights(q, k, attn_mask, key_padding_mask, average_attn_weights)


def linear(weight: Tensor, bias: Tensor | None, kind: type[nn.Linear] = nn.Linear) -> Any:
    """A linear layer with these numbers, a copy of them."""
    made = kind(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return made
