"""A posterior as the groups of ArviZ, with dimensions that a person knows by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data import Count, PyroccamError, checked
from ...models import Model
from ...models.layers import BayesianLayer
from ..posterior import Fit, Fits, chains_of, in_original_units, members, same_targets
from ..storage import versions
from .adapter import container
from .densities import PosteriorDraws, draw_posterior, draw_prior

if TYPE_CHECKING:
    import xarray as xr

Dims = dict[str, tuple[str, ...]]
Variables = dict[str, tuple[tuple[str, ...], NDArray[Any]]]
KEPT = 1000  # numbers of the weights, or biases, of a layer that are there under its own name
_KERNEL = {0: (), 1: ("step",), 2: ("row", "column"), 3: ("slice", "row", "column")}


@checked
def to_arviz(
    fits: Fits,
    draws: Count = 500,
    *,
    rows: Count | None = None,
    weights: bool = False,
) -> Any:
    """The posterior for ArviZ: an ``InferenceData`` of ArviZ 0.23, a ``DataTree`` of 1.x.

    Groups: ``posterior`` (structure as γ, scales, weights and biases; a chain for each fit),
    ``sample_stats`` (``log_p`` of latents and targets, ``log_q`` of latents), ``log_prior`` by
    site, ``log_likelihood`` and ``posterior_predictive`` of each row, ``observed_data``, ``prior``
    and ``prior_predictive`` where the prior is proper, and ``structure``: exact probabilities of
    depths and primitives. Of weights, or biases, of a layer that are more than 1,000 numbers,
    ``posterior`` and ``prior`` hold the root mean square, ``1.weight_rms``. Targets are in original
    units. Variables have the names of their sites; dimensions are ``depth``, ``row``, ``1.input``,
    ``1.output`` (of the layer ``1``), ``x-h.primitive`` (of an edge). Of ``posterior`` weights that
    the depth of a draw does not reach are NaN, and have no part in its densities.

    Draws of a variational posterior are independent: effective sample sizes and R-hat of one fit
    say nothing of how good it is (:mod:`pyroccam.inference.diagnostics` does). What ArviZ's ``loo``
    means of them is said by the attribute ``warning`` of ``log_likelihood``.

    Arguments:
        fits: one, or several as chains: R-hat then compares runs, or the chains of an MCMC that
            :func:`~pyroccam.inference.as_fit` has taken.
        draws: S; of a point estimate one, of draws (of a chain, say) as many as there are at most,
            evenly taken.
        rows: only so many training rows, evenly spread; there is no ``log_p`` then.
        weights: keep those of more than 1,000 numbers too: S times their number.

    Raises:
        PyroccamError: if the fits differ in their latents, or have other rows, and for more
            log-likelihoods than fit into 2 GiB.
    """
    chains = [one for fit in members(fits) for one in chains_of(fit)]
    first = chains[0]
    model, data = first.model, first.data
    keep = math.inf if weights else KEPT
    found = [draw_posterior(one, draws, rows=rows, keep=keep) for one in chains]
    shapes = [{name: value.shape for name, value in one.values.items()} for one in found]
    for one, own in zip(chains[1:], shapes[1:], strict=True):
        who = f"seeds {first.settings.seed} and {one.settings.seed}"
        if own != shapes[0]:
            raise PyroccamError(f"Unlike latents of {who}", "chains of one posterior")
        if not same_targets(data, one.data, "train"):
            raise PyroccamError(f"The training rows of {who} differ", "the same")
    each = {
        "posterior": [shown_values(f.model, d.values) for f, d in zip(chains, found, strict=True)],
        "sample_stats": [_densities(d) for d in found],
        "log_prior": [d.log_prior for d in found],
        "log_likelihood": [{"y": d.log_likelihood} for d in found],
        "posterior_predictive": [{"y": d.predictions} for d in found],
    }
    x, y = data.take("train", found[0].rows)
    if data.task != "classification":
        y = in_original_units(data, y)
    attrs = _attributes(first, found[0])
    seed = first.settings.seed
    before = draw_prior(model, x, draws, data=data, keep=keep, seed=seed)
    each["prior"] = [shown_values(model, before.values)]
    if before.predictions is not None:
        each["prior_predictive"] = [{"y": before.predictions}]
    if before.improper:
        attrs["improper_priors"] = ", ".join(before.improper)
    dims, coords = _dims(model)
    coords["row"] = found[0].rows.numpy()
    groups = {name: _draws(parts, dims, coords) for name, parts in each.items()}
    groups["log_likelihood"].attrs["warning"] = _of_loo(first)
    groups["structure"] = _table(_exact(chains), coords)
    groups["observed_data"] = _table({"y": (dims["y"][: y.dim()], y.cpu().numpy())}, coords)
    return container({name: one for name, one in groups.items() if one.data_vars}, attrs)


def _table(values: Variables, coords: Mapping[str, Any]) -> xr.Dataset:
    """Variables, and the labels along their dimensions."""
    import xarray  # as slow as torch

    used = {dim for dims, _ in values.values() for dim in dims}
    return xarray.Dataset(values, {dim: v for dim, v in coords.items() if dim in used})


def shown_values(model: Model, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of sites, structure as γ: ``(S, *)``."""
    gammas = {
        site: prior.gamma(values[site].to(prior.logits.device)).detach().cpu()
        for site, prior in model.structure.items()
        if site in values
    }
    return {**values, **gammas}


