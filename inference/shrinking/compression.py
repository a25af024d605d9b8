"""A small plain network from the posterior of a Bayesian one: cut, round, count."""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ...data import PyroccamError
from ...models import BayesianNetwork, feed_like, unfed
from ...models.networks import without_statistics
from ...models.plain import torch_only
from ..cutting import ROWS, CutReport, cut, inside
from ..files import Small
from ..posterior import Layer as Moments
from ..posterior import Presentable, evaluate_net
from ..rounding import (
    MOST,
    Codebook,
    FixedPoint,
    Layer,
    LayerBits,
    Multiples,
    Rates,
    Rounding,
    Significand,
    bit_precision,
    compression_rates,
    layers_of,
    priced,
    quantised,
    rest_bits,
)
from ..training import Trained, look, retrain, row_changes, tempered
from .decision import decide, kept_of, mean_loss, needed_tolerance, smallest
from .depth import settled
from .narrowing import taken
from .options import TOLERANCE, USUAL, Code, Cut, Digits, PerLayer, Search, Steps
from .relevance import Irrelevance
from .thresholds import by_layer
from .weight_sharing import levels_of, mixtures

if TYPE_CHECKING:
    from ...data import Dataset
    from ..training import Fit


_LINE = 16  # layers whose sizes are listed


@dataclass(frozen=True, kw_only=True)
class Report(CutReport, Presentable):
    """What a cut left of each layer, and the digits of it.

    Attributes:
        thresholds: by layer; what is above is cut. Empty for a point estimate, but for a search.
        irrelevance: what was compared with them.
        bits: of a weight, by layer; of an index, where weights share values.
        rates: the three rates of the published tables. Without groups they count where weights are,
            too. Where weights share values, ``maximum`` counts their own codebooks, and there is no
            ``fast``: values would have to be looked up.
        retrained: what training the cut network further has changed, if that was asked for.
        temperature: by which its logits were divided then.
        units: share of the weights in the tensors of the units that were kept then.
        even: they are the same share of each layer's.
        warnings: that a cut had to be weakened to leave a network, or costs much.
    """

    thresholds: dict[str, float]
    irrelevance: dict[str, Irrelevance]
    bits: dict[str, LayerBits]
    rates: Rates
    retrained: Trained | None = None
    temperature: float = 1.0
    units: float = 1.0
    even: bool = False
    warnings: tuple[str, ...] = ()

    title = "What is left of each layer"

    @property
    def nonzero(self) -> int:
        """Weights that are left, those of a group all counted."""
        return self.rates.kept

    @property
    def choice(self) -> str:
        return self.architecture

    def sentences(self) -> list[str]:
        (row,) = self.rows()
        percent = self.rates.nonzero_percent
        rates = ", ".join(f"{name} {row[name]:.3g}" for name in self._rates() if name in row)
        return [
            f"{'Left are' if percent < 100 else 'Nothing was cut:'} {row['left']} filters or "
            f"inputs, {self.nonzero:,} weights of the compressed layers ({percent:.1f} %), of "
            f"{row['bits']} bits.",
            f"Compression rates as papers count them: {rates}.",
            *(f"Layer {name} was left whole: {why}" for name, why in self.left_whole.items()),
            *(f"Layer {name}: {why}" for name, why in self.zeros.items()),
        ]

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "left": _in_short(self.sizes),
                "bits": _in_short([bits.total for bits in self.bits.values()]),
                "weights": self.nonzero,
                "% of them": round(self.rates.nonzero_percent, 2),
                **{name: rate for name, rate in self._rates().items() if math.isfinite(rate)},
            }
        ]

    def _rates(self) -> dict[str, float]:
        return {
            "pruning": self.rates.pruning,
            "fast prediction": self.rates.fast,
            "maximum": self.rates.maximum,
        }

    def to_json(self) -> dict[str, Any]:
        rates = {name.replace(" ", "_"): rate for name, rate in self._rates().items()}
        return {
            "architecture": self.architecture,
            "nonzero_percent": self.rates.nonzero_percent,
            "weights": self.nonzero,
            "bits": {name: bits.total for name, bits in self.bits.items()},
            "significand_bits": {name: bits.significand for name, bits in self.bits.items()},
            "rates": _finite(rates),
            "thresholds": _finite(self.thresholds),
            "left_whole": dict(self.left_whole),
            **({} if self.retrained is None else {"retrained": self.retrained.to_json()}),
            "temperature": self.temperature,
            "units": self.units,
            "even": self.even,
        }


def _in_short(numbers: Sequence[int]) -> str:
    """``278-98-13``; of more layers than a line holds from how many to how many."""
    if len(numbers) <= _LINE:
        return "-".join(map(str, numbers))
    return f"{min(numbers):,} to {max(numbers):,} (in {len(numbers)} layers)"


