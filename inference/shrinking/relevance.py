"""Irrelevance of groups, or of weights, under a posterior: a number for each, and where to cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...data import PyroccamError
from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ...models.distributions import base
from ...models.layers import BayesianLayer
from ..posterior import Layer

# Part of themselves by which the numbers of kept values fall from one threshold that is tried to
# the next, so that few of many are told apart as well as most of them.
STEP = 0.03
ROUNDS = 2  # of the search, over all layers


@dataclass(frozen=True)
class Irrelevance:
    """The irrelevance of the parts of a layer.

    Attributes:
        values: one for each group, ``(groups,)``, or for each weight, in the shape of the weight;
            the larger, the less it matters.
        statistic: what the values are, for the axis of a figure.
        grouped: whether a value is of a group.
        size: weights of the layer.
    """

    layer: str
    values: Tensor
    statistic: str
    grouped: bool
    size: int


class Judged(NamedTuple):
    r"""The posterior by which the parts of a layer are kept or cut.

    Attributes:
        kind: ``normal scale``, ``log-normal scale``, ``gate`` or, of a layer without groups,
            ``weight``.
        q: its distribution, elementwise, on the device of the guide. Of log-normal scales, of the
            group and of its layer, which multiply: the normal of :math:`\log \prod_k v_k^{p_k}`, of
            mean :math:`Σ p_k μ_k` and variance :math:`Σ p_k² σ_k²`, float64.
    """

    kind: Literal["normal scale", "log-normal scale", "gate", "weight"]
    q: Any


def judged(layer: BayesianLayer, guide: NetworkGuide) -> Judged:
    """The evidence of the scales of a layer, or of its weights where it has none, which must have a
    spread."""
    logs: list[tuple[Any, float]] = []
    for name, latent in layer.latents().items():
        found = guide.factor_of(layer.site(name)).evidence()
        if name in ("weight", "bias") or found is None:
            continue
        if found.kind != "log-normal":
            return Judged("gate" if found.kind == "gate" else "normal scale", found.q)
        logs.append((found.q, latent.power))
    if logs:
        zero = torch.zeros((), dtype=torch.float64)
        loc = sum((p * q.loc.double() for q, p in logs), zero)
        variance = sum(((p * q.scale.double()).square() for q, p in logs), zero)
        normal = torch.distributions.Normal(loc, variance.sqrt(), validate_args=False)
        return Judged("log-normal scale", normal)
    found = guide.factor_of(layer.site("weight")).evidence()
    if found is None or found.kind != "normal":
        q = base(guide.posterior(layer.site("weight")))
        raise PyroccamError(f"The posterior {type(q).__name__} of layer {layer.name!r}", "a spread")
    return Judged("weight", found.q)


@torch.no_grad()
def irrelevance(
    model: BayesianNetwork, guide: NetworkGuide, *, by: Literal["mode", "noise"] = "mode"
) -> dict[str, Irrelevance]:
    r"""The irrelevance of each layer's groups, or of its weights where its prior has no groups.

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
        PyroccamError: for a guide without spread (a delta) in a layer without groups.

    References:
        Louizos et al. 2017, arXiv:1705.08665; Molchanov et al. 2017, arXiv:1701.05369.
    """
    return {name: _of_layer(layer, guide, by) for name, layer in model.layers.items()}


def weight_irrelevance(
    model: BayesianNetwork, layers: Mapping[str, Layer]
) -> dict[str, Irrelevance]:
    r"""The irrelevance of each weight, :math:`\log V[w] - \log E[w]²` of its product with its
    scales, by layer: also a group that matters has weights that do not."""
    tiny = torch.finfo(torch.float64).tiny  # also of what has no noise, as the row of a padding
    found = {}
    for name, m in layers.items():
        square = m.mean.double().square().clamp_min(tiny)
        values = m.variance.double().clamp_min(tiny).log() - square.log()
        found[name] = _made(model.layers[name], values, "log alpha")
    return found


def _of_layer(layer: BayesianLayer, guide: NetworkGuide, by: str) -> Irrelevance:
    kind, q = judged(layer, guide)
    if kind == "gate":
        return _made(layer, -q.logits, "- logit of the gate")
    if kind == "log-normal scale":
        if by == "noise":
            return _made(layer, q.variance.expm1().log(), "log alpha of the group")
        return _made(layer, q.variance - q.loc, "- log mode of the scale")
    of = " of the group" if kind == "normal scale" else ""
    square = q.loc.square().clamp_min(torch.finfo(q.loc.dtype).tiny)
    return _made(layer, 2 * q.scale.log() - square.log(), f"log alpha{of}")


def _made(layer: BayesianLayer, values: Tensor, statistic: str) -> Irrelevance:
    weight = layer.affine.shape.weight
    grouped = values.shape != weight
    return Irrelevance(layer.name, values.double().cpu(), statistic, grouped, math.prod(weight))


def of_groups(one: Irrelevance, layer: BayesianLayer) -> Irrelevance:
    """The irrelevance of groups by that of their weights: a group goes with the last of them."""
    judged_by_groups = {*layer.latents()} - {"weight", "bias"}
    dim = layer.affine.shape.group_dim
    if one.grouped or not judged_by_groups or dim is None:
        return one
    values = one.values.movedim(dim, 0).flatten(1).amin(1)
    return replace(one, values=values, grouped=True)


def valley(values: Tensor) -> float | None:
    """The threshold between two clusters: where a density estimate is lowest between its two most
    prominent peaks, and below half of the lower one; ``None`` where there are no two clusters, or
    fewer than four values that are finite."""
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
    if height[lowest] > 0.5 * min(height[left], height[right]):
        return None
    return float(grid[lowest])


def search(
    values: Mapping[str, Tensor],
    cost: Callable[[Mapping[str, float]], float],
    *,
    limit: float,
    size: Callable[[Mapping[str, float]], float],
) -> dict[str, float]:
    """Thresholds by layer that keep as little as possible at a bounded cost; infinite where nothing
    can be cut.

    First one threshold for all layers, then each layer's own is lowered in turn, as far as the cost
    stays within the limit; the layer that saves most goes first. Each is found by bisection, which
    takes the cost to rise as a threshold falls: small wiggles of it cost a little of what could be
    cut, and the limit is kept in any case.

    Arguments:
        values: irrelevance by layer.
        cost: of thresholds by layer, for example the error on validation rows; groups above a
            threshold are cut.
        size: what is left by thresholds, to be made small.
    """
    best = dict.fromkeys(values, math.inf)
    pooled = torch.cat([v.flatten() for v in values.values()])

    def common(t: float) -> dict[str, float]:
        return {name: max(t, float(v.min())) for name, v in values.items()}

    level = _last(_candidates(pooled), lambda t: cost(common(t)) <= limit)
    if level is not None:
        best = common(level)
    tried = {name: _candidates(v) for name, v in values.items()}
    for _ in range(ROUNDS):
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


def _candidates(values: Tensor) -> list[float]:
    """Thresholds to try, from the one that keeps all down to the one that keeps the least value."""
    ordered = values.flatten().double().sort().values
    kept = [len(ordered)]
    while kept[-1] > 1:
        kept.append(min(kept[-1] - 1, int(kept[-1] * (1 - STEP))))
    return ordered[torch.tensor(kept) - 1].unique().flip(0).tolist()
