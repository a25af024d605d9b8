"""A pretrained transformer, smaller: the heads and inner units of which its data know least go."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from ... import guides, models
from ...data import Dataset, Fraction, NotNegative, Positive, PyroccamError, Share, Whole
from ...inference.files import Small
from ...inference.posterior import mean_network, require
from ...inference.shrinking import Cut, Search
from ...inference.training import Fit, Settings
from ...models.layers import affine_kind
from .base import Pair, length_in
from .weights import OverWeights, evaluate, try_to_cut

FOLDER_OF = "transformers"
"""In a run's folder, what ``from_pretrained`` opens."""


@dataclass(frozen=True)
class Transfer(OverWeights):
    """Train the network as it is, with a prior around the weights that were given; then what is
    left without the units that cost least, from the labels, from what the whole one predicts and
    from what its blocks give. Of one that stays as it was given each layer loses the same share.

    Attributes:
        keep: share of the weights of its blocks that stays.
        scale: standard deviation of the change of a weight, in the prior.
        finish: fraction of the run in which the smaller network is trained, in the end; of 1 the
            whole one stays as it was given, and what it says is learnt without dropout.
        tables: train embeddings, too.
        pieces: of texts without labels, how many are made of pieces of others for each.
        tolerance: nats of a row, and share of errors, that the smaller network may lose to the
            whole one, which is handed back where it loses more; with null what was asked for is,
            and a sentence says what it loses.
    """

    keep: Share = 1.0 / 3.0
    scale: Positive = 0.1
    finish: Fraction = 2.0 / 3.0
    tables: bool = False
    pieces: Whole = 0
    tolerance: NotNegative | None = 0.02
    predictor: ClassVar[str] = "deterministic"  # dropout is for the training
    units_first: ClassVar[bool] = False  # of units alone
    # The network that was given says what is learnt: it is whole already, and no text is wrong.
    unlabelled: ClassVar[dict[str, Any]] = {"finish": 1.0, "tolerance": None}

    @property
    def shares(self) -> Sequence[float]:
        return (self.keep,)

    def rule(self, usual: Cut | None) -> Cut | None:
        if not isinstance(usual, Search):
            return usual
        units: Literal["only", "even"] = "even" if self.finish == 1.0 else "only"
        return replace(usual, nats=self.tolerance, shares=self.shares, units=units, teacher="plain")

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        for module in net.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(self.tables)
            elif isinstance(module, nn.Dropout) and self.finish == 1.0:
                module.p = 0.0  # what the given network says has no noise to be fitted
        blocks = tuple(f"{n}." for n, one in net.named_modules() if isinstance(one, nn.ModuleList))
        layers = [n for n, one in net.named_modules() if affine_kind(one) is not None]
        inside = [n for n in layers if n.startswith(blocks)] if blocks else layers[:-1]
        # Of a head each unit costs little by itself, and the classes need them together.
        prior = models.priors.Pretrained(net, self.scale)
        model = models.BayesianNetwork(
            net, data, prior=prior, layers=inside, likelihood=self.likelihood
        )
        try_to_cut(model, data)
        return model, guides.Delta(model)

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        yield from super().refusals(settings, data)
        if self.pieces and (data.target or "tokenizer" not in data.source):
            yield "pieces", "is for texts without labels."
        if not len(data.x_val):
            yield "finish", "needs validation rows, and there are none."

    def plain_epochs(self, settings: Settings, data: Dataset) -> int:
        return 0  # the whole network is one

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        return self.search(settings, data, True)

    def first(self, settings: Settings) -> dict[str, Any]:
        whole = settings.steps if settings.epochs is None else settings.epochs
        if self.finish == 1.0:
            return {"epochs": 0}
        return {length_in(settings): max(1, whole - round(self.finish * whole))}

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

    def scores(
        self, result: Fit, split: str, folder: Path | None = None
    ) -> dict[str, dict[str, float]]:
        net = mean_network(*require(result, models.BayesianNetwork, self.name))
        return {"full": evaluate(result, net, split)}

    def on_test(self, result: Fit) -> dict[str, float]:
        return self.scores(result, "test")["full"]