def _finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def compressed(fit: Fit, asked: Cut | None = None, code: Code | None = None) -> Small:
    """What is left of a fit over weights, rounded; see :func:`~pyroccam.inference.shrink`."""
    code = USUAL if code is None else code
    books = getattr(code, "values", None)
    rule = code if books is None else USUAL
    if isinstance(rule, Steps) and (fit.guide.traits.point or not len(fit.data.x_val)):
        raise PyroccamError(f"code={rule}", "a posterior, and validation rows")
    trains = isinstance(asked, Search) or code.epochs > 0
    if trains and (fit.guide.steps or levels_of(fit.model)):
        raise PyroccamError("Weights on levels, or of whole steps, would leave them when trained")
    if isinstance(asked, Search) and fit.guide.traits.point and mixtures(fit.model):
        raise PyroccamError(f"cut={asked} of weights that gather around values", "none")
    fit, again, temperature = settled(fit), None, 1.0
    if isinstance(asked, Search):
        decision, again = smallest(fit, asked)
    else:
        decision = decide(fit, asked, to_levels=True)
    model, guide, report = decision.model, decision.guide, decision.report
    small, found = decision.net, decision.irrelevance
    if trains:
        if _shared(model, decision.sizes):
            raise PyroccamError("Weights that share values would part when trained")
        if code.epochs:
            again = retrain(small, fit, code.epochs)
        assert again is not None
        small, temperature = tempered(again.net, fit)
    shared = _shared(model, decision.sizes, books)
    steps = dict(guide.steps)
    variances = _variances(report, decision.layers, model)
    digits = rule if isinstance(rule, Digits) else USUAL
    rounded_ones = {
        n: v
        for n, v in variances.items()
        if n not in shared and n not in steps and _weights(small, n).any()
    }
    if not rounded_ones and (digits.significand, digits.exponent) != ("relative", "range"):
        raise PyroccamError(f"code={rule}", "weights that are neither shared nor whole steps")
    if isinstance(rule, Steps):
        small, found_steps = _at_a_price(small, rounded_ones, fit)
        steps |= found_steps
    kept = {n: (w[w != 0], variances[n][w != 0]) for n in variances for w in [_weights(small, n)]}
    bits = bit_precision(kept, significand=digits.significand, exponent=digits.exponent)
    where = {name: inside(small, name) for name in bits}
    # An absolute step belongs to the published rules, digits to the other.
    by_digits = digits.significand == "relative"
    rounding = Significand if by_digits else FixedPoint

    def of_digits(more: int) -> dict[str, Rounding]:
        return {where[n]: rounding(b.significand + more) for n, b in bits.items() if b.total}

    # Weights that were trained once more need not end where the posterior knows them.
    known = again is None or isinstance(rule, Steps)
    more = 0 if known else _more_digits(small, of_digits, bits, fit)
    rounded = of_digits(more)
    tables = 0
    for n, b in bits.items():
        if not b.total:
            continue
        if n in shared:
            index = _index_bits(shared[n])
            bits[n], rounded[where[n]] = LayerBits(index, 0, 0), Codebook(shared[n])
            tables += 2**index
        elif n in steps:
            most = int((kept[n][0].abs().max() / steps[n]).round())
            bits[n], rounded[where[n]] = LayerBits(most.bit_length(), 0), Multiples(steps[n])
        else:
            bits[n] = replace(b, significand=b.significand + more)
    sizes = layers_of(small)
    # Of a layer on a dead branch only zeros are left, which hold its place and are no weights.
    layers = [sizes[where[name]] if len(kept[name][0]) else Layer(0, 0) for name in bits]
    nonzero = [len(kept[name][0]) for name in bits]
    dense = nonzero == [layer.weights for layer in layers]
    dense |= bool(found) and all(one.grouped for one in found.values())
    rates = compression_rates(
        model.weights_before,
        layers,
        [b.total for b in bits.values()],
        None if dense else nonzero,
        tables or None,
    )
    if model.parameters_before != report.parameters_before:
        report = replace(report, parameters_given=model.parameters_before)
    small = without_statistics(quantised(small, rounded))
    small = unfed(torch_only(small, fit.data.head(2)[0].cpu()))
    if code.rest:
        small = _rest_rounded(small, fit, {*where.values()})
    said = Report(
        **vars(report),
        thresholds=decision.thresholds,
        irrelevance=found,
        bits=bits,
        rates=rates,
        retrained=again,
        temperature=temperature,
        units=decision.units,
        even=decision.even,
        warnings=tuple(decision.warnings),
    )
    return Small(small, said, said.warnings, fit.data, model.likelihood)


