"""A small plain network from the posterior of a Bayesian one: cut, round, count."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from torch import Tensor, nn

from ...data.errors import PyroccamError
from ...models.bayesian import BayesianNetwork
from ...models.checks import one_of
from ...models.feeding import unfed
from ...models.networks.normalisation import without_statistics
from ...models.plain.torch_only import torch_only
from ..cutting.report import CutReport
from ..draw_coding import Drawn, Sample, code_draw, code_posterior
from ..fits.retraining import Retrained, retrain, row_changes, tempered
from ..packing.bits import MOST, ExponentRule, LayerBits, SignificandRule, bit_precision
from ..packing.priced import priced
from ..packing.quantise import Codebook, FixedPoint, Multiples, Rounding, Significand, quantised
from ..packing.rates import (
    FLOAT_BITS,
    Layer,
    Rates,
    group_rates,
    layers_of,
    place_bits,
    sparse_rates,
)
from ..posterior.layers import Layer as Moments
from ..posterior.layers import layer_moments
from ..posterior.posteriors import require
from .decision import decide, inside, smallest
from .depth import settled
from .magnitude import PerLayer, by_layer
from .relevance import Irrelevance
from .thresholds import TOLERANCE, Threshold, refuse_uncut
from .weight_sharing import levels_of

if TYPE_CHECKING:
    from ..fits.fitting import Fit
    from ..fits.numbers import Numbers

__all__ = ["Compressed", "WeightRule", "compress"]

WeightRule = SignificandRule | Literal["rate"]


@dataclass(frozen=True)
class Compressed:
    """A small network, and how it came about.

    Attributes:
        net: plain, cut and rounded, in evaluation mode; of no class of this package, so that it
            can be unpickled without it. It takes the arguments that the network takes. Of batch
            normalisation a scale and a shift are left, so that it is right in evaluation mode
            alone: train on before, or by ``retrain_epochs``.
        thresholds: by layer; what is above is cut. Empty for a point estimate.
        irrelevance: what was compared with them.
        bits: of a weight, by layer; of an index, where weights share values.
        rates: the three rates of the published tables. Without groups they count where weights are,
            too (:func:`~pyroccam.inference.packing.rates.sparse_rates`). Where weights share
            values, ``maximum`` counts their own codebooks, and there is no ``fast``: values
            would have to be looked up.
        report: what the cut left of each layer.
        retrained: what training the cut network further has changed, if that was asked for.
        temperature: by which its logits were divided then.
        warnings: that a rule had to be weakened to leave a network, or that its cut costs much.
    """

    net: nn.Module
    thresholds: dict[str, float]
    irrelevance: dict[str, Irrelevance]
    bits: dict[str, LayerBits]
    rates: Rates
    report: CutReport
    retrained: Retrained | None = None
    temperature: float = 1.0
    warnings: Sequence[str] = ()

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
            **({} if self.retrained is None else {"retrained": self.retrained.to_json()}),
            "temperature": self.temperature,
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


@overload
def compress(
    fit: Fit,
    *,
    code: Literal["sample"] | Sample,
    threshold: Threshold | None = ...,
    tolerance: float | None = ...,
    out: str | Path | None = ...,
    resume: bool = ...,
    progress: bool | None = ...,
) -> Drawn: ...


@overload
def compress(
    fit: Fit,
    *,
    threshold: Threshold | None = ...,
    tolerance: float | None = ...,
    significand: WeightRule = ...,
    exponent: ExponentRule = ...,
    codebook: PerLayer | None = ...,
    retrain_epochs: int = ...,
    trained: Numbers | None = ...,
    code: Literal["digits"] = ...,
) -> Compressed: ...


def compress(
    fit: Fit,
    *,
    threshold: Threshold | None = None,
    tolerance: float | None = None,
    significand: WeightRule = "relative",
    exponent: ExponentRule = "range",
    codebook: PerLayer | None = None,
    retrain_epochs: int = 0,
    trained: Numbers | None = None,
    code: Literal["digits", "sample"] | Sample = "digits",
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Compressed | Drawn:
    """Cut what the posterior does not need, and round the rest to the digits that it knows.

    The weights are the posterior means. Groups (or, for a prior without groups, single weights)
    whose irrelevance is above the threshold of their layer are zero; what dies of it is cut out.

    A point estimate (:class:`~pyroccam.guides.Delta` and its kinds) does not say what it does not
    need, nor how well it knows a digit: what is exactly zero is cut, shared values and whole
    multiples of a step stay as they are, and other weights keep 23 of float32's 24 significand
    bits, unless a ``codebook`` is asked for. Under
    :class:`~pyroccam.models.priors.GaussianMixture` every weight is first set to the mean of its
    component, or to zero (:func:`~pyroccam.inference.pruning.weight_sharing.assign`). Under
    :class:`~pyroccam.models.priors.MultiSpike` means are rounded to the nearest level of their
    layer (:func:`~pyroccam.inference.pruning.weight_sharing.on_levels`), with any posterior that
    has means, and what is above the thresholds is zero; cuts are judged by such weights.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`.
        threshold: ``validation``: as much is cut as keeps the negative log-likelihood of the
            validation rows within ``tolerance`` of that of the whole mean network. ``valley``:
            where a density of the values is lowest between two clusters; a layer without two
            clusters stays whole. ``noise``: a scale whose variance is larger than its squared mean
            is cut (log alpha of 0); the least noisy of a layer stays. Or numbers, one or by layer.
            By default ``validation``, or ``valley`` where there are no validation rows. Not for a
            point estimate. What would leave no network is weakened to what leaves the smallest
            within 0.001 nats (without validation rows, the smallest), with a warning; another
            warns of a cut that costs more than 0.05 nats on the validation rows.
        tolerance: of ``validation``, in nats; 0.001 by default.
        significand, exponent: rules for the bits, see
            :func:`~pyroccam.inference.packing.bits.bit_precision`. By the ``relative`` rule weights
            are rounded to significand bits, by the others to multiples of 2^-bits, as those rules
            mean it. Not where all layers share values. The significand may be ``rate`` instead:
            whole multiples of a step in each layer, near what the posterior knows or cheap to send
            (:func:`~pyroccam.inference.packing.priced.priced`), at the highest price that changes
            what is predicted of a validation row by 0.001 nats at most, on average. Units of which
            nothing is left by that stay, as zeros.
        codebook: round to at most 2^codebook values of each layer instead, beside zero, found by
            k-means. For numbers by layer see
            :func:`~pyroccam.inference.pruning.magnitude.by_layer`.
        retrain_epochs: train what is left as numbers for so many passes, before it is rounded
            (:func:`~pyroccam.inference.fits.retraining.retrain`). Of a posterior without a
            threshold, the smallest network that is then as good as the whole is searched for within
            ``tolerance`` (:func:`~pyroccam.inference.pruning.decision.smallest`). The
            bits are those that the posterior knows, or more where rounding would cost too much.
        trained: the whole network as numbers, for that search, and the learning rate of it.
        code: ``digits``, rounded numbers; or ``sample``: what is left is trained once more, as a
            posterior of a given KL, and a draw of it is coded at about that price
            (:func:`~pyroccam.inference.draw_coding.code_draw`; a
            :class:`~pyroccam.inference.draw_coding.Sample` says how, and how large the file may
            be). That is much smaller, takes minutes, and gives a
            :class:`~pyroccam.inference.draw_coding.Drawn`. ``Sample(posterior="own")`` sends the
            posterior of the fit instead, uncut, under its own normal priors
            (:func:`~pyroccam.inference.draw_coding.code_posterior`).
        out, resume, progress: of ``sample``: a folder for its checkpoints, to go on from them, and
            its bars.

    Raises:
        PyroccamError: for a fit of another model.
        ValueError: for unknown layers or rules, ``validation`` without validation rows, a tolerance
            of another rule, any threshold for a point estimate, rules for bits that nothing is
            rounded by, weights without a mean, or epochs of weights that share values.

    References:
        Louizos, Ullrich, Welling 2017, arXiv:1705.08665.
    """
    if code != "digits":
        how = Sample() if code == "sample" else code
        if not isinstance(how, Sample):
            raise PyroccamError(f"code= must be 'digits', 'sample' or a Sample(...), got {code!r}.")
        given = {
            "significand": significand != "relative", "exponent": exponent != "range",
            "codebook": codebook is not None, "retrain_epochs": retrain_epochs != 0,
            "trained": trained is not None,
        }  # fmt: skip
        if odd := [name for name, changed in given.items() if changed]:
            raise PyroccamError(
                f"{odd[0]}= changes nothing where a draw is sent: its weights are not rounded, and "
                "are trained for it.\nLeave it out, or give code='digits'."
            )
        folder = None if out is None else Path(out)
        going: dict[str, Any] = {"out": folder, "resume": resume, "progress": progress}
        if how.posterior == "own":
            if threshold is not None or tolerance is not None:
                raise PyroccamError(
                    "threshold= and tolerance= cut what a posterior does not need, and that of the "
                    "fit is sent whole.\nLeave them out, or take posterior='trained'."
                )
            require(fit, BayesianNetwork, "compress")
            fit = settled(fit)
            refuse_uncut(fit.guide)
            return code_posterior(fit, how, **going)
        decision = decide(fit, "compress", threshold, tolerance)
        likelihood = copy.deepcopy(fit.model.likelihood)
        return code_draw(decision.net, fit.data, how, likelihood=likelihood, **going)
    if out is not None or resume or progress is not None:
        raise PyroccamError(
            "out=, resume= and progress= are of code='sample', which takes minutes.\n"
            "Leave them out, or give code='sample'."
        )
    one_of("significand", significand, (*get_args(SignificandRule), "rate"))
    if significand == "rate":
        _refuse_rate(fit, exponent)
    fit, again, temperature = settled(fit), None, 1.0
    searched = retrain_epochs > 0 and threshold is None and not fit.guide.traits.point
    if trained is not None and not searched:
        raise PyroccamError(
            "trained= is what a search for the smallest network is compared with; none is made.\n"
            "Leave it out, or give retrain_epochs= without a threshold for a posterior."
        )
    if retrain_epochs and levels_of(fit.model):
        raise PyroccamError(
            f"retrain_epochs={retrain_epochs}: weights that are rounded to the levels of their "
            "prior, and trained as numbers, would leave them.\nLeave it out (finish=0 of a method)."
        )
    if searched:
        decision, again = smallest(fit, retrain_epochs, trained, tolerance)
    else:
        decision = decide(fit, "compress", threshold, tolerance, to_levels=True)
    model, guide, report = decision.model, decision.guide, decision.report
    small, found = decision.net, decision.irrelevance
    if retrain_epochs:
        if guide.steps:
            raise PyroccamError(
                f"retrain_epochs={retrain_epochs}: weights that are whole numbers of a step, and "
                "trained as numbers, would leave it.\nLeave it out (finish=0 of a method)."
            )
        if _shared(model, decision.sizes, None):
            raise PyroccamError(
                f"retrain_epochs={retrain_epochs}: the weights share values, which would part. "
                "Leave it out, and train such weights by inference.pruning.share_weights."
            )
        again = again or retrain(small, fit, retrain_epochs)
        small, temperature = tempered(again.net, fit)
    shared = _shared(model, decision.sizes, codebook)
    steps = dict(guide.steps)
    variances = _variances(report, layer_moments(model, guide), model)
    open_ = [
        n for n in variances if n not in shared and n not in steps and _weights(small, n).any()
    ]
    for rule, value, usual in (
        ("significand", significand, "relative"),
        ("exponent", exponent, "range"),
    ):
        if not open_ and value != usual:
            raise PyroccamError(
                f"{rule}={value!r} changes nothing where the weights of every layer share "
                f"values: an index has neither. Leave out {rule}=, or codebook=."
            )
    if significand == "rate":
        small, found_steps = _at_a_price(small, {n: variances[n] for n in open_}, fit)
        steps |= found_steps
    kept = {n: (w[w != 0], variances[n][w != 0]) for n in variances for w in [_weights(small, n)]}
    digits: SignificandRule = "relative" if significand == "rate" else significand
    bits = bit_precision(kept, significand=digits, exponent=exponent)
    where = {name: inside(small, name) for name in bits}
    # An absolute step belongs to the published rules, digits to the other.
    rounding = Significand if digits == "relative" else FixedPoint

    def of_digits(more: int) -> dict[str, Rounding]:
        return {where[n]: rounding(b.significand + more) for n, b in bits.items() if b.total}

    # Weights that were trained once more need not end where the posterior knows them.
    known = again is None or significand == "rate"
    more = 0 if known else _more_digits(small, of_digits, bits, fit)
    rounded = of_digits(more)
    bits = {
        n: replace(b, significand=b.significand + more if b.total else 0) for n, b in bits.items()
    }
    shared = {n: index for n, index in shared.items() if bits[n].total}
    stepped = {n: s for n, s in steps.items() if bits[n].total and n not in shared}
    bits |= {name: LayerBits(index, 0, 0) for name, index in shared.items()}
    bits |= {name: _whole_bits(kept[name][0], step) for name, step in stepped.items()}
    rounded |= {where[name]: Codebook(2**index) for name, index in shared.items()}
    rounded |= {where[name]: Multiples(step) for name, step in stepped.items()}
    sizes = layers_of(small)
    # Of a layer on a dead branch only zeros are left, which hold its place and are no weights.
    layers = [sizes[where[name]] if len(kept[name][0]) else Layer(0, 0) for name in bits]
    total = model.weights_before
    counts = [b.total for b in bits.values()]
    nonzero = [len(kept[name][0]) for name in bits]
    dense = nonzero == [layer.weights for layer in layers]
    if dense or (found and all(one.grouped for one in found.values())):
        rates = group_rates(total, layers, counts)
        nonzero = [layer.weights for layer in layers]
        dense = True
    else:
        rates = sparse_rates(total, layers, nonzero, counts)
    if shared:
        places = [] if dense else list(map(place_bits, layers, nonzero))
        rates = _with_books(rates, nonzero, counts, shared, sum(places))
    if model.parameters_before != report.parameters_before:
        report = replace(report, parameters_given=model.parameters_before)
    small = without_statistics(quantised(small, rounded))
    small = unfed(torch_only(small, fit.data.head(2)[0].cpu()))
    return Compressed(
        small,
        decision.thresholds,
        found,
        bits,
        rates,
        report,
        again,
        temperature,
        decision.warnings,
    )


def _shared(
    model: BayesianNetwork, sizes: Mapping[str, int], asked: PerLayer | None
) -> dict[str, int]:
    """Bits of an index, for layers whose weights share values: as asked, or as they have it."""
    found = {
        name: max(1, (size - 1).bit_length())
        for name, size in sizes.items()
        if not {*model.layers[name].latents()} - {"weight", "bias"}  # no scales
    }
    if asked is not None:
        for name, index in by_layer("codebook", asked, model).items():
            found[name] = int(index)
    return found


def _whole_bits(kept: Tensor, step: float) -> LayerBits:
    """Bits of the whole numbers of a step that are not zero."""
    most = int((kept.abs().max() / step).round())
    return LayerBits(most.bit_length(), 0)


def _with_books(
    rates: Rates, nonzero: list[int], bits: list[int], shared: Mapping[str, int], places: int
) -> Rates:
    """The rates of a network with codebooks of its own.

    Arguments:
        nonzero, bits: of each layer.
        shared: bits of an index, by layer.
        places: bits that say which weights are kept.
    """
    coded = sum(n * b for n, b in zip(nonzero, bits, strict=True))
    books = sum(FLOAT_BITS * 2**index for index in shared.values())
    maximum = FLOAT_BITS * rates.total / (coded + books + places)
    return replace(rates, fast=math.nan, maximum=maximum)


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
    changes what is predicted of a validation row no more than a cut may cost by default.

    Arguments:
        variances: by layer, of the shapes of their weights; of the layers that are rounded.
    """

    def at(parts: int) -> tuple[nn.Module, dict[str, float]]:
        net, steps = copy.deepcopy(small), {}
        for name, variance in variances.items():
            layer: Any = net.get_submodule(inside(net, name))
            try:
                weights, steps[name] = priced(layer.weight, variance, 2.0 ** (-parts / _PARTS))
            except ValueError as error:
                raise PyroccamError(f"{name}: {error}") from error
            layer.weight.data.copy_(weights)
        return net, steps

    def is_harmless(parts: int) -> bool:
        net, _ = at(parts)
        left = any(bool(_weights(net, name).any()) for name in variances)
        return left and float(row_changes(small, net, fit).mean()) <= TOLERANCE

    low, high = 0, _PARTS * _HALVINGS  # the lowest price is taken as harmless
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_harmless(middle) else (middle + 1, high)
    return at(high)


def _refuse_rate(fit: Fit, exponent: ExponentRule) -> None:
    """Say what significand='rate' needs.

    Raises:
        PyroccamError: if it is not there.
    """
    if fit.guide.traits.point:
        raise PyroccamError(
            "significand='rate' weighs errors by the spread of a posterior, and this is a point "
            "estimate.\nLeave it out, or fit a posterior (guides.MeanField)."
        )
    if exponent != "range":
        raise PyroccamError(
            f"exponent={exponent!r} changes nothing where weights are whole multiples of a step "
            "(significand='rate').\nLeave one of them out."
        )
    if not len(fit.data.x_val):
        raise PyroccamError(
            "significand='rate' compares predictions of validation rows, and there are none.\n"
            "Leave it out, or load the data with val_fraction= above zero."
        )


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
        variance = m.variance.cpu()
        part = report.layers.get(name)
        if part is not None:
            dim = model.layers[name].affine.output_dim
            # A channel of a depthwise convolution has one input, whichever it is.
            plain = part.inputs_before == variance.shape[1 - dim]
            variance = variance.index_select(dim, part.outputs)
            if plain:
                variance = variance.index_select(1 - dim, part.inputs)
        found[name] = variance
    return found
