"""The decision with which every smaller network begins: what is kept of a fit, and what goes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ..cutting.report import CutReport
from ..cutting.surgery import ROWS, cut
from ..posterior.family import require
from ..posterior.weight_moments import mean_network
from .relevance import Irrelevance, irrelevance
from .thresholds import Chosen, Threshold, choose_thresholds, refuse_uncut, with_zeros
from .weight_sharing import assigned_guide, mixtures

if TYPE_CHECKING:
    from ..fits.fitting import Fit

__all__ = ["Decision", "decide", "inside"]


@dataclass(frozen=True)
class Decision:
    """A network of posterior means that was cut.

    Attributes:
        model, guide: the pair; a point estimate under a mixture prior shares the means of its
            components already.
        whole: the network of the means.
        net: what is left of it, on the CPU.
        report: what the cut left of each layer.
        irrelevance, thresholds: by layer; both empty for a point estimate.
        warnings: what a person should know of the thresholds, said already.
    """

    model: BayesianNetwork
    guide: NetworkGuide
    whole: nn.Module
    net: nn.Module
    report: CutReport
    irrelevance: dict[str, Irrelevance]
    thresholds: dict[str, float]
    warnings: list[str]


def decide(
    fit: Fit, asking: str, threshold: Threshold | None = None, tolerance: float | None = None
) -> Decision:
    """Choose the thresholds of a fit, set what is above them to zero, and cut what dies of it.

    Of a point estimate only what is exactly zero is cut. A cut that had to be weakened, or that
    costs much on the validation rows, is warned of.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`.
        asking: the function that needs it, for the error.
        threshold, tolerance: see :func:`~pyroccam.inference.pruning.compression.compress`.

    Raises:
        TypeError: for a fit of another model.
        ValueError: for layers without means, random structure, thresholds that cannot be, or any
            threshold for a point estimate.
    """
    depth = "To cut the depth of a learnt-depth network use inference.prune."
    model, guide = require(fit, BayesianNetwork, asking, depth)
    refuse_uncut(guide)
    if guide.free_values and mixtures(model):
        guide = assigned_guide(model, guide)
    whole = mean_network(model, guide)
    found: dict[str, Irrelevance] = {}
    chosen = Chosen({}, [])
    if guide.is_point:
        zeros = whole
        _check_point(whole, model, threshold, tolerance)
    else:
        found = irrelevance(model, guide, by="noise" if threshold == "noise" else "mode")
        chosen = choose_thresholds(threshold, found, whole, model, fit.data, tolerance)
        zeros = with_zeros(whole, found, chosen.thresholds, model)
    net, report = cut(zeros.cpu(), fit.data.x_train[:ROWS].cpu())
    for sentence in chosen.warnings:
        warnings.warn(sentence, stacklevel=3)
    return Decision(model, guide, whole, net, report, found, *chosen)


def _check_point(
    net: nn.Module, model: BayesianNetwork, threshold: Threshold | None, tolerance: float | None
) -> None:
    """A point estimate has no spread; some of each layer must be left of it."""
    for name, value in (("threshold", threshold), ("tolerance", tolerance)):
        if value is not None:
            raise ValueError(
                f"{name}={value!r}: a point estimate has no spread to compare its weights with, so "
                f"it takes no {name}. Its zeros are cut; pruning.prune_weights makes more."
            )
    for name in model.layers:
        if not net.get_parameter(f"{name}.weight".lstrip(".")).count_nonzero():
            raise ValueError(
                f"All weights of layer {name!r} are zero: prune it less, by a smaller sensitivity= "
                "or c=, or a larger keep=, of this layer."
            )


def inside(net: nn.Module, name: str) -> str:
    """Name of a layer in a cut network: it may stand behind a selection of its inputs."""
    return f"{name}.1" if isinstance(net.get_submodule(name), nn.Sequential) else name
