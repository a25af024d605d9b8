"""Recurrent layers whose weights are two linear maps for each direction of each layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...data import PyroccamError
from .attention import linear

_KINDS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "RNN_TANH": (torch.rnn_tanh, 1, 0),
    "RNN_RELU": (torch.rnn_relu, 1, 0),
    "GRU": (torch.gru, 3, 2),
    "LSTM": (torch.lstm, 4, 2),
}
GATES = {kind: (gates, candidate) for kind, (_, gates, candidate) in _KINDS.items()}
"""Rows of the weights for each unit, and which of them makes the candidate: a unit whose candidate
is zero at every step stays zero. By kind of cell."""


class Matrix(nn.Linear):
    """A linear map that is used at every step of a sequence: a call gives its weight and bias.

    A random one is drawn once for the whole sequence. Noise of its own at every step, as local
    reparameterisation has it, would be another model: one of weights that change in time.
    """

    def forward(self) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return self.weight, self.bias


class Cell(nn.Module):
    """One direction of one recurrent layer, over whole sequences.

    Arguments:
        kind: as ``nn.RNN`` calls its modes.
        ih: of the inputs, ``(gates * units, inputs)``.
        hh: of the units at the step before, ``(gates * units, units)``.
        reverse: from the last step to the first.
    """

    def __init__(self, kind: str, ih: Matrix, hh: Matrix, reverse: bool) -> None:
        super().__init__()
        self.kind, self.reverse = kind, reverse
        self.ih, self.hh = ih, hh

    def forward(
        self, x: Tensor, hidden: Tensor | None = None, memory: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Units at every step ``(B, T, units)``, those at the step that comes last ``(B, units)``,
        and for an LSTM its memory there, for inputs ``(B, T, inputs)``.

        Arguments:
            hidden, memory: before the first step, ``(B, units)``; zeros by default.
        """
        run = _KINDS[self.kind][0]
        ih, bias = self.ih()
        hh, own_bias = self.hh()
        weights = [ih, hh] if bias is None else [ih, hh, bias, own_bias]
        before = [x.new_zeros(1, x.shape[0], hh.shape[1]) if h is None else h[None]
                  for h in (hidden, memory)]  # fmt: skip
        x = x.flip(1) if self.reverse else x
        first = before if self.kind == "LSTM" else before[0]
        found = run(x, first, weights, bias is not None, 1, 0.0, self.training, False, True)
        out = found[0].flip(1) if self.reverse else found[0]
        if self.kind == "LSTM":
            return out, found[1][0], found[2][0]
        return out, found[1][0]

    def extra_repr(self) -> str:
        return f"{self.kind}{', reverse' if self.reverse else ''}"


class Recurrent(nn.Module):
    """An ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM`` whose weights are :class:`Matrix` modules, named as
    torch names its weights: ``l0.ih``, ``l0.hh``, ``l0_reverse.ih``, ``l1.ih`` and so on.

    Called as torch's is, with batches of sequences, and gives what that gives; the last states one
    by one, in a tuple, where a cut has left layers of different numbers of units.
    """

    def __init__(self, packed: nn.RNNBase) -> None:
        super().__init__()
        self.batch_first, self.layers = packed.batch_first, packed.num_layers
        self.remembers = packed.mode == "LSTM"
        self.hidden_size, self.bidirectional = packed.hidden_size, packed.bidirectional
        self.dropout = nn.Dropout(packed.dropout)
        self.suffixes = ["", "_reverse"] if packed.bidirectional else [""]
        for layer in range(packed.num_layers):
            for suffix in self.suffixes:
                ih, hh = (
                    linear(
                        getattr(packed, f"weight_{which}_l{layer}{suffix}"),
                        getattr(packed, f"bias_{which}_l{layer}{suffix}", None),
                        Matrix,
                    )
                    for which in ("ih", "hh")
                )
                cell = Cell(packed.mode, ih, hh, bool(suffix))
                self.add_module(f"l{layer}{suffix}", cell)

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if isinstance(input, PackedSequence):
            found = "a PackedSequence for random recurrent weights"
            raise PyroccamError(found, "the padded tensor", "leave the layer out by layers=[...]")
        x = input if self.batch_first else input.transpose(0, 1)
        last: list[Tensor] = []
        memories: list[Tensor] = []
        for layer in range(self.layers):
            outs = []
            for suffix in self.suffixes:
                first: tuple[Tensor, ...] = ()
                if hx is not None:
                    states = (hx[0], hx[1]) if self.remembers else (hx,)
                    first = tuple(state[len(last)] for state in states)
                found = getattr(self, f"l{layer}{suffix}")(x, *first)
                outs.append(found[0])
                last.append(found[1])
                if self.remembers:
                    memories.append(found[2])
            x = outs[0] if len(outs) == 1 else torch.cat(outs, -1)
            if layer < self.layers - 1:
                x = self.dropout(x)
        out = x if self.batch_first else x.transpose(0, 1)
        units = {cell.hh.in_features for cell in self.modules() if isinstance(cell, Cell)}
        whole: Any = torch.stack if len(units) == 1 else tuple
        return out, (whole(last), whole(memories)) if self.remembers else whole(last)
