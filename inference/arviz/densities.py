"""Draws from a posterior with all that ArviZ asks about them, as plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data import Count, PyroccamError, Seed, checked
from ...models import BayesianNetwork, Model, dropping, evaluating, seeded
from ...models.likelihoods import Likelihood
from ..posterior import (
    Fit,
    at_once,
    chunks,
    in_original_units,
    log_prob_of,
    outputs_by_depth,
    outputs_of,
    random_network,
    refuse_undecided,
    weights_of,
)

if TYPE_CHECKING:
    from ...data import Dataset

BATCH = 1024  # rows in a pass
MOST = 2**28  # numbers of log-likelihoods, 2 GiB


@dataclass
class PosteriorDraws:
    """S draws from a posterior with their densities of N rows, on the CPU; nats, double precision.

    Attributes:
        values: of sites, ``(S, *)``, as they are sampled; of weights and biases of more numbers
            than were asked for the root mean square of a layer, ``1.weight_rms``. NaN where a site
            does not count (:meth:`~pyroccam.models.base.Model.counts`): what is beyond the depth of
            a draw has no value of its own there, and no part in any of the densities.
        log_prior: of every site, ``(S,)``; of an improper prior up to a constant.
        log_q: by site, ``(S,)``; of a point nothing.
        log_likelihood: of each row in original units of the target, ``(S, N)``.
        predictions: a target drawn for each row, original units, ``(S, N)`` or ``(S, N, T)``.
        rows: their positions in the split, ``(N,)``.
        complete: the rows are all training rows, without weights, so that log p(θ, y) is known.
    """

    values: dict[str, Tensor]
    log_prior: dict[str, Tensor]
    log_q: dict[str, Tensor]
    log_likelihood: Tensor
    predictions: Tensor
    rows: Tensor
    complete: bool

    @property
    def log_p(self) -> Tensor | None:
        """``log p(θ, y)``, ``(S,)``, up to a constant if a prior is improper."""
        return sum(self.log_prior.values(), self.log_likelihood.sum(1)) if self.complete else None

    @property
    def total_log_q(self) -> Tensor | None:
        """``log q(θ)``, ``(S,)``: ``None`` where a site is a point."""
        if {*self.log_q} != {*self.log_prior} or not self.log_q:
            return None
        return torch.stack([*self.log_q.values()]).sum(0)

    @property
    def log_ratio(self) -> Tensor | None:
        """``log p(θ, y) - log q(θ)``, ``(S,)``: ``None`` without log p, or of a point."""
        log_p, log_q = self.log_p, self.total_log_q
        return None if log_p is None or log_q is None else log_p - log_q


@dataclass
class PriorDraws:
    """Draws from the prior, on the CPU.

    Attributes:
        values: of the sites with a proper prior, ``(S, *)``.
        improper: the other sites; with any, nothing can be predicted.
        predictions: as of :class:`PosteriorDraws`, or ``None``.
    """

    values: dict[str, Tensor]
    improper: list[str] = field(default_factory=list)
    predictions: Tensor | None = None


def even_rows(count: int, rows: int | None) -> Tensor:
    """Positions of ``rows`` of ``count`` rows, evenly spread: for all fits of the data the same."""
    if rows is None or rows >= count:
        return torch.arange(count)
    return torch.linspace(0, count - 1, rows).round().long()


@torch.no_grad()
def draw_posterior(
    fit: Fit,
    draws: int,
    *,
    split: str = "train",
    rows: int | None = None,
    keep: float = 0,
) -> PosteriorDraws:
    """Draws of the latents, their densities, and what they say of the rows of a split.

    Networks are drawn a few at a time (:func:`~pyroccam.inference.posterior.draws.at_once`), and of
    large weights only densities stay, and how large they are. A point is drawn once; of a posterior
    that is draws, each comes once at most, in their order. The seed is that of the fit; generators
    are left as they were.

    Arguments:
        draws: S, at most.
        split: whose rows.
        rows: only so many, evenly spread.
        keep: numbers that the weights, or biases, of a layer have at most to be kept.

    Raises:
        PyroccamError: for more numbers than fit into 2 GiB.
    """
    refuse_undecided(fit)
    chosen = even_rows(fit.data.counts.get(split) or len(fit.data.split(split)[0]), rows)
    if draws * len(chosen) > MOST:
        raise PyroccamError(
            f"{draws} draws of {len(chosen):,} rows",
            f"at most {MOST:,} log-likelihoods",
            "rows=",
        )
    x, y = fit.data.take(split, chosen)
    complete = split == "train" and len(chosen) == fit.data.N and not fit.data.weighted
    with evaluating(fit.model), seeded(fit.settings.seed, x.device):
        if fit.model.random_weights:
            parts = _of_networks(fit, 1 if fit.posterior.is_point else draws, x, y, keep)
        else:
            parts = _of_depths(fit, draws, x, y)
    return PosteriorDraws(*parts, chosen, complete)


Values = dict[str, Tensor]
Parts = tuple[Values, Values, Values, Tensor, Tensor]


def _networks(
    model: BayesianNetwork, x: Tensor, draws: int, draw: Callable[[int], Values]
) -> Iterator[tuple[Values, Tensor | None]]:
    """Draws of all sites, a few networks at a time, with their outputs ``(S, N, outputs)``; none
    where a site has no draws."""
    net = model.start_network()
    count = sum(p.numel() for p in net.parameters())
    for size in chunks(draws, at_once(count, min(len(x), BATCH))):
        drawn = draw(size)
        if len(drawn) < len(model.latents()):
            yield drawn, None
            continue
        networks = weights_of(model, drawn)
        with dropping(net):
            yield drawn, torch.cat([outputs_of(net, networks, part) for part in x.split(BATCH)], 1)


def _of_networks(fit: Fit, draws: int, x: Tensor, y: Tensor, keep: float) -> Parts:
    model, posterior = fit.model, fit.posterior
    found: list[Parts] = []
    draw: Callable[[int], Values] = posterior.draw
    if (own := fit.guide.samples) is not None:  # each once, as a chain has them
        places = iter(order := even_rows(len(next(iter(own.values()))), draws).tolist())
        draws = len(order)

        def in_order(size: int) -> Values:
            at = [*islice(places, size)]
            return {site: values[at] for site, values in own.items()}

        draw = in_order
    for drawn, outputs in _networks(model, x, draws, draw):
        assert outputs is not None
        known, reached = posterior.log_prob(drawn), dict(drawn)
        log_prior, log_q = {}, {}
        for site, fn in model.priors_given(drawn).items():
            used = torch.as_tensor(model.counts(site, drawn)).cpu()
            log_prior[site] = used * log_prob_of(fn, drawn[site])
            if site in known:
                log_q[site] = used * known[site]
            if used.dim():
                own = drawn[site]
                kept = used.to(own.device).view(-1, *[1] * (own.dim() - 1)) > 0
                reached[site] = torch.where(kept, own, torch.nan)
        found.append((_shown(reached, keep), log_prior, log_q, *_said(fit, outputs, y)))
    values, log_priors, log_qs, likelihoods, predictions = zip(*found, strict=True)
    each = _joined(values), _joined(log_priors), _joined(log_qs)
    return *each, torch.cat(likelihoods), torch.cat(predictions)


def _joined(parts: Sequence[Values]) -> Values:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _shown(drawn: Mapping[str, Tensor], keep: float) -> Values:
    """What is kept of draws ``(S, *)``: all but weights and biases of more numbers, of which it is
    the root mean square, ``(S,)``, that sums a layer up in one number."""
    shown = {}
    for site, value in drawn.items():
        if site.rpartition(".")[2] in ("weight", "bias") and value[0].numel() > keep:
            shown[f"{site}_rms"] = value.flatten(1).square().mean(1).sqrt().cpu()
        else:
            shown[site] = value.cpu()
    return shown


def _of_depths(fit: Fit, draws: int, x: Tensor, y: Tensor) -> Parts:
    model, q = fit.model, fit.weights.double()
    by_depth = outputs_by_depth(model, x)
    found, _ = _said(fit, by_depth, y)
    values, depth = _drawn_depths(model, q, draws)
    log_prior = {site: _log_prior(model)[depth].cpu() for site in values}
    log_q = {site: q.log()[depth].cpu() for site in values}
    predictions = _by_depth(model.likelihood, by_depth, depth, fit.data)
    return values, log_prior, log_q, found[depth.cpu()], predictions


def _drawn_depths(model: Model, probs: Tensor, draws: int) -> tuple[Values, Tensor]:
    """The site of a depth that is learnt, and the depths ``(S,)``: of a known one zeros."""
    if not model.latents():
        return {}, torch.zeros(draws, dtype=torch.long, device=probs.device)
    depth = torch.multinomial(probs, draws, replacement=True)
    return {"depth": depth.cpu()}, depth


def _log_prior(model: Model) -> Tensor:
    """Log prior of learnt depth, ``(D + 1,)``, float64."""
    return model.get_buffer("log_prior").double()


def _said(fit: Fit, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log-likelihoods ``(S, N)`` and a prediction each ``(S, N, ...)``, in original units."""
    likelihood, data = fit.model.likelihood, fit.data
    found = likelihood(outputs).log_prob(y).double()
    if likelihood.task != "classification":
        found = found - data.y_std.double().log().sum()
    return found.cpu(), _predicted(likelihood, outputs, data)


