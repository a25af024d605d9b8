"""A pretrained transformer, smaller: heads and inner units pay for their weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from ... import guides, models
from ...data import Dataset, PyroccamError
from ...inference.cutting import ROWS
from ...inference.elbo import evidence
from ...inference.files import Small
from ...inference.posterior import mean_network, require
from ...inference.shrinking import Cut, Search
from ...inference.training import Fit, Settings
from ...models.networks import branches
from ...models.priors import Pretrained
from .base import Finished, Pair, length_in
from .options import NotNegative, Part, Positive, Share
from .weights import OverWeights, evaluate, try_to_cut

FOLDER_OF = "transformers"
"""In a run's folder, what ``from_pretrained`` opens."""


@dataclass(frozen=True)
class Transfer(OverWeights):
    """Train the network as it is, then gates of its heads and inner units over weights that are
    points around it, then what is left, from the labels and from what the whole network predicts.

    Attributes:
        keep: share of the weights that residual branches are to keep. In the prior the gate of the
            part with the fewest weights, an inner unit, is open with this probability; a gate that
            closes n times as many weights, as that of a head in all of its projections, has these
            odds to the power of n.
        scale: standard deviation of the change of a weight, in the prior.
        start: fraction of the run in which the whole network is trained as numbers, at first.
        finish: fraction of the run in which the smaller network is, in the end.
        tables: train embeddings, too.
        tolerance: nats of a row, and share of errors, that the smaller network may lose to the
            whole one; 0.01 if left out.
    """

    keep: Share = 1.0 / 3.0
    scale: Positive = 0.1
    start: Part = 0.2
    finish: Part = 0.5
    tables: bool = False
    tolerance: NotNegative | None = None
    predictor: ClassVar[str] = "drawn gates"
    units_first: ClassVar[bool] = False  # gates are of units

    @property
    def shares(self) -> Sequence[float]:
        return (self.keep,)

    def rule(self, usual: Cut | None) -> Cut | None:
        if not isinstance(usual, Search):
            return usual
        return replace(usual, shares=self.shares, units=False, teacher="plain")

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        for module in net.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(self.tables)
        odds = math.log(self.keep) - math.log1p(-self.keep)
        parts = branches(net)
        least = min(part.weights for part in parts.values())
        prior = {
            name: Pretrained(net, self.scale, odds=odds * part.weights / least, block=part.block)
            for name, part in parts.items()
        }
        model = models.BayesianNetwork(net, data, prior=prior, likelihood=self.likelihood)
        try_to_cut(model, data)
        return model, guides.Gates(model)

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        yield from super().refusals(settings, data)
        if not len(data.x_val):
            yield "finish", "needs validation rows, and there are none."
        if self.start + self.finish >= 1.0:
            both = f"start={self.start:g} and finish={self.finish:g}"
            for name in ("start", "finish"):
                yield name, f"leaves nothing of the run for gates, with {both}."

    def rates(self, settings: Settings) -> Sequence[float]:
        return (settings.lr,)

    def numbers(self, settings: Settings, data: Dataset) -> int:
        return max(1, round(self.start * settings.epochs_for(data.N)))

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        return self.search(settings, data, True)

    def first(self, settings: Settings) -> dict[str, Any]:
        rest = 1.0 - self.start - self.finish
        whole = settings.steps if settings.epochs is None else settings.epochs
        return {length_in(settings): max(1, round(rest * whole))}

    def hand_on(self, net: nn.Module, out: Path | None) -> list[str]:
        if out is None:
            return []
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                Small(net).save(out / FOLDER_OF)
        except PyroccamError as error:
            return [f"There is no folder for from_pretrained: {error}."]
        return [f"from_pretrained opens {out / FOLDER_OF}.", *(str(one.message) for one in told)]

    def report(self, run: Finished) -> dict[str, Any]:
        found = super().report(run)
        return {**found, "learnt": [_said_of_gates(run.fits[-1]), *found["learnt"]]}

    def scores(
        self, result: Fit, split: str, folder: Path | None = None
    ) -> dict[str, dict[str, float]]:
        """Of the network of the means; one for each draw of gates would take long."""
        net = mean_network(*require(result, models.BayesianNetwork, self.name))
        return {"full": evaluate(result, net, split)}

    def on_test(self, result: Fit) -> dict[str, float]:
        return self.scores(result, "test")["full"]


@torch.no_grad()
def _said_of_gates(result: Fit) -> dict[str, Any]:
    """Which gates are open by the posterior, for ``learnt``, and the nats on both sides of it."""
    rows, change = [], 0.0
    parts = branches(result.model.start_network())
    for name, layer in result.model.layers.items():
        probs = result.guide.posterior(f"{name}.gate").base_dist.probs
        left = {"left": int((probs > 0.5).sum()), "expected": round(float(probs.sum()), 1)}
        rows.append({"layer": name, "of": parts[name].of, "gates": len(probs), **left})
        for which, latent in layer.latents().items():
            if which != "gate":  # beside the density at the given weights, which costs nothing
                p, w = latent.prior, result.guide.factor_of(f"{name}.{which}").centre
                change += float(p.log_prob(p.mean) - p.log_prob(w))
    closed = sum(int(row["gates"]) - int(row["left"]) for row in rows)
    bound = evidence(result.model, result.guide, result.data, rows=ROWS, passes=2)
    gates = sum(kl for site, kl in bound.kl_by_site.items() if site.endswith(".gate"))
    labels = -bound.log_likelihood * result.data.N / bound.rows
    said = (
        f"By the posterior {closed:,} of {sum(int(row['gates']) for row in rows):,} gates are more "
        f"likely closed than open. Gates cost {gates:,.0f} nats and the change of the weights "
        f"{change:,.0f}, beside {labels:,.0f} of the labels."
    )
    return {"title": "Heads and inner units that stay", "sentences": [said], "rows": rows}
