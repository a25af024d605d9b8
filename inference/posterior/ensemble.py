"""The averaged prediction of draws, or of several fits, as one network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...data import PyroccamError, Seed, checked
from ...models import BayesianNetwork, seeded
from .draws import DrawnNetwork, Draws, Noise
from .posteriors import Fits, members, require
from .same_rows import on_scale_of

if TYPE_CHECKING:
    from ...data import Dataset

AT_ONCE = 32  # passes whose intermediate results are held together


class EnsembleNetwork(nn.Module):
    r"""The predictive log-probabilities of one fit, or of several, differentiable in the inputs.

    .. math:: \log \frac{1}{S} \sum_s \mathrm{softmax}(f_{w_s}(x)), \qquad w_s \sim q(w)

    Where the likelihood is one of your own, its probabilities stand for the softmax.

    Every call draws anew, so a gradient is an unbiased look at what another call will say. With a
    ``seed`` each call draws the same noise, and the network is a function: an attack on that fits
    its noise (Athalye et al. 2018).

    The fits are copied as they are, in evaluation mode (of which dropout is excepted, see
    :class:`~pyroccam.inference.posterior.draws.DrawnNetwork`), and their parameters get no
    gradients.

    Arguments:
        fits: of Bayesian networks that classify. Several are averaged with equal shares: a deep
            ensemble, if they are point estimates.
        draws: S, of each fit. A point estimate without dropout needs one, and gets one.
        noise: see :class:`~pyroccam.inference.posterior.draws.DrawnNetwork`. With drawn weights a
            draw is one network for all inputs of a call; with a seed also for those of other calls.
        seed: of all draws, or ``None`` for fresh ones at each call, from torch's generator.

    Raises:
        PyroccamError: for a fit of anything but a Bayesian network that classifies, or no fit.

    References:
        Lakshminarayanan, Pritzel, Blundell 2017, arXiv:1612.01474; Athalye, Carlini, Wagner 2018,
        arXiv:1802.00420, for gradients through noise.
    """

    @checked
    def __init__(
        self,
        fits: Fits,
        *,
        draws: Draws = 20,
        noise: Noise = "weights",
        seed: Seed | None = None,
    ) -> None:
        super().__init__()
        networks: list[nn.Module] = []
        likelihoods: list[nn.Module] = []
        self._passes: list[int] = []  # the network of each pass
        all_of = members(fits)
        for one in all_of:
            instead = "Of learnt depth, inference.shrink makes a plain network: take its gradients."
            model, guide = require(one, BayesianNetwork, "EnsembleNetwork", instead)
            if model.likelihood.task != "classification":
                raise PyroccamError(f"A fit of {model.likelihood.task}", "classification")
            model, guide = copy.deepcopy((model, guide))
            self._passes += [len(networks)] * (1 if one.posterior.is_point else draws)
            likelihoods.append(model.part("likelihood"))
            drawn = DrawnNetwork(model, guide, noise)
            networks.append(_of_own_scale(drawn, all_of[0].data, one.data))
        counts = [self._passes.count(k) for k in range(len(networks))]
        self._shares = [1.0 / (len(networks) * counts[k]) for k in self._passes]
        self.networks, self.likelihoods = nn.ModuleList(networks), nn.ModuleList(likelihoods)
        self.requires_grad_(False)
        self.seed = seed
        self.eval()

    def train(self, mode: bool = True) -> EnsembleNetwork:
        """It stays in evaluation mode."""
        super().train(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities ``(B, C)`` for ``x``, ``(B, *)``, standardised as the data of the first
        fit; in double precision: of a sure class the single one says that its probability is one,
        and that nothing would change that."""
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        count = len(self._passes)
        seeds = torch.randint(2**62, (count,), generator=generator).tolist()
        mixed: Any = self._mixed
        if count > AT_ONCE and x.requires_grad:  # every pass can be computed again, by its seed
            mixed = partial(checkpoint, mixed, use_reentrant=False, preserve_rng_state=False)
        starts = range(0, count, AT_ONCE)
        parts = [mixed(range(s, min(s + AT_ONCE, count)), seeds, x) for s in starts]
        return torch.logsumexp(torch.stack(parts), 0)

    def _mixed(self, passes: Sequence[int], seeds: Sequence[int], x: Tensor) -> Tensor:
        """``log Σ_s share_s softmax_s`` over some of the passes; seeds are of all."""
        found = []
        for s in passes:
            with seeded(seeds[s], x.device):
                outputs = self.networks[self._passes[s]](x)
            likelihood: Any = self.likelihoods[self._passes[s]]
            found.append(likelihood.predicted(outputs.double()))
        shares = torch.tensor([self._shares[s] for s in passes], dtype=torch.float64)
        return torch.logsumexp(torch.stack(found) + shares.to(x.device).log()[:, None, None], 0)


class _Rescaled(nn.Module):
    """Inputs on the scale of another data set: ``x * scale + shift``."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def _of_own_scale(net: nn.Module, first: Dataset, own: Dataset) -> nn.Module:
    """A network that takes inputs on the scale of the first fit's data."""
    zero = first.head(1)[0].new_zeros(1, *first.input_shape)
    shift, above = on_scale_of(zero, first, own), on_scale_of(zero + 1.0, first, own)
    if torch.equal(shift, zero) and torch.equal(above, zero + 1.0):
        return net
    return nn.Sequential(_Rescaled(above - shift, shift), net)


def components(
    fits: Fits,
    x: Tensor,
    *,
    draws: int | None = None,
    noise: Noise = "weights",
) -> tuple[Tensor, Tensor]:
    """Components of a prediction: outputs ``(S, N, outputs)`` and their weights ``(S,)``.

    Arguments:
        fits: one, or several with equal shares.
        x: ``(N, *)``, standardised as the data of the first fit.
        draws, noise: of each fit, as for :meth:`~pyroccam.inference.Fit.outputs`. A point estimate
            without dropout gets one draw.
    """
    found, shares = [], []
    all_of = members(fits)
    for one in all_of:
        count = 1 if one.posterior.is_point else draws
        own_x = on_scale_of(x, all_of[0].data, one.data).to(one.weights.device)
        outputs, own = one.components(own_x, draws=count, noise=noise)
        found.append(outputs)
        shares.append(own / len(all_of))
    return torch.cat(found), torch.cat(shares)
