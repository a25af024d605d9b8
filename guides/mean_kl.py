"""Normal posteriors whose KL to the prior is given: a budget that is met by construction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data import Positive, PyroccamError
from ..models import BayesianNetwork, LocalReparameterization
from ..models.distributions import base
from ..models.layers import BayesianLayer
from ..models.priors import Latent
from .base import NetworkGuide, Words
from .factors import Factor, GaussianFactor, Lent

# Below, the share of a weight is not told from none; 1 - v would lose its digits.
_LEAST = 1e-3
_STEEPEST = 0.999  # part of what the KL allows that a mean has at the start
_HELD = 1e-4  # deviation of a weight that is known, in those of its prior


def log_variance_ratio(r: Tensor) -> Tensor:
    r"""``log(σ²/s²)`` of a normal posterior, from what its mean leaves of the KL.

    With :math:`δ = r^2/2 = 2 κ - μ^2/s^2`, twice the KL that is left for the variance, it is the
    u < 0 that solves

    .. math:: e^u - u = 1 + δ, \qquad\text{so}\quad σ^2 = -s^2 \, W_0(-e^{-1-δ}).

    Newton's method from :math:`-(r + r^2/2)`, which lies below the root, converges monotonically; a
    last step, which is differentiated, has the gradient of the implicit function.

    Arguments:
        r: at least 0, of any shape.
    """
    r = r.clamp_min(_LEAST)
    with torch.no_grad():
        half = 0.5 * r * r
        u = -(r + half)
        for _ in range(5):
            slope = torch.expm1(u)
            u = (u - (slope - u - half) / slope).clamp_max(-0.5 * _LEAST)
        slope = torch.expm1(u)
        rest = slope - u
    return u - (rest - 0.5 * r * r) / slope


class BlockPosterior(nn.Module):
    r"""Means and deviations of blocks of weights, in units of the deviation s of their prior.

    The KL of weight i in block b is a share of the budget C of the block, and its mean lies within
    what that allows:

    .. math:: κ_i = C \, softmax(ρ)_i, \qquad μ_i = s \sqrt{2 κ_i} \tanh t_i,

    and its variance is what gives that KL (:func:`log_variance_ratio`).

    Arguments:
        loc, scale: means and deviations in units of s ``(n,)``. It begins with the shares that they
            have of the KL of their block, and with means in the same part of what these allow; so
            with what is given, where the KL of a block is C.
        blocks: number of the block of each ``(n,)``, from 0.
        nats: C.

    Attributes:
        share, slope: ρ and t, ``(blocks, most weights of one)``.
        known: which blocks have values, ``(blocks,)``; these take the place of their posterior.
        values: in units of s.
    """

    nats: Tensor
    known: Tensor
    values: Tensor
    where: Tensor
    empty: Tensor

    def __init__(self, loc: Tensor, scale: Tensor, blocks: Tensor, nats: float) -> None:
        super().__init__()
        scale = scale.clamp(max=1.0 - _LEAST)  # wider than the prior no weight is
        counts = torch.bincount(blocks)
        shape = len(counts), int(counts.max())
        order = torch.argsort(blocks, stable=True)
        column = torch.arange(len(blocks), device=blocks.device)
        column = column - (counts.cumsum(0) - counts)[blocks[order]]
        where = torch.empty_like(order)
        where[order] = blocks[order] * shape[1] + column
        empty = torch.ones(shape[0] * shape[1], dtype=torch.bool, device=blocks.device)
        empty[where] = False
        self.register_buffer("where", where)
        self.register_buffer("empty", empty.reshape(shape))
        self.register_buffer("nats", torch.tensor(float(nats), device=loc.device))
        self.register_buffer("known", torch.zeros(shape[0], dtype=torch.bool, device=loc.device))
        self.register_buffer("values", torch.zeros(shape, dtype=loc.dtype, device=loc.device))
        kl = 0.5 * (loc.square() + scale.square() - 1.0) - scale.log()
        share = torch.zeros(shape, dtype=loc.dtype, device=loc.device)
        share.view(-1)[where] = kl.clamp_min(_LEAST**2).log()
        self.share = nn.Parameter(share)
        slope = torch.zeros_like(share)
        slope.view(-1)[where] = torch.atanh((loc / (2.0 * kl).sqrt()).clamp(-_STEEPEST, _STEEPEST))
        self.slope = nn.Parameter(slope)

    def _log_share(self) -> Tensor:
        share: Tensor = self.share
        return share.masked_fill(self.empty, -math.inf).log_softmax(-1)

    def in_blocks(self) -> tuple[Tensor, Tensor]:
        """Means and deviations as they lie in blocks, each of the shape of ``share``; what is empty
        has those of the prior."""
        # Where a block is shorter, no NaN may arise, not even in gradients that are masked.
        log_share = self._log_share().masked_fill(self.empty, -30.0)
        root = (0.5 * (log_share + self.nats.log())).exp()
        slope: Tensor = self.slope
        loc = math.sqrt(2.0) * root * torch.tanh(slope)
        steep = torch.exp(-slope.abs())
        rest = 4.0 * root * steep / (1.0 + steep.square())  # twice the root over cosh(t)
        scale = (0.5 * log_variance_ratio(rest)).exp()
        return loc, scale

    def forward(self) -> tuple[Tensor, Tensor]:
        """Means and deviations ``(n,)``."""
        loc, scale = self.in_blocks()
        known = self.known[:, None]
        loc = torch.where(known, self.values, loc)
        scale = torch.where(known, torch.full_like(scale, _HELD), scale)
        where = self.where
        return loc.reshape(-1)[where], scale.reshape(-1)[where]

    def know(self, block: int, values: Tensor) -> None:
        """Give the weights of a block their values, in units of s, ``(its weights,)``."""
        self.values[block, : len(values)] = values.to(self.values)
        self.known[block] = True


class MeanKLFactor(GaussianFactor):
    """The posterior of one site: a part of those of all weights."""

    def __init__(
        self, posterior: BlockPosterior, part: slice, layer: BayesianLayer, name: str
    ) -> None:
        super().__init__()
        self._posterior = (posterior,)  # not its own: it is the guide's
        self._layer = Lent(layer)
        self.part, self.name = part, name

    @property
    def centre(self) -> nn.Parameter:
        raise PyroccamError("The mean of a weight with a given KL depends on those of its block.")

    def prior(self) -> Any:
        """The normal prior of the site."""
        return base(self._layer.module.latents()[self.name].prior)

    def forward(self) -> Any:
        return self.of(*self._posterior[0]())

    def of(self, loc: Tensor, scale: Tensor) -> Any:
        """The posterior of the site, from means and deviations of all weights ``(n,)``, in units of
        that of the prior."""
        prior = self.prior()
        shape = prior.loc.shape
        loc = prior.loc + prior.scale * loc[self.part].reshape(shape)
        scale = prior.scale * scale[self.part].reshape(shape)
        return dist.Normal(loc, scale, validate_args=False).to_event(len(shape))


class MeanKL(NetworkGuide):
    r"""``q(w) = Π N(w_i; μ_i, σ_i²)`` whose KL to a normal prior is given, by blocks of weights.

    The budget is met by construction, so that nothing has to be weighed or annealed: training
    decides only how it is divided among the weights of a block. See :class:`BlockPosterior`.

    Arguments:
        model: a Bayesian network whose priors are normal. Weights begin where those of its network
            are, as far as the budget allows.
        nats: KL of each block; by default a bit for each of its weights.
        blocks: number of the block of each weight ``(n,)``, from 0, in the order of the sites;
            by default all are one block.
        begin: a guide of the same model with normal posteriors, with which it begins as far as the
            budget allows. By default it begins with the weights of the network, and deviations of
            half those of the prior.
        local: see :class:`~pyroccam.guides.base.NetworkGuide`.

    Raises:
        PyroccamError: for a prior that is not normal.
        ValueError: for a budget that is not positive, or blocks of another number of weights.

    References:
        Lin, Heinrich, Flamich, Hernández-Lobato 2023, Minimal random code learning with mean-KL
        parameterization, arXiv:2307.07816.
    """

    words: ClassVar[Words] = {}

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        nats: Positive | None = None,
        blocks: Tensor | None = None,
        begin: NetworkGuide | None = None,
        local: bool | LocalReparameterization = True,
    ) -> None:
        if model.counting is not None:
            raise PyroccamError(
                "guides.MeanKL of a BayesianStack, whose weights count at some depths only",
                "inference.shrinking.settled(fit).model",
                "guides.MeanField(model) for the fit",
            )
        super().__init__(model, local=local, scales="example")
        locs, scales_of = [], []
        for site, (layer, name) in model.sites.items():
            prior = base(layer.latents()[name].prior)
            if not isinstance(prior, torch.distributions.Normal):
                found = f"MeanKL of the {type(prior).__name__} of site {site!r}"
                raise PyroccamError(found, "priors.Normal for all layers")
            loc, scale = layer.start[name], 0.5 * prior.scale
            if begin is not None:
                q = base(begin.posterior(site))
                loc, scale = q.loc, q.scale
            locs.append(((loc - prior.loc) / prior.scale).detach().reshape(-1))
            scales_of.append((scale / prior.scale).detach().expand_as(prior.loc).reshape(-1))
        loc, scale = torch.cat(locs), torch.cat(scales_of)
        if blocks is None:
            blocks = torch.zeros(len(loc), dtype=torch.long)
        if blocks.shape != loc.shape:
            raise PyroccamError(f"blocks of {len(blocks)} weights", f"{len(loc)}, at all sites")
        if nats is None:
            nats = math.log(2) * int(torch.bincount(blocks).max())
        self._given = nats, blocks
        self.weights = BlockPosterior(loc, scale, blocks.to(loc.device), nats)
        self._taken = 0
        self.build(model)

    def arguments(self) -> dict[str, Any]:
        nats, blocks = self._given
        return {"nats": nats, "blocks": blocks, "local": False}

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        size = latent.prior.event_shape.numel()
        part = slice(self._taken, self._taken + size)
        self._taken += size
        weights: Any = self._modules["weights"]
        return MeanKLFactor(weights, part, layer, name)

    def distributions(self) -> Iterator[tuple[str, Any]]:
        """As everywhere; means and deviations are computed once for all."""
        factors, found = self.part("factors"), self.part("weights")()
        for site in self.sites:
            yield site, factors[self.key(site)].of(*found)
