"""Weights that have gathered around a few values are set to them: to the mean of the component that
they belong to, after soft weight-sharing, or to the nearest of the levels of their prior."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ...guides import Book, NetworkGuide, Points
from ...models import BayesianNetwork, Model
from ...models.distributions import Components, NormalMixture, base
from ..posterior import layer_moments


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
def books(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, tuple[Tensor, Tensor]]:
    """The means of the components that most likely made the weights, as
    :class:`~pyroccam.guides.Book` takes them: by layer those that occur in it, ``(U,)``, rising,
    and for each weight the position of its own, -1 for a zero, which the component at zero makes.

    Components that have become one are merged first (:func:`merged`). Layers without
    :class:`~pyroccam.models.priors.GaussianMixture` as their prior are left out.

    References:
        Ullrich, Meeds, Welling 2017, arXiv:1702.04008, section 4.
    """
    found = mixtures(model)
    if not found:
        raise PyroccamError("No layer has the prior priors.GaussianMixture")
    means = layer_moments(model, guide)
    out = {}
    for name, own in found.items():
        components = merged(own)
        weight = means[name].mean.cpu()
        index = belongs(weight, components)
        used = index.unique()
        used = used[used > 0]
        if not len(used):
            raise PyroccamError(f"All weights of layer {name!r} belong to the component at zero")
        place = torch.full((len(components.loc),), -1)
        place[used] = torch.arange(len(used))
        out[name] = components.loc[used].to(weight.dtype), place[index]
    return out


def assigned_guide(model: BayesianNetwork, guide: NetworkGuide) -> Points:
    """The point at which every weight has the mean of its component, as a guide of shared values;
    biases, and layers with another prior, are those of ``guide``."""
    return Points(model, by=Book(books(model, guide)), begin=guide)


def merged(components: Components, *, within: float = 1e-10) -> Components:
    """One component in place of those that do not differ, the nearest two first.

    It has their proportion together, and the mean and the variance of the two as a mixture. What
    merges with the first, which makes zeros, becomes part of it and does not move its mean.

    Arguments:
        components: K; the first is the one at zero.
        within: greatest KL, in nats, of one to the other and back, at which two are merged.
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


def levels_of(model: Model) -> dict[str, Tensor]:
    """The levels of every layer whose prior has some, rising, ``(K,)``, on the CPU, by the name of
    the layer; empty for other priors, and other models."""
    found = {name: layer.latents()["weight"].levels for name, layer in model.layers.items()}
    return {name: own.detach().cpu() for name, own in found.items() if own is not None}


@torch.no_grad()
def on_levels(net: nn.Module, levels: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a network whose weights are rounded to the nearest level.

    Arguments:
        levels: by layer, rising, ``(K,)``.

    References:
        Achterhold et al. 2018, Variational network quantization, equation 15: the level of the
            greatest density under the posterior.
    """
    rounded = copy.deepcopy(net)
    for name, own in levels.items():
        weight = rounded.get_parameter(f"{name}.weight".lstrip("."))
        book = own.to(weight)
        nearest = book[torch.bucketize(weight, (book[1:] + book[:-1]) / 2)]
        if not nearest.count_nonzero():
            raise PyroccamError(
                f"All weights of layer {name!r} are nearest to zero of its levels, up to "
                f"{float(book[-1]):.3g}: the largest is {float(weight.abs().max()):.3g}"
            )
        weight.copy_(nearest)
    return rounded


def belongs(weights: Tensor, components: Components) -> Tensor:
    """The component of greatest responsibility, ``argmax_k π_k N(w; loc_k, scale_k²)``; the first
    of several that are equal."""
    mixing, loc, scale = (t.double() for t in components)
    mixture = NormalMixture(mixing.log(), loc, -2.0 * scale.log())
    return mixture.log_parts(weights.detach().double()).argmax(0)