def plain_network(fit: Fit, net: nn.Module) -> Small:
    """A network that was trained as numbers beside a fit, as it is handed back: cut where it has
    zeros, at the temperature that suits the validation rows, with as few digits as they allow."""
    example = fit.data.head(ROWS)[0].cpu()
    net, report = cut(net.cpu(), example)
    net = without_statistics(tempered(net, fit)[0])
    names = dict.fromkeys(layers_of(net), LayerBits(1, 0))

    def of_digits(more: int) -> dict[str, Rounding]:
        return {name: Significand(1 + more) for name in names}

    if len(fit.data.x_val):
        net = quantised(net, of_digits(_more_digits(net, of_digits, names, fit)))
        net = _rest_rounded(net, fit, names)
    return Small(unfed(torch_only(net, example)), report, (), fit.data, fit.model.likelihood)


def tolerance_of(net: nn.Module, fit: Fit, plain: Trained) -> float:
    """The :func:`needed_tolerance` of a network beside one that was trained as numbers; none if it
    is no worse on average. Thresholds of the network may have been chosen by the same rows."""
    seen = look(feed_like(copy.deepcopy(net), plain.net), fit)
    return tolerance_beside(seen[1:], plain.held_out, fit.data)


def tolerance_beside(one: Tensor, other: Tensor, data: Dataset) -> float:
    """The :func:`needed_tolerance` of a network that was not searched for, beside another; none if
    it is no worse on average."""
    if float(mean_loss(one, other, data).max()) <= 0.0:
        return 0.0
    return needed_tolerance(one, other, data)


def _shared(
    model: BayesianNetwork, sizes: Mapping[str, int], asked: PerLayer[int] | None = None
) -> dict[str, int]:
    found = {
        name: 2 ** _index_bits(size)
        for name, size in sizes.items()
        if not {*model.layers[name].latents()} - {"weight", "bias"}  # no scales
    }
    if asked is not None:
        found |= {name: int(n) for name, n in by_layer("values", asked, model).items()}
    return found


def _index_bits(values: int) -> int:
    return max(1, (values - 1).bit_length())


def _rest_rounded(net: nn.Module, fit: Fit, layers: Collection[str]) -> nn.Module:
    """With few digits of what is no weight of these layers, tables among it, judged by the rows
    with which thresholds are chosen."""
    data = fit.data
    split = "val" if len(data.x_val) else "train"

    def nll(one: nn.Module) -> float:
        return evaluate_net(one, fit.model, data, split)["nll"]

    named = (n for n, module in net.named_modules() if isinstance(module, nn.Embedding))
    tables = {f"{name}.weight" for name in named if name not in layers}
    return quantised(net, rest_bits(net.to(data.device), nll, TOLERANCE, tables)).cpu()


def _more_digits(
    small: nn.Module,
    rounding: Callable[[int], dict[str, Rounding]],
    bits: Mapping[str, LayerBits],
    fit: Fit,
) -> int:
    """Further significand bits with which rounding changes what is predicted of a validation row by
    no more than a cut may cost by default, on average."""
    most = MOST - max((b.significand for b in bits.values()), default=MOST)
    for more in range(most):
        rounded = quantised(small, rounding(more))
        if float(row_changes(small, rounded, fit).mean()) <= TOLERANCE:
            return more
    return most


_HALVINGS = 24  # of the price of a nat, from 1
_PARTS = 4  # of a halving


def _at_a_price(
    small: nn.Module, variances: Mapping[str, Tensor], fit: Fit
) -> tuple[nn.Module, dict[str, float]]:
    """A network whose weights are whole multiples of steps, and these, at the highest price that
    changes what is predicted of a validation row no more than a cut may cost by default."""

    def at(parts: int) -> tuple[nn.Module, dict[str, float]]:
        net, steps = copy.deepcopy(small), {}
        for name, variance in variances.items():
            layer: Any = net.get_submodule(inside(net, name))
            weights, steps[name] = priced(layer.weight, variance, 2.0 ** (-parts / _PARTS))
            layer.weight.data.copy_(weights)
        return net, steps

    def is_harmless(parts: int) -> bool:
        net, _ = at(parts)
        left = any(bool(_weights(net, name).any()) for name in variances)
        return left and float(row_changes(small, net, fit).mean()) <= TOLERANCE

    # The lowest price is taken as harmless.
    return at(bisect_left(range(_PARTS * _HALVINGS), True, key=is_harmless))


def _weights(small: nn.Module, name: str) -> Tensor:
    layer: Any = small.get_submodule(inside(small, name))
    weight: Tensor = layer.weight.detach().cpu()
    return weight


def _variances(
    report: CutReport, known: Mapping[str, Moments], model: BayesianNetwork
) -> dict[str, Tensor]:
    """The variances of the weights that are left, by layer, of the shapes they have there."""
    found = {}
    for name, m in known.items():
        kept = kept_of(report, model.layers[name])
        order = kept[::-1] if model.layers[name].affine.output_dim else kept
        found[name] = taken(m.variance.cpu(), m.variance.shape, order)
    return found
