"""Posteriors as functions of the weight of the KL that need less memory than broken lines."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pyroccam.guides import Conditional
from pyroccam.guides.forms import Form, between_pivots
from torch import Tensor

__all__ = ["FORMS", "FiLM", "LowRank", "OfLowRank", "WithFiLM"]


class LowRank(Form):
    r"""A matrix and one of rank one, whose vectors are linear in u,

    .. math:: W(u) = W_0 + (a_0 + a_1 u) (b_0 + b_1 u)^T;

    of more dimensions all but the first are taken together. Vectors are linear in u themselves.

    References:
        Grebenkova, Bakhteev, Strijov (ICAART 2023), github.com/Intelligent-Systems-Phystech/
        VarHyperNet.
    """

    def begin(self, p: Tensor) -> dict[str, Tensor]:
        if p.dim() < 2:
            return {"own": p.clone(), "slope": torch.zeros_like(p)}
        rows, columns = len(p), p[0].numel()
        right = torch.randn(2, columns, dtype=p.dtype) / math.sqrt(columns)
        return {
            "own": p.clone(),
            "left": torch.zeros(2, rows, dtype=p.dtype, device=p.device),
            "right": right.to(p.device),
        }

    def value(self, name: str, trained: Mapping[str, Tensor], u: Tensor) -> Tensor:
        own = trained["own"]
        if own.dim() < 2:
            return own + u * trained["slope"]
        left, right = (trained[side][0] + u * trained[side][1] for side in ("left", "right"))
        return own + torch.outer(left, right).reshape(own.shape)


class FiLM(Form):
    """One parameter for all u, of which every row is multiplied by a factor; to a logarithm a
    number is added. Factors (their logarithms) and numbers lie on broken lines, ``(pivots, rows)``.

    References:
        Perez, Strub, de Vries, Dumoulin, Courville 2018, FiLM, arXiv:1709.07871; MacKay, Vicol,
        Lorraine, Duvenaud, Grosse 2019, Self-tuning networks, arXiv:1903.03088, scale rows by
        hyperparameters.
    """

    def begin(self, p: Tensor) -> dict[str, Tensor]:
        rows = len(p) if p.dim() else 1
        shift = torch.zeros(self.pivots, rows, dtype=p.dtype, device=p.device)
        return {"own": p.clone(), "shift": shift}

    def value(self, name: str, trained: Mapping[str, Tensor], u: Tensor) -> Tensor:
        own, shift = trained["own"], between_pivots(trained["shift"], u)
        shift = shift.reshape(own.shape[:1] + (1,) * (own.dim() - 1)) if own.dim() else shift[0]
        return own + shift if name.startswith("log") else own * shift.exp()


class OfLowRank(Conditional):
    """With parameters of :class:`LowRank`."""

    form = LowRank


class WithFiLM(Conditional):
    """With parameters of :class:`FiLM`."""

    form = FiLM


FORMS: dict[str, type[Conditional]] = {
    "piecewise": Conditional,
    "linear": Conditional,
    "low-rank": OfLowRank,
    "film": WithFiLM,
}
"""By word; ``linear`` is the line through two pivots."""
