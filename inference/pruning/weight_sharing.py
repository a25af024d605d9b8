"""After soft weight-sharing: every weight is set to the mean of the component it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...guides.base import NetworkGuide
from ...guides.codebook import Codebook
from ...models.base import Model
from ...models.bayesian import BayesianNetwork
from ...models.distributions.mixture import Components, NormalMixture
from ...models.distributions.wrapped import base
from ..posterior.weight_moments import moments

__all__ = ["Assigned", "assign", "assigned_guide", "belongs", "books", "merged", "mixtures"]


@dataclass(frozen=True)
class Assigned:
    """The weights of one layer after :func:`assign`.

    Attributes:
        weight: the means of their components, in the shape of the weight; zero for the first.
        index: of the component, 0 for the one at zero, in the same shape.
        components: what ``index`` counts: those that were merged are one.
    """

    weight: Tensor
    index: Tensor
    components: Components

    @property
    def used(self) -> Tensor:
        """Components with a weight of this layer, without the one at zero; rising, ``(U,)``."""
        found = self.index.unique()
        return found[found > 0]


def mixtures(model: Model) -> dict[str, Components]:
    """The mixture of every layer that has one as its prior, by the name of the layer, in float64 on
    the CPU; empty for other priors, and other models."""
    found: dict[str, Components] = {}
    for name, layer in model.layers.items():
        fn = base(layer.latents()["weight"].prior)
        if isinstance(fn, NormalMixture):
            log_mixing, loc, log_precision = (
                t.detach().double().cpu() for t in (fn.log_mixing, fn.loc, fn.log_precision)
            )
            found[name] = NormalMixture(log_mixing, loc, log_precision).components
    return found


@torch.no_grad()
def assign(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, Assigned]:
    """Set every weight to the mean of the component that most likely made it.

    Components that have become one are merged first (:func:`merged`). A weight of the component at
    zero becomes zero.

    Arguments:
        model: with :class:`~pyroccam.models.priors.GaussianMixture` as the prior of its layers, or
            of some; the others have no components and are left out.
        guide: of the model; its means are the weights.

    Returns:
        :class:`Assigned` by layer, on the CPU; the weights have the dtype that they had.

    Raises:
        ValueError: where no layer has that prior.

    References:
        Ullrich, Meeds, Welling 2017, arXiv:1702.04008, section 4.
    """
    found = mixtures(model)
    if not found:
        raise ValueError(
            "No layer has the prior priors.GaussianMixture, to whose components weights belong."
        )
    means = moments(model, guide)
    out = {}
    for name, own in found.items():
        components = merged(own)
        weight = means[name].mean.cpu()
        index = belongs(weight, components)
        out[name] = Assigned(components.loc[index].to(weight.dtype), index, components)
    return out


def books(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, tuple[Tensor, Tensor]]:
    """The assignment as :class:`~pyroccam.guides.Codebook` takes it.

    Arguments:
        model, guide: a fitted pair as for :func:`assign`.

    Returns:
        By layer the means that occur in it, ``(U,)``, and for each weight the position of its mean,
        -1 for a zero.

    Raises:
        ValueError: where nothing but zeros would be left of a layer.
    """
    found = {}
    for name, one in assign(model, guide).items():
        if not len(one.used):
            raise ValueError(
                f"All weights of layer {name!r} belong to the component at zero. Train longer, or "
                "with a smaller kl_weight (tau= of the method sws) or a mixture with less at zero "
                "(zero=)."
            )
        place = torch.full((len(one.components.loc),), -1)
        place[one.used] = torch.arange(len(one.used))
        found[name] = (one.components.loc[one.used].to(one.weight.dtype), place[one.index])
    return found


def assigned_guide(model: BayesianNetwork, guide: NetworkGuide) -> Codebook:
    """The point at which every weight has the mean of its component, as a guide of shared values.

    Arguments:
        model, guide: as for :func:`books`.

    Returns:
        A guide of the same model; biases, and layers with another prior, are those of ``guide``.
    """
    return Codebook(model, books(model, guide), begin=guide)


def merged(components: Components, *, within: float = 1e-10) -> Components:
    """One component in place of those that do not differ, the nearest two first.

    It has their proportion together, and the mean and the variance of the two as a mixture. What
    merges with the first, which makes zeros, becomes part of it and does not move its mean.

    Arguments:
        components: K; the first is the one at zero.
        within: greatest KL, in nats, of one to the other and back, at which two are merged.

    Returns:
        As many as are left, at least one, in the order in which they were.
    """
    mixing, loc, scale = (t.double().clone() for t in components)
    variance = scale.square()
    while len(loc) > 1:
        # Row p, column q: KL(p || q).
        ratio = variance[:, None] / variance
        kl = 0.5 * (ratio - 1 - ratio.log() + (loc[:, None] - loc).square() / variance)
        apart = torch.maximum(kl, kl.T).fill_diagonal_(torch.inf)
        nearest = int(apart.argmin())
        if apart.flatten()[nearest] > within:
            break
        i, j = sorted(divmod(nearest, len(loc)))
        both = mixing[[i, j]].sum()
        share = mixing[[i, j]] / both
        mean = (share * loc[[i, j]]).sum() if i else loc[0]
        second = (share * (variance[[i, j]] + loc[[i, j]].square())).sum()
        rest = torch.arange(len(loc)) != j
        mixing[i], loc[i], variance[i] = both, mean, second - mean.square()
        mixing, loc, variance = mixing[rest], loc[rest], variance[rest]
    return Components(mixing, loc, variance.sqrt())


def belongs(weights: Tensor, components: Components) -> Tensor:
    """The component of greatest responsibility, ``argmax_k π_k N(w; loc_k, scale_k²)``.

    Arguments:
        weights: of any shape.
        components: K.

    Returns:
        Its index, of the shape of the weights; the first of several that are equal.
    """
    mixing, loc, scale = (t.double() for t in components)
    mixture = NormalMixture(mixing.log(), loc, -2.0 * scale.log())
    return mixture.log_parts(weights.detach().double()).argmax(0)
