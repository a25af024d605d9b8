"""Parameters as functions of one number u in [0, 1]: broken lines, and forms that need less."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.errors import PyroccamError
from ..models.checks import as_number, unknown_name

__all__ = ["FORMS", "FiLM", "Form", "LowRank", "Piecewise", "Place", "make_form", "place"]

PIVOTS = 6
"""Of a broken line, if nobody says how many."""


class Place(NamedTuple):
    """A place among pivots.

    Attributes:
        left: the pivot on its left, ``()``, a whole number.
        share: of the pivot on its right, ``()``; the left one has the rest. Within [0, 1], but
            beyond the first and the last pivot.
    """

    left: Tensor
    share: Tensor


def place(u: Tensor, pivots: int) -> Place:
    """The place of ``u``, ``()``, among pivots that are equally spaced from 0 to 1; outside of
    these, on the line through the nearest two."""
    t = u * (pivots - 1)
    left = t.detach().floor().clamp(0, pivots - 2)
    return Place(left.long(), t - left)


def _between(rows: Tensor, u: Tensor) -> Tensor:
    """The value at ``u`` of a broken line through rows ``(pivots, *)``."""
    where = place(u, len(rows))
    # Not by a product with weights, which a step may find in less than single precision.
    left, right = rows.index_select(0, torch.stack([where.left, where.left + 1]))
    return (1.0 - where.share) * left + where.share * right


class Form:
    """How a parameter depends on u.

    Attributes:
        word: its name.
    """

    word: str

    def begin(self, p: Tensor) -> dict[str, Tensor]:
        """Tensors that are trained, of which the value is ``p`` at every u; one is named ``own``.

        Arguments:
            p: a parameter, as an ordinary guide begins with it.
        """
        raise NotImplementedError

    def value(self, name: str, trained: Mapping[str, Tensor], u: Tensor) -> Tensor:
        """The parameter at u.

        Arguments:
            name: of the parameter; that of a logarithm begins with ``log``.
            trained: what :meth:`begin` gave, as it is by now.
            u: ``()``.
        """
        raise NotImplementedError


class Piecewise(Form):
    """A broken line through values at equally spaced pivots, ``(pivots, *)``."""

    word = "piecewise"

    def __init__(self, pivots: int) -> None:
        self.pivots = pivots

    def begin(self, p: Tensor) -> dict[str, Tensor]:
        return {"own": p.expand(self.pivots, *p.shape).clone()}

    def value(self, name: str, trained: Mapping[str, Tensor], u: Tensor) -> Tensor:
        return _between(trained["own"], u)


class LowRank(Form):
    r"""A matrix and one of rank one, whose vectors are linear in u,

    .. math:: W(u) = W_0 + (a_0 + a_1 u) (b_0 + b_1 u)^T;

    of more dimensions all but the first are taken together. Vectors are linear in u themselves.

    References:
        Grebenkova, Bakhteev, Strijov (ICAART 2023), github.com/Intelligent-Systems-Phystech/
        VarHyperNet.
    """

    word = "low-rank"

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

    word = "film"

    def __init__(self, pivots: int) -> None:
        self.pivots = pivots

    def begin(self, p: Tensor) -> dict[str, Tensor]:
        rows = len(p) if p.dim() else 1
        shift = torch.zeros(self.pivots, rows, dtype=p.dtype, device=p.device)
        return {"own": p.clone(), "shift": shift}

    def value(self, name: str, trained: Mapping[str, Tensor], u: Tensor) -> Tensor:
        own, shift = trained["own"], _between(trained["shift"], u)
        shift = shift.reshape(own.shape[:1] + (1,) * (own.dim() - 1)) if own.dim() else shift[0]
        return own + shift if name.startswith("log") else own * shift.exp()


FORMS = ("piecewise", "linear", LowRank.word, FiLM.word)
"""Words for forms; ``linear`` is the line through two pivots."""


def make_form(word: str, pivots: int | None) -> Form:
    """A form by its word.

    Arguments:
        pivots: of ``piecewise`` and ``film``, 6 by default; the others have none.

    Raises:
        PyroccamError: for another word, fewer than two pivots, or pivots of a form without them.
    """
    if word not in FORMS:
        raise PyroccamError(unknown_name("form of guides.Conditional", str(word), FORMS))
    if word in ("linear", LowRank.word):
        if pivots is not None:
            raise PyroccamError(
                f"guides.Conditional got pivots={pivots!r} for form={word!r}, which has none.\n"
                "Leave pivots out, or give form='piecewise'."
            )
        return LowRank() if word == LowRank.word else Piecewise(2)
    if pivots is None:
        pivots = PIVOTS
    if not (as_number(pivots) >= 2 and float(pivots).is_integer()):
        raise PyroccamError(
            f"guides.Conditional got pivots={pivots!r}.\nGive a whole number of at least 2."
        )
    return Piecewise(int(pivots)) if word == Piecewise.word else FiLM(int(pivots))
