"""The same network and data under another prior or guide, and fits side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ...data import Count, PyroccamError, checked
from ...guides import Guide
from ...models import BayesianNetwork, Model
from ...models.priors import DepthPrior, StructurePrior, WeightPrior
from ..elbo import evidence
from ..posterior import require
from ..shrinking import compressed
from ..training import Fit
from ..training import fit as train

if TYPE_CHECKING:
    import pandas as pd

Prior = WeightPrior | Mapping[str, WeightPrior] | DepthPrior


@checked
def swap(
    fit: Fit,
    *,
    prior: Prior | None = None,
    structure: StructurePrior | None = None,
    guide: Callable[[Model], Guide] | None = None,
    device: str | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Fit:
    """Fit the same network to the same data anew, with another prior or another guide.

    Everything begins where it began, as it was given to the model: random weights, weights that
    are numbers, statistics of normalisation, what the likelihood learns. The fit that is given
    stays as it is.

    Arguments:
        prior: of the weights, or of the depth; the same if left out.
        structure: prior of the structure of a graph, or of the depth of a stack of random weights.
        guide: makes a guide of a model: a class, such as ``guides.VariationalDropout``, or any
            function. The same kind with the same options if left out.
        device, progress: as for :func:`~pyroccam.inference.fit`.
        settings: that differ from those of the fit.

    Raises:
        PyroccamError: for a model without a prior, or a prior of another kind.
        ValueError: for a prior and a guide that do not go together.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> digits = data.load("digits")
        >>> model = models.BayesianNetwork(
        ...     torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        ...     digits,
        ...     prior=models.priors.GroupNormalJeffreys(),
        ... )
        >>> fit = inference.fit(model, guides.MeanField(model), digits, epochs=1, progress=False)
        >>> other = swap(fit, prior=models.priors.Normal(1.0), progress=False)
        >>> list(other.model.sites)
        ['1.weight', '1.bias']
    """
    if structure is not None and not fit.model.structure:
        raise PyroccamError(
            f"structure= is for models.StructuredNetwork; a {type(fit.model).__name__} has no "
            "graph of alternatives."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fit.settings.seed)
        model = fit.model.anew(fit.data, prior=prior, structure=structure)
        made = fit.guide.rebuild(model) if guide is None else guide(model)
    where = str(fit.data.device) if device is None else device
    chosen = vars(fit.settings) | settings
    return train(model, made, fit.data, device=where, progress=progress, **chosen)


@checked
def side_by_side(fits: Mapping[str, Fit], *, passes: Count = 5) -> pd.DataFrame:
    """A table of fits of the same data, a row for each: metrics of test rows and what was learnt.

    Arguments:
        fits: by name.
        passes: over the training rows, for the bound of random weights.

    Returns:
        columns: the metrics of the ensemble; ``elbo`` and ``kl`` of a training row, nats, with the
        ``elbo error`` of the passes; ``depth`` (the chosen) and ``mean depth``; ``weights left``
        after :func:`~pyroccam.inference.shrink` by its default rule, percent; ``structure`` (the
        most probable) and its ``log q``. What does not apply is missing.
    """
    import pandas as pd  # slow to import

    return pd.DataFrame({name: _row(one, passes) for name, one in fits.items()}).T


def _row(fit: Fit, passes: int) -> dict[str, Any]:
    found: dict[str, Any] = dict(fit.evaluate())
    if fit.structure is not None:
        q = fit.structure.depth_probs
        found["depth"] = fit.structure.depth_chosen
        found["mean depth"] = float((q * torch.arange(len(q), device=q.device)).sum())
    if not fit.model.random_weights:
        return found
    model, guide = require(fit, BayesianNetwork, "side_by_side")
    bound = evidence(model, guide, fit.data, passes=passes, seed=fit.settings.seed)
    found["elbo"], found["elbo error"] = bound.elbo / bound.rows, bound.error / bound.rows
    found["kl"] = bound.kl / bound.rows
    if model.structure and fit.structure is None:
        chosen: Any = fit.structures[0]
        found["structure"], found["log q"] = str(chosen.chosen), chosen.log_prob
    else:
        # Of weights without a mean, or where a whole layer would go, there is no smaller network.
        with suppress(ValueError):
            found["weights left"] = compressed(fit).report.rates.nonzero_percent
    return found
