"""Draws from a posterior with all that ArviZ asks about them, as plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data import Count, PyroccamError, Seed, checked
from ...models import BayesianNetwork, Model, dropping, evaluating, seeded
from ...models.likelihoods import Likelihood
from ..posterior import (
    Fit,
    at_once,
    chunks,
    draw_sites,
    in_original_units,
    outputs_by_depth,
    outputs_of,
    random_network,
    require,
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
        values: of sites, ``(S, *)``, as they are sampled; without weights, and where nothing else
            is random, the root mean square of each layer's, ``1.weight_rms``. NaN where a site does
            not count (:meth:`~pyroccam.models.base.Model.counts`): what is beyond the depth of a
            draw has no value of its own there, and no part in any of the densities.
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
        if not self.complete:
            return None
        total = self.log_likelihood.sum(1)
        for term in self.log_prior.values():
            total = total + term
        return total

    @property
    def log_ratio(self) -> Tensor | None:
        """``log p(θ, y) - log q(θ)``, ``(S,)``: ``None`` without log p, or of a point."""
        log_p = self.log_p
        if log_p is None or {*self.log_q} != {*self.log_prior} or not self.log_q:
            return None
        return log_p - torch.stack([*self.log_q.values()]).sum(0)


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
    weights: bool = False,
) -> PosteriorDraws:
    """Draws of the latents, their densities, and what they say of the rows of a split.

    Networks are drawn a few at a time (:func:`~pyroccam.inference.posterior.draws.at_once`), and of
    their weights only densities stay, unless they are asked for. A point is drawn once. The seed is
    that of the fit; generators are left as they were.

    Arguments:
        draws: S.
        split: whose rows.
        rows: only so many, evenly spread.
        weights: keep weights and biases too.

    Raises:
        PyroccamError: for more numbers than fit into 2 GiB.
    """
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
            parts = _network_parts(fit, 1 if fit.posterior.is_point else draws, x, y, weights)
        else:
            parts = _depth_parts(fit, draws, x, y)
    return PosteriorDraws(*parts, chosen, complete)


Parts = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], Tensor, Tensor]


class _Outputs:
    """Outputs ``(S, N, outputs)`` of networks for inputs, a few of them at a time."""

    def __init__(self, model: BayesianNetwork, x: Tensor) -> None:
        self.model, self.x, self.net = model, x, model.start_network()

    def sizes(self, draws: int) -> list[int]:
        count = sum(p.numel() for p in self.net.parameters())
        return chunks(draws, at_once(count, min(len(self.x), BATCH)))

    def __call__(self, drawn: Mapping[str, Tensor]) -> Tensor:
        networks = weights_of(self.model, drawn)
        with dropping(self.net):
            each = [outputs_of(self.net, networks, part) for part in self.x.split(BATCH)]
        return torch.cat(each, 1)


def _network_parts(fit: Fit, draws: int, x: Tensor, y: Tensor, weights: bool) -> Parts:
    model, guide = require(fit, BayesianNetwork, "to_arviz")
    outputs = _Outputs(model, x)
    found: list[Parts] = []
    for size in outputs.sizes(draws):
        drawn = draw_sites(model, guide, size)
        known, reached = fit.posterior.log_prob(drawn), dict(drawn)
        log_prior, log_q = {}, {}
        for site, fn in model.priors_given(drawn).items():
            used = torch.as_tensor(model.counts(site, drawn)).cpu()
            log_prior[site] = used * _log_prob(fn, drawn[site])
            if site in known:
                log_q[site] = used * known[site]
            if used.dim():
                reached[site] = _where(used > 0, drawn[site])
        said = _said(fit, outputs(drawn), y)
        found.append((_shown(reached, weights), log_prior, log_q, *said))
    values, log_priors, log_qs, likelihoods, predictions = zip(*found, strict=True)
    each = _joined(values), _joined(log_priors), _joined(log_qs)
    return *each, torch.cat(likelihoods), torch.cat(predictions)


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _shown(drawn: Mapping[str, Tensor], weights: bool) -> dict[str, Tensor]:
    """What is kept of draws ``(S, *)``: all, or without weights and biases; where nothing else is
    random, their root mean squares ``(S,)``, which sum a layer up in one number."""
    large = {site for site in drawn if site.rpartition(".")[2] in ("weight", "bias")}
    if weights or large != {*drawn}:
        return {site: v.cpu() for site, v in drawn.items() if weights or site not in large}
    return {f"{site}_rms": v.flatten(1).square().mean(1).sqrt().cpu() for site, v in drawn.items()}


def _where(used: Tensor, value: Tensor) -> Tensor:
    """Draws ``(S, *)`` of those that are used ``(S,)``, and NaN for the others."""
    return torch.where(used.to(value.device).view(-1, *[1] * (value.dim() - 1)), value, torch.nan)


def _log_prob(fn: Any, value: Tensor) -> Tensor:
    """``(S,)``, summed over whatever event and batch dims there are."""
    found: Tensor = fn.log_prob(value).double()
    return found.reshape(len(value), -1).sum(1).cpu()


def _depth_parts(fit: Fit, draws: int, x: Tensor, y: Tensor) -> Parts:
    model = fit.model
    by_depth = outputs_by_depth(model, x)
    found, _ = _said(fit, by_depth, y)
    if model.latents():
        q = fit.weights.double()
        depth = torch.multinomial(q, draws, replacement=True)
        values = {"depth": depth.cpu()}
        terms = {"depth": _log_prior(model)[depth].cpu()}, {"depth": q.log()[depth].cpu()}
    else:
        depth = torch.zeros(draws, dtype=torch.long, device=x.device)
        values, terms = {}, ({}, {})
    predictions = _by_depth(model.likelihood, by_depth, depth, fit.data)
    return values, *terms, found[depth.cpu()], predictions


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
    found: Tensor | None = None
    for d in depth.unique():
        chosen = (depth == d).nonzero()[:, 0]
        drawn = _predicted(likelihood, outputs[d], data, len(chosen))
        if found is None:
            found = drawn.new_empty(len(depth), *drawn.shape[1:])
        found[chosen.cpu()] = drawn
    assert found is not None
    return found


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
    weights: bool = False,
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
        weights: keep weights and biases too.
        seed: of the draws; generators are left as they were.
    """
    with evaluating(model), seeded(seed, x.device):
        if (network := random_network(model)) is not None:
            return _network_prior(network, x, draws, weights, data)
        by_depth = outputs_by_depth(model, x)
        values: dict[str, Tensor] = {}
        depth = torch.zeros(draws, dtype=torch.long, device=x.device)
        if model.latents():
            depth = torch.multinomial(_log_prior(model).exp(), draws, replacement=True)
            values["depth"] = depth.cpu()
        return PriorDraws(values, [], _by_depth(model.likelihood, by_depth, depth, data))


def _network_prior(
    model: BayesianNetwork, x: Tensor, draws: int, weights: bool, data: Dataset | None
) -> PriorDraws:
    outputs = _Outputs(model, x)
    values: list[dict[str, Tensor]] = []
    improper: list[str] = []
    predictions = []
    for size in outputs.sizes(draws):
        drawn = {site: prior().sample((size,)) for site, prior in model.structure.items()}
        improper = []
        for site, fn in model.priors_given(drawn).items():
            if site in drawn:
                continue
            try:
                drawn[site] = fn.sample(() if fn.batch_shape else (size,))
            except NotImplementedError:
                improper.append(site)
        shown = _shown(drawn, weights).items()  # biases alone are no summary of a layer
        values.append({name: value for name, value in shown if name in drawn or not improper})
        if not improper:
            predictions.append(_predicted(model.likelihood, outputs(drawn), data))
    return PriorDraws(_joined(values), improper, torch.cat(predictions) if predictions else None)
