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
from .cutting.masks import Mask, apply_masks, masked
from .cutting.report import CutReport
from .packing.bits import ExponentRule, LayerBits, SignificandRule, bit_precision
from .packing.quantise import FixedPoint, Significand, quantised
from .packing.rates import Layer, Rates, csc_pointers, group_rates, layers_of, sparse_pruning
from .posterior import Moments, mean_network, moments
from .predict import evaluate_outputs, streamed
from .relevance import Irrelevance, irrelevance, search, valley

if TYPE_CHECKING:
    from ..data import Dataset
    from .fit import Fit

__all__ = ["Compressed", "Threshold", "compress", "evaluate_net"]

Threshold = Literal["validation", "valley"] | float | Mapping[str, float]


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
    thresholds = _thresholds(threshold, found, whole, model, data, tolerance)
    net = _with_zeros(whole, found, thresholds, model).cpu()
    small = cut(net, data.x_train[:2].cpu())
    kept = _kept(small.report, known, net)
    bits = bit_precision(kept, significand=significand, exponent=exponent)
    where = {name: _inside(small.net, name) for name in bits}
    # An absolute step belongs to the published rules, digits to the other.
    rounding = Significand if significand == "relative" else FixedPoint
    rounded = {where[name]: rounding(b.significand) for name, b in bits.items()}
    sizes = layers_of(small.net)
    layers = [sizes[where[name]] for name in bits]
    total = sum(m.mean.numel() for m in known.values())
    grouped = all(one.grouped for one in found.values())
    counts = [b.total for b in bits.values()]
    if grouped:
        rates = group_rates(total, layers, counts)
    else:
        kept_weights = sum(len(mean) for mean, _ in kept.values())
        rates = _sparse_rates(total, kept_weights, layers)
    return Compressed(quantised(small.net, rounded), thresholds, found, bits, rates, small.report)


def _thresholds(
    asked: Threshold | None,
    found: Mapping[str, Irrelevance],
    whole: nn.Module,
    model: BayesianNetwork,
    data: Dataset,
    tolerance: float,
) -> dict[str, float]:
    if asked is None:
        asked = "validation" if len(data.x_val) else "valley"
    if isinstance(asked, Mapping):
        unknown = sorted({*asked} - {*found})
        if unknown:
            raise ValueError(f"No Bayesian layer {unknown[0]!r}; there are {', '.join(found)}.")
        return {name: float(asked.get(name, math.inf)) for name in found}
    if not isinstance(asked, str):
        return dict.fromkeys(found, float(asked))
    if asked == "valley":
        clusters = {name: valley(one.values) for name, one in found.items()}
        return {name: math.inf if t is None else t for name, t in clusters.items()}
    if asked != "validation":
        raise ValueError(
            "threshold must be 'validation', 'valley', a number or numbers by layer; got "
            f"{asked!r}."
        )
    if not len(data.x_val):
        raise ValueError(
            "threshold='validation' needs validation rows, and the data has none: load it with a "
            "validation split, or use threshold='valley'."
        )

    def error(thresholds: Mapping[str, float]) -> float:
        net = _with_zeros(whole, found, thresholds, model)
        metrics = evaluate_net(net, model, data, "val")
        return metrics["nll"] if "rmse" in metrics else 1.0 - metrics["accuracy"]

    def size(thresholds: Mapping[str, float]) -> float:
        parts = [
            float((one.values <= thresholds[name]).double().mean())
            * model.layers[name].affine.shape.weight.numel()
            for name, one in found.items()
        ]
        return sum(parts)

    limit = error(dict.fromkeys(found, math.inf)) + tolerance
    values = {name: one.values for name, one in found.items()}
    # A rounding of the error must not decide.
    return search(values, error, limit=limit + 1e-9, size=size)


def _with_zeros(
    whole: nn.Module,
    found: Mapping[str, Irrelevance],
    thresholds: Mapping[str, float],
    model: BayesianNetwork,
) -> nn.Module:
    """The mean network with zeros for what is above the thresholds."""
    groups: dict[str, Mask] = {}
    weights: dict[str, Tensor] = {}
    for name, one in found.items():
        keep = one.values <= thresholds[name]
        if not keep.any():
            raise ValueError(
                f"The threshold {thresholds[name]:g} would cut the whole of layer {name!r}: the "
                f"least {one.statistic} of its {keep.numel()} is {float(one.values.min()):.3g}. "
                "Use a larger threshold for it, or train longer or with a weaker prior."
            )
        if keep.all():
            continue
        if not one.grouped:
            weights[name] = keep
        elif model.layers[name].affine.shape.output_groups:
            groups[name] = Mask(outputs=keep)
        else:
            groups[name] = Mask(inputs=keep)
    return apply_masks(masked(whole, groups), weights).net


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


def _inside(net: nn.Module, name: str) -> str:
    """Where a layer is in the cut network: behind a selection of its inputs, if there is one."""
    return f"{name}.1" if isinstance(net.get_submodule(name), nn.Sequential) else name


def _sparse_rates(total: int, nonzero: int, layers: list[Layer]) -> Rates:
    """Of single weights: 32 bits for each, and as many for where it is."""
    pruning = sparse_pruning(total, nonzero, csc_pointers(layers))
    return Rates(nonzero, total, 100 * nonzero / total, pruning, math.nan, math.nan)


@torch.no_grad()
def evaluate_net(
    net: nn.Module, model: BayesianNetwork, data: Dataset, split: str = "test"
) -> dict[str, float]:
    """Metrics of a plain network on a split of the data set.

    Arguments:
        net: gives what the likelihood of ``model`` takes.
        model: of which it was made.
        data: with the split.
    """
    x, y = data.split(split)
    outputs = streamed(lambda part: net(part)[None], x)
    one = torch.ones(1, device=x.device)
    return evaluate_outputs(outputs, one, model.likelihood, y, data.y_std)