def _densities(drawn: PosteriorDraws) -> dict[str, Tensor]:
    """``log_p`` of latents and training targets, ``log_q`` of the latents, where they are known."""
    both = {"log_p": drawn.log_p, "log_q": drawn.total_log_q}
    return {name: value for name, value in both.items() if value is not None}


def _draws(
    parts: Sequence[Mapping[str, Tensor]], dims: Dims, coords: Mapping[str, Any]
) -> xr.Dataset:
    """Variables ``(chain, draw, *)``, a chain for each part."""
    found: Variables = {}
    for name in parts[0]:
        values = torch.stack([part[name] for part in parts]).numpy()
        own = dims.get(name) or [f"{name}.{k}" for k in range(values.ndim - 2)]
        found[name] = (("chain", "draw", *own[: values.ndim - 2]), values)
        sizes = dict(zip(("chain", "draw"), map(np.arange, values.shape), strict=False))
        coords = {**coords, **sizes}
    return _table(found, coords)


def _dims(model: Model) -> tuple[Dims, dict[str, Any]]:
    """Dimensions of the variables, and labels along them."""
    dims: Dims = {"y": ("row", "target")}
    coords: dict[str, Any] = {}
    if "depth" in model.latents() and not model.random_weights:
        coords["depth"] = np.arange(len(model.get_buffer("log_prior")))
    for site, prior in model.structure.items():
        dims[site] = (_primitive(prior.edge),)
        coords[_primitive(prior.edge)] = list(prior.primitives)
    for layer in model.layers.values():
        for name, latent in layer.latents().items():
            dims[layer.site(name)] = _layer_dims(layer, name, latent.prior.event_shape)
    return dims, coords


def _primitive(edge: str) -> str:
    return f"{edge}.primitive"


def _layer_dims(layer: BayesianLayer, latent: str, event: torch.Size) -> tuple[str, ...]:
    """Names of the dims of a layer's latent: ``1.output``, ``1.input`` and those of the kernel of a
    convolution."""
    shape, output = layer.affine.shape, layer.affine.output_dim
    axes = ["input", "output"] if output == 1 else ["output", "input"]
    axes += _KERNEL[len(shape.weight) - 2]
    prefix = f"{layer.name}." if layer.name else ""
    if event == shape.weight:
        chosen = axes
    elif not event:
        chosen = []
    elif latent == "bias":
        chosen = ["output"]
    else:  # a multiplier of groups
        chosen = [axes[shape.group_dim or 0]]
    return tuple(prefix + axis for axis in chosen)


def _exact(fits: Sequence[Fit]) -> Variables:
    """Probabilities of what is discrete, in closed form, by chain.

    Of learnt depth ``depth_probs``, q(d), and ``depth_exact_probs``, the posterior given the
    weights; of an edge the probabilities of its primitives.
    """
    model = fits[0].model
    found: dict[str, tuple[str, list[Tensor]]] = {}
    if "depth" in model.latents() and not model.random_weights:
        found["depth_probs"] = ("depth", [one.weights.double() for one in fits])
        exact = [one.structure.exact_depth_probs.double() for one in fits if one.structure]
        if len(exact) == len(fits):
            found["depth_exact_probs"] = ("depth", exact)
    else:
        for site, prior in model.structure.items():
            probs = [one.guide.edge(site).probs().detach() for one in fits]
            found[f"{site}_probs"] = (_primitive(prior.edge), probs)
    return {
        name: (("chain", dim), torch.stack(each).cpu().numpy())
        for name, (dim, each) in found.items()
    }


def _of_loo(fit: Fit) -> str:
    """What leaving rows out of the exported log-likelihoods means."""
    if not fit.model.random_weights:
        return (
            "LOO is meaningless here: the weights are numbers that have seen every row; "
            "diagnostics.elpd looks at rows that were held out."
        )
    if fit.guide.traits.point:
        return "LOO is meaningless here: the posterior is a point; diagnostics.elpd is not."
    if fit.guide.samples is not None:
        return "LOO takes the draws for draws of the posterior, as good as whoever made them."
    return (
        "LOO takes draws of q for draws of the posterior, and is too good where q is too narrow; "
        "diagnostics.loo weighs them by p / q where that can be done, and says where not."
    )


def _attributes(fit: Fit, drawn: PosteriorDraws) -> dict[str, Any]:
    found: dict[str, Any] = {
        "inference_library": "pyroccam",
        "model": type(fit.model).__name__,
        "guide": type(fit.guide).__name__,
        "data": fit.data.name,
        "split": "train",
        "seed": fit.settings.seed,
    }
    found |= {f"version_{name}": str(value) for name, value in versions().items()}
    if fit.model.random_weights and fit.guide.samples is not None:
        found["draws"] = "of those that were given, with replacement"
    elif drawn.log_prior and {*drawn.log_q} != {*drawn.log_prior}:
        found["points"] = ", ".join(s for s in drawn.log_prior if s not in drawn.log_q)
    if not drawn.complete:
        found["log_p"] = (
            "left out: rows have weights"
            if fit.data.weighted
            else "left out: it needs all training rows (rows=None)"
        )
    return found
