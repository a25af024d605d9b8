"""The log joint density of a Bayesian network where some of its sites vary and the rest is held."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ..posterior import at_once, chunks, outputs_of, weights_of

if TYPE_CHECKING:
    from ...data import Dataset

Values = Mapping[str, Tensor]

BATCH = 1024  # rows in a pass of a network
CENTRE_DRAWS = 1000  # of relaxed structure, for its mean


def is_discrete(q: Any) -> bool:
    """A posterior over finitely many values has a probability for each."""
    return isinstance(q, torch.distributions.Categorical)


def is_improper(prior: Any) -> bool:
    """An improper prior has no draws: its density has no finite integral, or is not fixed."""
    try:
        with torch.random.fork_rng(devices=[]):
            prior.sample()
    except NotImplementedError:
        return True
    return False


def centres(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, Tensor]:
    """A value in the middle of the posterior of every site, ``(*)``.

    The mean; of relaxed structure that of γ (of 1,000 draws), in the coordinates of the site; of
    enumerated structure the most probable vertex.
    """
    found: dict[str, Tensor] = {}
    for site in model.sites:
        mean, _ = guide.factor_of(site).moments(1.0)
        found[site] = mean.detach().expand(guide.posterior(site).event_shape)
    for site, prior in model.structure.items():
        q = guide.posterior(site)
        if is_discrete(q):
            found[site] = q.logits.argmax(-1)
            continue
        gamma = prior.gamma(q.sample((CENTRE_DRAWS,))).mean(0)
        tiny = torch.finfo(gamma.dtype).eps
        cube = prior.restriction.startswith("cube")
        found[site] = gamma.logit(tiny) if cube else gamma.clamp_min(tiny).log()
    return found


class LogJoint:
    r"""``log p(θ_b, θ_rest, y)`` for S values of some sites, up to what does not depend on them.

    Arguments:
        model: in evaluation mode.
        data: whose training rows are ``y``.
        rows: positions of those that count, ``(R,)``, each as N / R rows; all by default.
    """

    def __init__(self, model: BayesianNetwork, data: Dataset, rows: Tensor | None = None) -> None:
        data.refuse_weights("A joint density")
        self.model, self.data = model, data
        self.net = model.start_network()  # whose weights are given
        self.rows = data.N if rows is None else len(rows)
        self._some = None if rows is None else data.take("train", rows)
        weights = sum(p.numel() for p in self.net.parameters())
        self.at_once = at_once(weights, min(self.rows, BATCH))

    def log_prior(self, values: Values, sites: Sequence[str]) -> Tensor:
        """Density of the sites, and of others whose prior depends on values, ``(S,)``, float64."""
        total = torch.zeros((), dtype=torch.float64)
        for site, prior in self.model.priors_given(values).items():
            if site in sites or prior.batch_shape:
                found = prior.log_prob(values[site]).double().cpu()
                total = total + torch.as_tensor(self.model.counts(site, values)).cpu() * found
        return total

    def log_likelihood(self, values: Values, layers: Collection[str] | None = None) -> Tensor:
        """Log-likelihood of each row, ``(S, R)``, float64, on the CPU.

        Arguments:
            values: of all sites, ``(S, *)``.
            layers: whose weights vary; the others have those that :meth:`_hold` gave them, and what
                comes before the first that varies is computed once for several draws.
        """
        return torch.cat([*self._of_batches(values, layers)], 1)

    def _of_batches(self, values: Values, layers: Collection[str] | None) -> Iterator[Tensor]:
        networks = weights_of(self.model, values, layers=layers)
        parts = self.data.parts("train", weighted=False) if self._some is None else [self._some]
        for whole in parts:
            for x, y in zip(*(t.split(BATCH) for t in whole), strict=True):
                outputs = outputs_of(self.net, networks, x)
                yield self.model.likelihood(outputs).log_prob(y).double().cpu()

    @torch.no_grad()
    def _hold(self, values: Values, moving: Collection[str]) -> None:
        """Give the layers that do not vary the weights of one value of their sites, ``(1, *)``."""
        layers = [name for name in self.model.layers if name not in moving]
        own = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        for name, value in weights_of(self.model, values, layers=layers).items():
            own[name].copy_(value[0])

    def __call__(
        self, block: Values, rest: Values, reference: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""The log joint density, ``(S,)``, and the variance of what the chosen rows leave open.

        With R of N rows the likelihood is N / R times their sum. As a draw of rows without
        replacement this has the variance :math:`N² / R (1 - R / N) V_n[l_n(θ) - l_n(θ_0)]` about
        the sum over all rows (up to what does not depend on θ).

        Arguments:
            block: values of the sites that vary, ``(S, *)``.
            rest: of all the others, ``(*)``.
            reference: log-likelihoods at θ_0, ``(R,)``; without it the variance is zero.

        Returns:
            two tensors ``(S,)``, float64, on the CPU.
        """
        (draws,) = {len(value) for value in block.values()}
        joint, variance, start = [], [], 0
        size, chosen = self.data.N, self.rows
        moving = {*self.model.layers}
        if not {*self.model.structure} & {*block}:
            moving = {self.model.sites[site][0].name for site in block}
        self._hold(
            {s: v[None] for s, v in rest.items()} | {s: v[:1] for s, v in block.items()}, moving
        )
        for count in chunks(draws, self.at_once):
            part = {site: value[start : start + count] for site, value in block.items()}
            part |= {site: value.expand(count, *value.shape) for site, value in rest.items()}
            start += count
            if reference is None:  # nothing is kept of rows, of which there may be millions
                total = torch.zeros(count, dtype=torch.float64)
                for found in self._of_batches(part, moving):
                    total += found.sum(1)
                variance.append(torch.zeros(count, dtype=torch.float64))
            else:
                each = self.log_likelihood(part, moving)
                total = each.sum(1)
                spread = (each - reference).var(1)
                variance.append(size**2 / chosen * (1 - chosen / size) * spread)
            joint.append(size / chosen * total + self.log_prior(part, list(block)))
        return torch.cat(joint), torch.cat(variance)
