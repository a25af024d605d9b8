"""Which groups, or weights, a posterior needs: a number for each, and where to cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...guides.mean_field import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.layers.bayesian_layer import BayesianLayer
from .judged import judged

__all__ = ["Irrelevance", "irrelevance", "search", "valley"]


@dataclass(frozen=True)
class Irrelevance:
    """How little the parts of a layer matter.

    Attributes:
        layer: its name.
        values: one for each group, ``(groups,)``, or for each weight, in the shape of the weight;
            the larger, the less it matters.
        statistic: what the values are, for the axis of a figure.
        grouped: whether a value is of a group.
    """

    layer: str
    values: Tensor
    statistic: str
    grouped: bool


@torch.no_grad()
def irrelevance(
    model: BayesianNetwork, guide: NetworkGuide, *, by: Literal["mode", "noise"] = "mode"
) -> dict[str, Irrelevance]:
    r"""By layer, from whatever its prior puts on groups or else on weights.

    * Scales with a normal posterior: :math:`\log α = \log σ_z² - \log μ_z²` of the group.
    * Log-normal scales: minus the logarithm of the mode, :math:`σ_z² - μ_z` with
      :math:`μ_z = Σ p_k μ_k`, :math:`σ_z² = Σ p_k² σ_k²` over all factors, those of the layer
      included. By ``noise``: :math:`\log α = \log(e^{σ_z²} - 1)`, of their variance over their
      squared mean, as for normal ones.
    * Gates: minus the logit.
    * Without groups: :math:`\log α` of each weight.

    Returns:
        :class:`Irrelevance` by layer, float64 on the CPU.

    Raises:
        ValueError: for a guide without spread (a delta) in a layer without groups.

    References:
        Louizos et al. 2017, arXiv:1705.08665; Molchanov et al. 2017, arXiv:1701.05369.
    """
    return {name: _of_layer(layer, guide, by) for name, layer in model.layers.items()}


def _of_layer(layer: BayesianLayer, guide: NetworkGuide, by: str) -> Irrelevance:
    instead = "prune by magnitude (inference.pruning.prune_weights), or use guides.MeanField."
    kind, q = judged(layer, guide, instead)
    if kind == "gate":
        return _made(layer, -q.logits, "- logit of the gate")
    if kind == "log-normal scale":
        if by == "noise":
            return _made(layer, q.variance.expm1().log(), "log alpha of the group")
        return _made(layer, q.variance - q.loc, "- log mode of the scale")
    of = " of the group" if kind == "normal scale" else ""
    return _made(layer, _log_alpha(q), f"log alpha{of}")


def _log_alpha(q: Any) -> Tensor:
    tiny = torch.finfo(q.loc.dtype).tiny
    alpha: Tensor = 2 * q.scale.log() - q.loc.square().clamp_min(tiny).log()
    return alpha


def _made(layer: BayesianLayer, values: Tensor, statistic: str) -> Irrelevance:
    grouped = values.shape != layer.affine.shape.weight
    return Irrelevance(layer.name, values.double().cpu(), statistic, grouped)


def valley(values: Tensor, *, depth: float = 0.5) -> float | None:
    """The threshold between two clusters: where a density estimate is lowest between its two most
    prominent peaks.

    Arguments:
        values: any shape; those that are not finite are left out.
        depth: the density there must be below this fraction of the lower peak's.

    Returns:
        ``None`` where there are no two clusters, or fewer than four values.
    """
    found = values[values.isfinite()].double().flatten().numpy()
    if found.size < 4 or found.std() == 0:
        return None
    if found.size > 5000:  # the estimate costs grid times values
        found = np.quantile(found, np.linspace(0, 1, 5000))
    # Half of Scott's rule, which is for one cluster and smears two.
    # A second or two to import, spared those who only ask for --help.
    from scipy.signal import find_peaks
    from scipy.stats import gaussian_kde

    density = gaussian_kde(found, bw_method=0.5 * found.size ** (-0.2))
    margin = 0.1 * float(np.ptp(found))
    grid = np.linspace(found.min() - margin, found.max() + margin, 1024)
    height = density(grid)
    peaks, facts = find_peaks(height, prominence=0.02 * height.max())
    if len(peaks) < 2:
        return None
    left, right = sorted(peaks[np.argsort(facts["prominences"])[-2:]])
    lowest = left + int(np.argmin(height[left : right + 1]))
    if height[lowest] > depth * min(height[left], height[right]):
        return None
    return float(grid[lowest])


def search(
    values: Mapping[str, Tensor],
    cost: Callable[[Mapping[str, float]], float],
    *,
    limit: float,
    size: Callable[[Mapping[str, float]], float],
    step: float = 0.03,
    rounds: int = 2,
) -> dict[str, float]:
    """Thresholds that keep as little as possible at a bounded cost.

    First one threshold for all layers, then each layer's own is lowered in turn, as far as the cost
    stays within the limit; the layer that saves most goes first. Each is found by bisection, which
    takes the cost to rise as a threshold falls: small wiggles of it cost a little of what could be
    cut, and the limit is kept in any case.

    Arguments:
        values: irrelevance by layer.
        cost: of thresholds by layer, for example the error on validation rows; groups above a
            threshold are cut.
        limit: largest cost.
        size: what is left by thresholds, to be made small.
        step: by what part of themselves the numbers of kept values fall from one threshold that is
            tried to the next, so that few of many are told apart as well as most of them.
        rounds: over all layers.

    Returns:
        thresholds by layer; infinite where nothing can be cut.
    """
    best = dict.fromkeys(values, math.inf)
    pooled = torch.cat([v.flatten() for v in values.values()])

    def common(t: float) -> dict[str, float]:
        return {name: max(t, float(v.min())) for name, v in values.items()}

    level = _last(_candidates(pooled, step), lambda t: cost(common(t)) <= limit)
    if level is not None:
        best = common(level)
    tried = {name: _candidates(v, step) for name, v in values.items()}
    for _ in range(rounds):
        before = dict(best)
        moves = {name: _lowest(name, tried[name], best, cost, limit) for name in best}
        for name in sorted(moves, key=lambda n: size({**best, n: moves[n]})):
            lowered = {**best, name: moves[name]}
            if cost(lowered) > limit:  # another layer has moved meanwhile
                lowered = {**best, name: _lowest(name, tried[name], best, cost, limit)}
            best = lowered
        if best == before:
            break
    return best


def _lowest(
    name: str,
    tried: Sequence[float],
    best: Mapping[str, float],
    cost: Callable[[Mapping[str, float]], float],
    limit: float,
) -> float:
    """The lowest threshold of a layer that the cost allows, the others' staying."""
    lower = [t for t in tried if t < best[name]]
    found = _last(lower, lambda t: cost({**best, name: t}) <= limit)
    return best[name] if found is None else found


def _last(ordered: Sequence[float], allowed: Callable[[float], bool]) -> float | None:
    """The last of those that are allowed, if they come before those that are not."""
    found, after = -1, len(ordered)
    while after - found > 1:
        middle = (found + after) // 2
        found, after = (middle, after) if allowed(ordered[middle]) else (found, middle)
    return None if found < 0 else ordered[found]


def _candidates(values: Tensor, step: float) -> list[float]:
    """From the one that keeps all down to the one that keeps the least value."""
    ordered = values.flatten().double().sort().values
    kept = [len(ordered)]
    while kept[-1] > 1:
        kept.append(min(kept[-1] - 1, int(kept[-1] * (1 - step))))
    return ordered[torch.tensor(kept) - 1].unique().flip(0).tolist()
