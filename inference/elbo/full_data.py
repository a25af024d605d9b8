"""The evidence lower bound of a fit, over the whole data set, with its error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyro
import torch
from torch import Tensor, nn

from ...data import AtLeastTwo, Count, Seed, checked
from ...guides import sums_out
from ...models import Model, evaluating, log_likelihood_by_depth, seeded
from .estimator import bound

if TYPE_CHECKING:
    from ...data import Dataset


BATCH = 1024  # rows in a pass


class Evidence(NamedTuple):
    """The bound and its error, in nats over all rows.

    Attributes:
        elbo: ``log_likelihood - kl``, the mean over passes.
        error: its standard error.
        log_likelihood: ``E_q[log p(y | w)]``; of latents that the model sums out, ``log p(y)``.
        kl: ``KL(q || p)``; of an improper prior up to the constant that its density has.
        rows: that were summed over.
        kl_by_site: the terms of ``kl``, by latent.
    """

    elbo: float
    error: float
    log_likelihood: float
    kl: float
    rows: int
    kl_by_site: Mapping[str, float] = MappingProxyType({})


@checked
def evidence(
    model: nn.Module,
    guide: nn.Module,
    data: Dataset,
    *,
    split: str = "train",
    rows: Count | None = None,
    passes: AtLeastTwo = 5,
    seed: Seed = 0,
) -> Evidence:
    """The evidence lower bound by passes through all rows, in evaluation mode; weights are as
    random as in training, dropout modules do nothing.

    With ``guides.Marginal`` it is the log evidence itself, ``log Σ_d p(d) Π_n p(y_n | x_n, d)``, at
    the present weights, and has no error.

    Arguments:
        model, guide: a pair.
        data: on its device.
        split: whose rows; their number takes the place of N. Weights of training rows count.
        rows: only the first ones.
        passes: each with fresh noise; one alone would show no error.
        seed: of the noise; the state of the generator is left as it was.
    """
    if sums_out(guide):  # which a Pyro guide of a person's own does not say
        return summed_out(cast(Model, model), first_rows(data, split, rows))
    evaluate = bound(model, guide)
    evaluate.elbo.joins = False
    size: Any = model.size
    found = []
    by_site: dict[str, float] = {}
    quiet = pyro.validation_enabled(False)
    with evaluating(model), evaluating(guide), seeded(seed, data.device), quiet:
        for _ in range(passes):
            likelihood, kls, count = 0.0, [], 0
            for x, y in first_rows(data, split, rows):
                count += len(x)
                for part, target in zip(x.split(BATCH), y.split(BATCH), strict=True):
                    terms = evaluate.terms(part, target)
                    # Scaled as if the batch were all of the model's N rows.
                    likelihood += float(terms.log_likelihood) * len(part) / size
                    kls.append(float(terms.kl))
                    for site, kl in terms.kl_by_site.items():
                        by_site[site] = by_site.get(site, 0.0) + float(kl)
            found.append((likelihood, sum(kls) / len(kls)))
    values = torch.tensor(found, dtype=torch.float64)
    elbos = values[:, 0] - values[:, 1]
    means = values.mean(0).tolist()
    error = float(elbos.std()) / math.sqrt(passes)
    evaluations = passes * len(kls)
    each = {site: total / evaluations for site, total in by_site.items()}
    return Evidence(float(elbos.mean()), error, means[0], means[1], count, each)


def first_rows(
    data: Dataset, split: str, rows: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of the first rows of a split, or of all, part by part."""
    left = data.counts.get(split, 0) if rows is None else rows
    for x, y in data.parts(split):
        yield x[:left], y[:left]
        left -= len(x)
        if left <= 0:
            break


def summed_out(model: Model, parts: Iterable[tuple[Tensor, Tensor]]) -> Evidence:
    """The evidence of weights that are numbers, with a depth summed out: the sum over depths is
    outside of that over rows, so that batches add up within a depth, and not their bounds.

    Arguments:
        parts: inputs and targets of the rows.
    """
    sums, rows = [], 0
    with evaluating(model):
        for x, y in parts:
            sums.append(log_likelihood_by_depth(model, x, y))
            rows += len(x)
        by_depth = torch.stack(sums).sum(0)
        if model.latents():
            by_depth = by_depth + model.get_buffer("log_prior").double()
        log_evidence = float(torch.logsumexp(by_depth, 0))
    return Evidence(log_evidence, 0.0, log_evidence, 0.0, rows)
