"""Local reparameterisation: random weights become random activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import kl_divergence

from ..data import PyroccamError, checked
from .distributions import CentredNormal, base
from .layers import Affine, BayesianLayer, power
from .priors import Latent

if TYPE_CHECKING:
    from .base import Model

Scales = Literal["example", "batch"]

# Added to a variance before its root is taken, whose slope at zero is infinite.
TINY = 1e-16


class LocalReparameterization(Messenger):
    r"""Hands the layers of a network the distributions of their weights instead of draws.

    A sum over independent normal weights is normal, so the outputs of a layer are drawn and its
    weights are not:

    .. math:: h_b \sim N\big(\sum_i x_{bi} μ_i,\ \sum_i x_{bi}^2 σ_i^2\big)

    independently for each example, which lowers the variance of the gradient. A scale of groups
    that multiplies the weights is drawn for each example too, and applied to the features it
    belongs to.

    Of embeddings, recurrent layers and those that are called twice in a pass the weights are drawn,
    once for all rows: a token that stands at two places, a unit at two steps of a sequence, and two
    images that are compared, have one weight there.

    Put it around guide and model together. In the guide a site of the network that is normal (or,
    for a scale, log-normal) is not drawn: its value is a stand-in (the median; where the mean is
    zero, the scale), and the layer finds its distribution. Whatever a guide draws otherwise, a
    delta or a relaxed gate, is used as it is drawn. The KL of a site that is not drawn must be
    analytic, and the bound must use it, as ours and Pyro's ``TraceMeanField_ELBO`` do.

    Arguments:
        model: a :class:`~pyroccam.models.BayesianNetwork`.
        scales: draw group scales for each ``example`` (as published) or once for the ``batch``.

    Raises:
        PyroccamError: in use, for a site whose prior has no analytic KL to its guide.

    References:
        Kingma, Salimans, Welling 2015, arXiv:1506.02557; Louizos et al. 2017, arXiv:1705.08665, for
        scales.
    """

    @checked
    def __init__(self, model: Model, scales: Scales = "example") -> None:
        super().__init__()
        self.scales = scales
        # Plain facts, no modules: a guide that is copied does not copy its model.
        self._sites = _facts(model)
        self._kept: dict[str, tuple[Any, Tensor]] = {}  # distribution and stand-in, by site
        self._stand_ins: dict[str, Tensor] = {}
        self._checked: set[str] = set()

    def refuse_another(self, model: Model) -> None:
        """Refuse a model with other sites than those of its own: it would draw their weights."""
        theirs = _facts(model)
        if theirs != self._sites:
            odd = sorted(site for site, _ in theirs.items() ^ self._sites.items())
            found = f"local= is a handler for another network (it differs at site {odd[0]!r})"
            raise PyroccamError(found, "models.LocalReparameterization(model)")

    def __exit__(self, *exception: Any) -> None:
        # What is kept hangs on the graph of a step: it could not be copied, and would live on.
        self._kept.clear()
        self._stand_ins.clear()
        super().__exit__(*exception)

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if name not in self._sites:
            return
        if msg["done"] or msg["value"] is not None:  # the model: replayed, or given by a person
            kept = self._kept.get(name)
            if kept is None or kept[1] is not msg["value"]:
                self._kept.pop(name, None)
                if msg["mask"] is False and name in self._stand_ins:  # within pyro's Predictive
                    _refuse_copy(name, self._stand_ins[name], msg["value"])
            elif name not in self._checked:
                _check(name, kept[0], msg["fn"])
                self._checked.add(name)
            return
        self._kept.pop(name, None)
        own = base(msg["fn"])
        if self._takes(name, own):
            if isinstance(own, CentredNormal):  # Pyro looks at its density, infinite at zero
                value = own.scale
            else:
                value = own.loc if isinstance(own, torch.distributions.Normal) else own.loc.exp()
            stand_in = value.detach()
            msg["value"], msg["done"] = stand_in, True
            msg["infer"] = {**msg["infer"], "moments": True}
            self._kept[name] = (msg["fn"], stand_in)
            self._stand_ins[name] = stand_in

    def _takes(self, name: str, own: Any) -> bool:
        latent, weight = self._sites[name]
        if latent in ("weight", "bias"):
            return isinstance(own, torch.distributions.Normal)
        if self.scales == "batch" or (len(weight) and own.batch_shape == weight):
            return False
        return isinstance(own, torch.distributions.Normal | torch.distributions.LogNormal)

    def _pyro_affine(self, msg: Any) -> None:
        layer, x, values, latents = msg["args"]
        kept = {
            name: base(found[0])
            for name in values
            if (found := self._kept.get(layer.site(name))) is not None and found[1] is values[name]
        }
        if kept:
            msg["value"], msg["done"] = self.outputs(layer, x, values, latents, kept), True

    def outputs(
        self,
        layer: BayesianLayer,
        x: Tensor,
        values: Mapping[str, Tensor],
        latents: Mapping[str, Latent],
        kept: Mapping[str, Any],
    ) -> Tensor:
        """Draw the outputs of a layer for inputs ``(B, *)``; of latents in ``kept`` the
        distributions take the place of values."""
        run, by_output = layer.affine, layer.affine.shape.output_groups
        count = len(x) if x.dim() > -run.feature_dim else 1  # an input without a batch dim
        multiplier = _per_example(latents, kept, count)
        if multiplier is not None and not by_output:
            x = x * run.on_features(multiplier, x)
        # Multipliers that were drawn scale the weights, their means and deviations alike.
        ones = {n: v for n, v in values.items() if n not in kept or n in ("weight", "bias")}
        own = {n: latent for n, latent in latents.items() if n in ones}
        mean, mean_bias = layer.effective({**ones, **_parameters(kept, "loc")}, own)
        # A mean that is known to be zero needs no product.
        zero_mean = isinstance(kept.get("weight"), CentredNormal)
        out = None if zero_mean else run(x, mean, mean_bias)
        scales = _parameters(kept, "scale")
        if scales:
            zero = {n: torch.zeros_like(v) for n, v in ones.items() if n in ("weight", "bias")}
            scale, scale_bias = layer.effective({**ones, **zero, **scales}, own)
            own_bias = scale_bias if "bias" in scales else None
            variance = self._variance(run, x, scale, own_bias)
            noise = (variance + TINY).sqrt() * _standard_normal(variance)
            if out is not None:
                out = out + noise
            elif mean_bias is None:
                out = noise
            else:
                out = noise + run.on_features(mean_bias[None], noise)
        assert out is not None
        if multiplier is not None and by_output:
            out = out * run.on_features(multiplier, out)
        return out

    @staticmethod
    def _variance(run: Affine, x: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        """Variance of the outputs, from the standard deviations of weight and bias."""
        return run(x.square(), scale.square(), None if bias is None else bias.square())


def _facts(model: Model) -> dict[str, tuple[str, torch.Size]]:
    """Facts by site: its name below its layer, and the shape of the layer's weight. Not of layers
    whose weights are used at several places for one row: those are drawn."""
    return {
        site: (name, layer.affine.shape.weight)
        for site, (layer, name) in model.sites.items()
        if not layer.affine.drawn
    }


def _check(name: str, fn: Any, prior: Any) -> None:
    """The value of a site that is not drawn means nothing, so its KL must not depend on it."""
    try:
        kl_divergence(fn, prior)
    except NotImplementedError:
        pair = f"{type(base(fn)).__name__} to the prior {type(base(prior)).__name__}"
        found = f"site {name!r} has no analytic KL of a {pair}"
        raise PyroccamError(found, "one that is registered", "local=False") from None


def _refuse_copy(name: str, stand_in: Tensor, value: Tensor) -> None:
    """A value that the guide gave would be taken for a draw."""
    if torch.equal(stand_in, value):
        found = f"what stands in for draws of site {name!r} under guide.handler, as if it were one"
        raise PyroccamError(found, "a guide without its handler: Predictive(...) outside of `with`")


def _standard_normal(like: Tensor) -> Tensor:
    """Standard normal numbers of a tensor's shape, in its order of memory.

    Torch fills memory that is contiguous by whole vectors, and any other number by number, as that
    in the layout of convolutions on a CPU.
    """
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda dim: -strides[dim])  # stable
    shape = [like.shape[dim] for dim in order]
    drawn = torch.randn(shape, dtype=like.dtype, device=like.device)
    return drawn.permute([order.index(dim) for dim in range(like.dim())])


def _parameters(kept: Mapping[str, Any], which: str) -> dict[str, Tensor]:
    return {n: getattr(q, which) for n, q in kept.items() if n in ("weight", "bias")}


def _per_example(
    latents: Mapping[str, Latent], kept: Mapping[str, Any], count: int
) -> Tensor | None:
    """Draw the product of all multipliers for each example, ``(count, groups or 1)``.

    A product of powers of log-normals is log-normal: those of one shape take one draw.
    """
    product: Tensor | None = None
    logs: dict[torch.Size, list[tuple[Any, float]]] = {}
    for name, q in kept.items():
        if name in ("weight", "bias"):
            continue
        if isinstance(q, torch.distributions.LogNormal):
            logs.setdefault(q.batch_shape, []).append((q, latents[name].power))
            continue
        noise = torch.randn(count, *q.batch_shape, device=q.loc.device, dtype=q.loc.dtype)
        drawn = power((q.loc + q.scale * noise).reshape(count, -1), latents[name].power)
        product = drawn if product is None else product * drawn
    for factors in logs.values():
        loc = torch.stack([p * q.loc for q, p in factors]).sum(0).reshape(-1)
        variance = torch.stack([(p * q.scale).square() for q, p in factors]).sum(0).reshape(-1)
        noise = torch.randn(count, *loc.shape, device=loc.device, dtype=loc.dtype)
        drawn = (loc + variance.sqrt() * noise).exp()
        product = drawn if product is None else product * drawn
    return product
