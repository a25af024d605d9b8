"""Layers of transformers that always call their parts, as torch's own do not."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from .attention import Attention


class EncoderLayer(nn.Module):
    """An ``nn.TransformerEncoderLayer`` of the same parts, under the same names.

    Torch's own takes the weights of its parts in evaluation mode, and asks which kinds they are.

    References:
        Vaswani et al. 2017, arXiv:1706.03762; Xiong et al. 2020, arXiv:2002.04745, for
        normalisation first.
    """

    def __init__(self, packed: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.norm_first = packed.norm_first
        self.self_attn = Attention(packed.self_attn)
        self.linear1, self.dropout = packed.linear1, packed.dropout
        self.linear2 = packed.linear2
        self.norm1, self.norm2 = packed.norm1, packed.norm2
        self.dropout1, self.dropout2 = packed.dropout1, packed.dropout2
        self.activation = packed.activation

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        masks = src_mask, src_key_padding_mask, is_causal
        if self.norm_first:
            x = src + self._attend(self.norm1(src), *masks)
            return x + self._widened(self.norm2(x))
        x = self.norm1(src + self._attend(src, *masks))
        return self.norm2(x + self._widened(x))

    def _attend(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        out = self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)[0]
        return cast(Tensor, self.dropout1(out))

    def _widened(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.linear1(x)))
        return cast(Tensor, self.dropout2(self.linear2(hidden)))


class Encoder(nn.Module):
    """An ``nn.TransformerEncoder`` of the same layers, under the same names; never nested."""

    def __init__(self, packed: nn.TransformerEncoder) -> None:
        super().__init__()
        self.layers = packed.layers
        self.norm = packed.norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, bool(is_causal))
        return x if self.norm is None else self.norm(x)