def _by_depth(
    likelihood: Likelihood, outputs: Tensor, depth: Tensor, data: Dataset | None
) -> Tensor:
    """Predictions ``(S, N, ...)`` at depths ``(S,)``, from outputs ``(D + 1, N, outputs)``."""
    counts = zip(*depth.unique(return_counts=True), strict=True)
    each = [_predicted(likelihood, outputs[d], data, int(count)) for d, count in counts]
    return torch.cat(each)[depth.argsort(stable=True).argsort().cpu()]


def _predicted(
    likelihood: Likelihood, outputs: Tensor, data: Dataset | None, *count: int
) -> Tensor:
    drawn: Tensor = likelihood(outputs).sample(torch.Size(count))
    if data is not None and likelihood.task != "classification":
        drawn = in_original_units(data, drawn)
    return drawn.cpu()


@torch.no_grad()
@checked
def draw_prior(
    model: Model,
    x: Tensor,
    draws: Count = 500,
    *,
    data: Dataset | None = None,
    keep: float = 0,
    seed: Seed = 0,
) -> PriorDraws:
    """Draws of the latents from the prior, and of targets before any were seen.

    What the model holds as numbers (weights without a prior, the noise of regression, what a prior
    learns) has the value that it has now.

    Arguments:
        model: of a pair.
        x: inputs ``(N, *)``, standardised as the data set is.
        draws: S.
        data: by whose targets ``x`` is predicted in original units; left out, standardised.
        keep: numbers that the weights, or biases, of a layer have at most to be kept.
        seed: of the draws; generators are left as they were.
    """
    with evaluating(model), seeded(seed, x.device):
        if (network := random_network(model)) is not None:
            return _network_prior(network, x, draws, keep, data)
        probs = _log_prior(model).exp() if model.latents() else x.new_ones(1)
        by_depth = outputs_by_depth(model, x)
        values, depth = _drawn_depths(model, probs, draws)
        return PriorDraws(values, [], _by_depth(model.likelihood, by_depth, depth, data))


def _network_prior(
    model: BayesianNetwork, x: Tensor, draws: int, keep: float, data: Dataset | None
) -> PriorDraws:
    def draw(size: int) -> Values:
        drawn = {site: prior().sample((size,)) for site, prior in model.structure.items()}
        for site, fn in model.priors_given(drawn).items():
            if site not in drawn:
                with suppress(NotImplementedError):  # of an improper prior
                    drawn[site] = fn.sample(() if fn.batch_shape else (size,))
        return drawn

    values, predictions = [], []
    for drawn, outputs in _networks(model, x, draws, draw):
        values.append(_shown(drawn, keep))
        if outputs is not None:
            predictions.append(_predicted(model.likelihood, outputs, data))
    improper = [site for site in model.sites if site not in drawn]
    return PriorDraws(_joined(values), improper, torch.cat(predictions) if predictions else None)
