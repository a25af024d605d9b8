"""Go on with less: the pair of a fit without what its posterior does not need."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data import PyroccamError, checked
from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ...models.layers import BayesianLayer
from ..cutting import inside
from .decision import decide, kept_of
from .options import Cut

if TYPE_CHECKING:
    from ...data import Dataset
    from ..training import Fit

Kept = tuple[Tensor | None, Tensor | None]  # outputs (O,) and inputs (I,); None for all


@torch.no_grad()
@checked
def narrow(
    fit: Fit, *, cut: Cut | None = None, data: Dataset | None = None
) -> tuple[BayesianNetwork, NetworkGuide]:
    """A model and a guide over the network that is left of a fit, to train further.

    What is above the thresholds is cut out of the network, as :func:`~pyroccam.inference.shrink`
    does; what stays keeps its posterior. What was cut out does not come back. What could only be
    set to zero may: single weights (of a prior without groups) of units that stay, groups of a
    convolution with groups and of a layer that is left whole, a few channels of a residual sum that
    another branch needs. They begin at zero, with the deviations they had, and are trained further
    like all others.

    Units that are constant once others are cut move into the biases that they feed (the posterior
    means; the deviations stay). A layer without a bias gains one where it is fed a constant (of a
    channel that batch normalisation moved from zero, say): a random site with the prior's bias and
    the deviation that the prior suggests where biases are random, or else a number that is learnt.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`; it is not changed.
        cut: where, as for :func:`~pyroccam.inference.shrink`; not a search, which trains.
        data: of the further fit, if not that of this one: ``fit.data.all_rows()`` for a last fit,
            which needs no validation rows. Thresholds are chosen on the rows of this fit.

    Raises:
        PyroccamError: for data of another kind than the fit's, a point estimate, and as
            :func:`~pyroccam.inference.shrink`.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> digits = data.load("digits")
        >>> net = models.networks.perceptron((1, 8, 8), 10, hidden=(20,))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.GroupNormalJeffreys())
        >>> guide = guides.MeanField(model)
        >>> fit = inference.fit(model, guide, digits, epochs=2, progress=False)
        >>> smaller = inference.narrow(fit, cut=inference.Thresholds(3.0))
        >>> fit = inference.fit(*smaller, digits, epochs=2, progress=False)
    """
    if data is not None:
        data.refuse_another_kind(fit.data)
    if fit.model.random_weights and fit.guide.traits.point:
        raise PyroccamError(
            "A point estimate has no spread by which it could be narrowed",
            hint="inference.shrinking.prune_weights",
        )
    if not all(one.weight_prior.narrows for one in fit.model.layers.values()):
        found = "a prior around weights of which some would go"
        raise PyroccamError(found, "a prior that knows no weights", "inference.shrink")
    decision = decide(fit, cut)
    model, guide, report, net = decision.model, decision.guide, decision.report, decision.net
    names = {name: inside(net, name) for name in model.layers}
    smaller = BayesianNetwork(
        net,
        fit.data if data is None else data,
        prior={names[name]: layer.weight_prior for name, layer in model.layers.items()},
        likelihood=copy.deepcopy(model.likelihood),
        random_biases=model.spec["random_biases"],
    )
    smaller.count_from(model)
    smaller.names = {first: names[now] for first, now in model.names.items()}
    smaller.narrowed_at = {
        name: _between(one.values, decision.thresholds[name])
        for name, one in decision.irrelevance.items()
    }
    own = guide.rebuild(smaller, names)
    for old, new in names.items():
        layer = smaller.layers[new]
        kept = kept_of(report, model.layers[old])
        _copy_prior(model.layers[old], layer, kept)
        _copy_posterior(
            model.layers[old], guide, layer, own, kept, decision.whole.get_submodule(old)
        )
    device = fit.data.device
    return smaller.to(device), own.to(device)


def _between(values: Tensor, threshold: float) -> float:
    """A threshold that parts values as this one does, far from any of them: another machine may
    compute the values with other roundings."""
    kept, gone = values[values <= threshold], values[values > threshold]
    if not len(gone):
        return math.inf
    low = float(kept.max()) if len(kept) else -math.inf
    middle = 0.5 * (low + float(gone.min()))
    return middle if math.isfinite(middle) else threshold


def _copy_prior(before: BayesianLayer, after: BayesianLayer, kept: Kept) -> None:
    """Give a narrower layer what its prior has learnt for the whole layer, or for what it keeps."""
    learnt = before.prior.state_dict()
    for name, begun in after.prior.state_dict().items():
        if name not in learnt:  # of a bias that the layer gained: as the prior begins
            continue
        values, bias = learnt[name], before.start.get("bias")
        event = before.start["weight"].shape
        if values.shape == event:
            values = taken(values, event, _along(before, "weight", event, *kept))
        elif name.endswith("bias") and bias is not None:
            values = taken(values, bias.shape, _along(before, "bias", bias.shape, *kept))
        if values.shape != begun.shape:
            raise PyroccamError(
                f"The prior of layer {before.name!r} has learnt {name!r} of shape "
                f"{tuple(values.shape)}, neither the weight's nor the bias's, and cannot be cut"
            )
        begun.copy_(values)


def _copy_posterior(
    before: BayesianLayer,
    guide: NetworkGuide,
    after: BayesianLayer,
    own: NetworkGuide,
    kept: Kept,
    mean: nn.Module,
) -> None:
    """Give a narrower layer the posterior of what it keeps; ``mean`` is the layer of the whole mean
    network."""
    for name, latent in before.latents().items():
        event = latent.prior.event_shape
        index = _along(before, name, event, *kept)
        old, new = (g.factor_of(layer.site(name)) for g, layer in ((guide, before), (own, after)))
        new.load_state_dict({k: taken(t, event, index) for k, t in old.state_dict().items()})
    # What became constant has moved: into biases, and into the weights of a constant channel.
    gained = "bias" in after.start and "bias" not in before.start
    means = {
        name: own.factor_of(after.site(name)).moments(latent.power)[0]
        for name, latent in after.latents().items()
    }
    for name in ("weight", "bias"):
        learnt = after.bias if name == "bias" else None  # a number, no latent
        if name not in means and learnt is None:
            continue
        factor = torch.ones((), device=after.start[name].device)
        for other, value in means.items():
            if other in ("weight", "bias"):
                continue
            if name == "weight":
                factor = factor * after.affine.on_weight(value)
            elif after.covers_bias(value.shape):
                factor = factor * value
        target = after.start[name].to(means["weight"])
        moved = torch.ones_like(target, dtype=torch.bool)
        if name == "weight" or not gained:
            event = before.start[name].shape
            index = _along(before, name, event, *kept)
            moved = target != taken(getattr(mean, name), event, index).to(target)
            if learnt is not None and before.bias is not None:
                learnt.copy_(taken(before.bias, event, index))
        centre = own.factor_of(after.site(name)).centre if learnt is None else learnt
        centre.copy_(torch.where(moved & (factor != 0), target / factor, centre))


def _along(
    layer: BayesianLayer,
    name: str,
    event: Sequence[int],
    outputs: Tensor | None,
    inputs: Tensor | None,
) -> list[Tensor | None]:
    """The entries of a latent that stay, along its first dims."""
    shape = layer.affine.shape
    if name == "bias":
        return [outputs]
    if tuple(event) == tuple(shape.weight):
        return [inputs, outputs] if layer.affine.output_dim else [outputs, inputs]
    if len(event) == 1:
        return [outputs if shape.output_groups else inputs]
    return []


def taken(values: Tensor, event: Sequence[int], index: Sequence[Tensor | None]) -> Tensor:
    """The part of a tensor that stays; dims that only broadcast against the event stay too."""
    if values.dim() != len(event):
        return values
    for dim, chosen in enumerate(index):
        if chosen is None or values.shape[dim] != event[dim] or event[dim] == 1:
            continue
        chosen = chosen.to(values.device)
        if chosen.dim() == 1:
            values = values.index_select(dim, chosen)
        else:
            values = values[torch.arange(len(chosen), device=values.device)[:, None], chosen]
    return values
