"""How many bits a weight needs: its posterior spread says which digits carry nothing.

A floating-point number with ``t`` significand bits is right up to a relative error of the unit
round-off ``u(t) = 2^-t``: rounding moves ``w`` by at most ``u(t) |w|``. So the quantity to compare
with ``u`` is the posterior standard deviation *relative to the weight*, which has no unit. The
variance has the unit of a squared weight. Comparing it with ``u``, as the published code does,
gives another answer after the same network is written in other units (the weights of one layer
doubled, those of the next halved), although floating-point digits do not care about units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ...data import PyroccamError

MOST = 23  # bits the published rule searches: t = 1 ... 23
SignificandRule = Literal["relative", "deviation", "published_code"]
ExponentRule = Literal["range", "published_three", "published_code"]


@dataclass(frozen=True)
class LayerBits:
    """Bits of one weight of a layer."""

    significand: int
    exponent: int
    sign: int = 1

    @property
    def total(self) -> int:
        """Bits per kept weight."""
        return self.significand + self.exponent + self.sign


def bit_precision(
    kept: Mapping[str, tuple[Tensor, Tensor]],
    *,
    significand: SignificandRule = "relative",
    exponent: ExponentRule = "range",
) -> dict[str, LayerBits]:
    """Sign, exponent and significand bits of every layer.

    Arguments:
        kept: layer name to means and marginal variances of the weights that are kept, of one
            shape each. A layer may be empty: it needs no bits.
        significand: see :func:`significand_bits`.
        exponent: ``range``: what the exponents of the layer's own weights need, rounded as the rule
            for the significand means it (by ``relative`` to that many bits, by the others to
            multiples of 2^-bits), see :func:`exponent_bits`. ``published_three``: always 3.
            ``published_code``: one number for all layers, see
            :func:`exponent_bits_published_code`.

    Raises:
        PyroccamError: for numbers that are not finite, or where the formula of ``published_code``
            has no value.

    References:
        Louizos, Ullrich, Welling 2017, "Bayesian Compression for Deep Learning"; the ``published``
        rules are those of the authors' tutorial code and of the paper's text.
    """
    bits = {}
    for name, (mean, variance) in kept.items():
        if not mean.numel():
            bits[name] = LayerBits(0, 0, 0)
            continue
        t = significand_bits(mean, variance, rule=significand, name=name)
        if exponent == "range":
            rounded = round_significand if significand == "relative" else round_fixed_point
            e = exponent_bits(rounded(mean, t))
        elif exponent == "published_three":
            e = 3
        else:
            sizes = (_finite(m, n).abs().max().item() for n, (m, _) in kept.items() if m.numel())
            e = exponent_bits_published_code(max(sizes))
        bits[name] = LayerBits(t, e)
    return bits


def significand_bits(
    mean: Tensor, variance: Tensor, *, rule: SignificandRule = "relative", name: str = "layer"
) -> int:
    """Significand bits of one layer, its leading one counted: 1 ... 23, or 0 by published rules.

    Never the 24 of float32: what has no spread at all is rounded by up to 2^-23 of itself.

    Arguments:
        mean, variance: of the kept weights, of one shape; at least one.
        rule:
            * ``relative``: the fewest bits for which the rounding error, at its bound
              ``u(t) |w|``, has a mean square of at most a quarter of one posterior variance:
              ``t = ceil(1/2 log2 mean(w^2 / V)) + 1``. Rounding then costs at most an eighth of a
              nat of posterior density per weight on average. It does not change with the weights'
              unit.
            * ``deviation``: the published count with the standard deviation in place of the
              variance: per weight the number of ``t`` with ``2 sd < 2^-t``, then the mean over
              weights, rounded up. Its ``2^-t`` is an absolute step, so it belongs to
              :func:`round_fixed_point`.
            * ``published_code``: the same with ``2 variance < 2^-t``, as published. The sides
              differ in unit; below 1 a variance is smaller than its root, so it asks for more
              bits.
        name: for error messages.

    Raises:
        PyroccamError: see :func:`bit_precision`.
    """
    w, v = _finite(mean, name), _finite(variance, name)
    if rule == "relative":
        ratio = torch.where(w == 0, 0.0, w.square() / v).mean().item()  # 0 is exact in any bits
        t = MOST if math.isinf(ratio) else 1 + math.ceil(0.5 * math.log2(max(ratio, 2.0**-60)))
        return min(max(t, 1), MOST)
    spread = v.sqrt() if rule == "deviation" else v
    steps = torch.tensor([2.0**-t for t in range(1, MOST + 1)], dtype=torch.float64)
    too_fine = torch.searchsorted(steps.flip(0), 2 * spread.flatten(), right=True)
    return math.ceil((MOST - too_fine).double().mean().item())


def exponent_bits(weights: Tensor) -> int:
    """Bits that tell apart all exponents between the least and the greatest that occur in a layer,
    as it will be stored: rounding can raise an exponent by one. A zero among the weights has no
    exponent and takes a code of its own."""
    w = _finite(weights, "weights")
    used = torch.frexp(w[w != 0]).exponent
    codes = int((w == 0).any())
    if used.numel():
        codes += int(used.max() - used.min()) + 1
    return max(codes - 1, 0).bit_length()


def exponent_bits_published_code(largest: float) -> int:
    """``ceil(log2(log2(max|w|) + 1) + 1)``, as the published code has it.

    It looks at the largest weight of all layers only, not at how small the others get. For 1/2 and
    below the formula has no value.
    """
    if not largest > 0.5:
        raise PyroccamError(f"exponent='published_code' at max|w| = {largest:g}", "more than 1/2")
    return math.ceil(math.log2(math.log2(largest) + 1) + 1)


def round_significand(weights: Tensor, bits: int) -> Tensor:
    """Nearest floating-point number with ``bits`` significand bits (ties to even), same shape.

    The error is at most ``2^-bits |w|``; 24 bits leave a float32 as it is. The exponent is not
    limited. A number that is not finite, before or after, is refused.
    """
    # numpy's ldexp is exact; torch's takes the power in float32, which ends before the weights do.
    mantissa, exponent = np.frexp(_finite(weights, "weights").cpu().numpy())
    digits = np.rint(np.ldexp(mantissa, bits))
    rounded = torch.as_tensor(np.ldexp(digits, exponent - bits)).to(weights)
    return _finite(rounded, "rounded weights", weights.dtype)


def round_fixed_point(weights: Tensor, bits: int) -> Tensor:
    """``floor(w / d + 1/2) d`` with the step ``d = 2^-bits``: the published code's rounding.

    The error is at most half a step, whatever the size of the weight.
    """
    step = 2.0**-bits
    return ((_finite(weights, "weights") / step + 0.5).floor() * step).to(weights.dtype)


def _finite(values: Tensor, name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    values = values.detach().to(dtype)
    if not values.isfinite().all():
        raise PyroccamError(f"{name}: a number is not finite.")
    return values
