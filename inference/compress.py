"""From the posterior of a Bayesian network to a small plain one: cut, round, count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..models.bayesian import BayesianNetwork
from .cutting.cut import cut
from .cutting.report import CutReport
from .packing.bits import ExponentRule, LayerBits, SignificandRule, bit_precision
from .packing.quantise import FixedPoint, Significand, quantised
from .packing.rates import Rates, group_rates, layers_of, sparse_rates
from .posterior import Moments, mean_network, moments
from .relevance import Irrelevance, irrelevance
from .thresholds import Threshold, choose_thresholds, with_zeros

if TYPE_CHECKING:
    from ..data import Dataset
    from .fit import Fit

__all__ = ["Compressed", "compress", "inside"]


@dataclass(frozen=True)
class Compressed:
    """A small network, and how it came about.

    Attributes:
        net: plain, cut and rounded, in evaluation mode.
        thresholds: by layer; what is above is cut.
        irrelevance: what was compared with them.
        bits: of a weight, by layer.
        rates: the three rates of the published tables. Without groups ``pruning`` counts two
            numbers for each weight that is left, and the pointers of a sparse matrix.
        report: what the cut left of each layer.
    """

    net: nn.Module
    thresholds: dict[str, float]
    irrelevance: dict[str, Irrelevance]
    bits: dict[str, LayerBits]
    rates: Rates
    report: CutReport

    @property
    def nonzero(self) -> int:
        """Weights that are left, those of a group all counted."""
        return self.rates.kept

    def to_json(self) -> dict[str, Any]:
        """The structure for a result file."""
        return {
            "architecture": self.report.architecture,
            "nonzero_percent": self.rates.nonzero_percent,
            "weights": self.nonzero,
            "bits": {name: bits.total for name, bits in self.bits.items()},
            "significand_bits": {name: bits.significand for name, bits in self.bits.items()},
            "rates": {
                name: value if math.isfinite(value) else None
                for name, value in (
                    ("pruning", self.rates.pruning),
                    ("fast_prediction", self.rates.fast),
                    ("maximum", self.rates.maximum),
                )
            },
            "thresholds": {
                name: t if math.isfinite(t) else None for name, t in self.thresholds.items()
            },
            "left_whole": dict(self.report.left_whole),
        }


def compress(
    fit: Fit,
    *,
    threshold: Threshold | None = None,
    tolerance: float = 0.001,
    significand: SignificandRule = "relative",
    exponent: ExponentRule = "range",
) -> Compressed:
    """Cut what the posterior does not need, and round the rest to the digits that it knows.

    The weights are the posterior means. Groups (or, for a prior without groups, single weights)
    whose irrelevance is above the threshold of their layer are zero; what dies of it is cut out.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`.
        threshold: ``validation``: as much is cut as keeps the error on the validation rows within
            ``tolerance`` of that of the whole mean network (regression: the negative
            log-likelihood in nats). ``valley``: where a density of the values is lowest between
            two clusters; a layer without two clusters stays whole. Or numbers, one or by layer.
            By default ``validation``, or ``valley`` where there are no validation rows.
        tolerance: of ``validation``, as a fraction of rows, or in nats.
        significand, exponent: rules for the bits, see :func:`~pyroccam.inference.packing.bits.
            bit_precision`. By the ``relative`` rule weights are rounded to significand bits, by the
            others to multiples of 2^-bits, as those rules mean it.

    Raises:
        TypeError: for a fit of another model.
        ValueError: for a threshold that would cut a whole layer, unknown layers or rules, or
            ``validation`` without validation rows.

    References:
        Louizos, Ullrich, Welling 2017, arXiv:1705.08665.
    """
    model, data = fit.model, fit.data
    if not isinstance(model, BayesianNetwork):
        raise TypeError(
            f"compress needs a fit of models.BayesianNetwork, got one of {type(model).__name__}. "
            "To cut the depth of a learnt-depth network use inference.prune."
        )
    guide: Any = fit.guide
    found = irrelevance(model, guide)
    known = moments(model, guide)
    whole = mean_network(model, guide)
    thresholds = choose_thresholds(threshold, found, whole, model, data, tolerance)
    net = with_zeros(whole, found, thresholds, model).cpu()
    small = cut(net, data.x_train[:2].cpu())
    kept = _kept(small.report, known, net)
    bits = bit_precision(kept, significand=significand, exponent=exponent)
    where = {name: inside(small.net, name) for name in bits}
    # An absolute step belongs to the published rules, digits to the other.
    rounding = Significand if significand == "relative" else FixedPoint
    rounded = {where[name]: rounding(b.significand) for name, b in bits.items()}
    sizes = layers_of(small.net)
    layers = [sizes[where[name]] for name in bits]
    total = model.weights_before
    grouped = all(one.grouped for one in found.values())
    counts = [b.total for b in bits.values()]
    if grouped:
        rates = group_rates(total, layers, counts)
    else:
        rates = sparse_rates(total, layers, [len(kept[name][0]) for name in bits], counts)
    return Compressed(quantised(small.net, rounded), thresholds, found, bits, rates, small.report)


def _kept(
    report: CutReport, known: Mapping[str, Moments], net: nn.Module
) -> dict[str, tuple[Tensor, Tensor]]:
    """Means and variances of the weights that are left, by layer; zeros are not among them."""
    kept = {}
    for name, m in known.items():
        mean, variance = m.mean.cpu(), m.variance.cpu()
        layer: Any = net.get_submodule(name)
        nonzero = layer.weight.detach().cpu() != 0
        part = report.layers.get(name)
        if part is not None:
            rows = part.outputs
            columns = part.inputs if part.inputs_before == mean.shape[1] else None
            mean, variance, nonzero = (
                t[rows] if columns is None else t[rows][:, columns]
                for t in (mean, variance, nonzero)
            )
        kept[name] = (mean[nonzero], variance[nonzero])
    return kept


def inside(net: nn.Module, name: str) -> str:
    """Where a layer is in a cut network: behind a selection of its inputs, if there is one."""
    return f"{name}.1" if isinstance(net.get_submodule(name), nn.Sequential) else name
