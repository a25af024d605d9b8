"""What is asked of a small network: where a posterior is cut, how its numbers are rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypeVar

from ...data import Between, Count, NotNegative, Options, Positive, Whole
from ..rounding import ExponentRule, SignificandRule

if TYPE_CHECKING:
    from ..training import Trained

TOLERANCE = 0.001
"""Nats of a row that a cut may cost unless something else is asked for."""

NATS = 0.01
"""What a smaller network that is trained again may lose of a row, and in errors."""

SHARES = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)
"""Shares of the weights that networks of a search keep, before what dies of a cut is gone."""

Number = TypeVar("Number")
PerLayer: TypeAlias = Number | Sequence[Number] | Mapping[str, Number]
"""One for all layers, in their order, or by name (:func:`~.thresholds.by_layer`)."""

Deviations: TypeAlias = PerLayer[NotNegative]
Part: TypeAlias = PerLayer[Annotated[float, Between(0.0, 1.0, "(]")]]
IndexBits: TypeAlias = PerLayer[Annotated[int, Between(1, 16)]]
Values: TypeAlias = PerLayer[Annotated[int, Between(2, 2**16)]]


@dataclass(frozen=True)
class _Rounded(Options):
    """Where a cut is, and what it leaves.

    Attributes:
        round_to: of each tensor are left as many features as a multiple of it, or all.
    """

    round_to: Count = field(default=1, kw_only=True)


@dataclass(frozen=True)
class ByValidation(_Rounded):
    """As much is cut as the validation rows allow.

    Attributes:
        nats: by which their mean negative log-likelihood may be above that of the whole network of
            the means.
    """

    nats: NotNegative = TOLERANCE


@dataclass(frozen=True)
class Valley(_Rounded):
    """Cut where a density of the irrelevance is lowest between two clusters; a layer without two
    clusters stays whole."""


@dataclass(frozen=True)
class Noise(_Rounded):
    """Cut scales whose variance is larger than their squared mean (log alpha of 0); the least noisy
    of a layer stays."""


@dataclass(frozen=True)
class Thresholds(_Rounded):
    """Cut what is more irrelevant than a number.

    Attributes:
        at: one number, or numbers by layer, by the names now or before anything was cut, or by
            ``first``, ``last``, ``linear`` or ``convolution``
            (:func:`~.thresholds.by_layer`); a layer that is not named stays whole.
    """

    at: float | Mapping[str, float]


@dataclass(frozen=True)
class Search(_Rounded):
    """The smallest network that is shown not to be worse than the whole one, both trained as
    numbers (:func:`~pyroccam.inference.shrinking.decision.smallest`).

    Attributes:
        epochs: passes of each training.
        nats: that it may lose of a row on average, and, in a classification, as a share of rows
            that it gets wrong beside: 0.01 is one of a hundred. With 95 % certainty it loses no
            more than two and a half times as much. Without them it may lose whatever it does, and
            what that is is said.
        plain: the whole network, trained as numbers; or else the posterior means are, of a point
            estimate as they are.
        lr: learning rate of each training; that of the plain network if left out, or 0.003 where
            that was trained elsewhere, which is much for a network that other data have trained.
        batch_size: rows in a minibatch of each training; as many as in the fit if left out.
        shares: of the weights, before what dies of a cut is gone, that networks keep, in the order
            in which they are tried.
        units: whole units go ``first``, the least of all layers, and weights from the first size
            that loses too much on; or units ``only``, and that size is the last; ``even`` are units
            only, too, the same share of every layer.
        teacher: what a smaller network learns from along with labels: what the ``posterior``
            predicts, or the ``plain`` network, and then what its blocks give, too
            (:class:`~pyroccam.inference.training.hidden_states.HiddenStates`).
        out: a folder that keeps each network that was trained, so that a search which was
            interrupted goes on.
    """

    epochs: Count = 40
    nats: NotNegative | None = NATS
    plain: Trained | None = field(default=None, repr=False)
    lr: Positive | None = None
    batch_size: Count | None = None
    shares: Sequence[Annotated[float, Between(0.0, 1.0, "(]")]] = SHARES
    units: Literal["first", "only", "even"] = "first"
    teacher: Literal["posterior", "plain"] = "posterior"
    out: str | Path | None = None


Cut = ByValidation | Valley | Noise | Thresholds | Search


@dataclass(frozen=True)
class Code(Options):
    """How the numbers that are left are rounded.

    Attributes:
        epochs: passes in which what is left is trained as numbers first
            (:func:`~pyroccam.inference.training.ordinary.retrain`). The bits are those that the
            posterior knows, or more where rounding would cost too much.
        rest: also round what is no random weight (biases, scales, tables), to as few digits as move
            the loss by 0.001 nats at most
            (:func:`~pyroccam.inference.rounding.quantise.rest_bits`).
    """

    epochs: Whole = field(default=0, kw_only=True)
    rest: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Digits(Code):
    """As many digits as the posterior knows.

    Attributes:
        significand, exponent: rules for the bits, see
            :func:`~pyroccam.inference.rounding.bits.bit_precision`. By the ``relative`` rule
            weights are rounded to significand bits, by the others to multiples of 2^-bits, as those
            rules mean it.
    """

    significand: SignificandRule = "relative"
    exponent: ExponentRule = "range"


@dataclass(frozen=True)
class Steps(Code):
    """Whole multiples of a step in each layer, near what the posterior knows or cheap to send
    (:func:`~pyroccam.inference.rounding.pricing.priced`), at the highest price that changes what is
    predicted of a validation row by 0.001 nats at most, on average. Units of which nothing is left
    by that stay, as zeros."""


USUAL = Digits()


@dataclass(frozen=True)
class Codebook(Code):
    """Few values for each layer, found by k-means.

    Attributes:
        values: how many there are beside zero, at most. For numbers by layer see
            :func:`~pyroccam.inference.shrinking.thresholds.by_layer`; a layer that is not named is
            rounded to ``Digits()``.
    """

    values: Values = 16
