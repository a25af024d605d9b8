"""Results of a fit: a trained pair, or several that differ in their seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast

import torch
from torch import Tensor

from ...data import ask, card, checked
from ...guides import Guide
from ...models import Model, fields_of, give
from ..posterior import (
    HOWS,
    DepthStructure,
    Draws,
    How,
    Noise,
    Posterior,
    Structure,
    by_parts,
    edge_structure,
    evaluate_outputs,
    evaluate_single,
    mean_spread,
    mixture_log_probs,
    posterior_of,
    slack,
    summarise,
)
from .doubts import doubts
from .mixture import evaluate_together
from .replicate import validation_nll
from .settings import Settings
from .statistics import keeps_statistics, renew_statistics

if TYPE_CHECKING:
    import pandas as pd

    from ...data import Dataset, Several

M = TypeVar("M", bound=Model)
G = TypeVar("G", bound=Guide)


class Drawing(TypedDict, total=False):
    """How random weights are drawn for a prediction, see :meth:`Fit.outputs`."""

    draws: int | None
    noise: Noise


@dataclass(repr=False)
class Fit(Generic[M, G]):
    """A trained pair.

    Attributes:
        model, guide: with the weights of the chosen checkpoint, in evaluation mode.
        data: on the device of the fit.
        settings: as run.
        history: one row for each evaluation.
        best_epoch: of the chosen checkpoint.
        val_nll: of the chosen checkpoint on the validation rows (the training loss if there are
            none), in nats; regression targets standardised. Where the weights are numbers, the
            noise of a regression is that of those rows, too
            (:mod:`~pyroccam.inference.training.validated_noise`). Rows that chose are no test: it
            is lower than that of new rows, and no estimate of it.
        seconds: spent in training steps and evaluations, over all sittings.
        structure: what was learnt about depth; ``None`` for a model of fixed depth.
        weights: of the components of a prediction, ``(S,)``: depths, or draws of the weights.
        engine: how the steps ran: ``kind`` (eager, graph or compiled), ``replicates`` in a step,
            ``compile_seconds``, ``pays_from``, the steps from which on compiling would have saved
            more than that (where it was asked), and ``fallback``, why it was not compiled if it was
            to be.
    """

    model: M
    guide: G
    data: Dataset
    settings: Settings
    history: list[dict[str, float]]
    best_epoch: int
    val_nll: float
    seconds: float
    structure: DepthStructure | None
    weights: Tensor
    out: Path | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    before: Fit[Any, Any] | None = field(default=None, init=False, repr=False)

    @cached_property
    def posterior(self) -> Posterior:
        """What it knows of its latents: draws, densities, moments of the weights by layer, the
        network of their means, curvature."""
        return posterior_of(self.model, self.guide, self.data, self.settings.seed)

    @property
    def structures(self) -> list[Structure]:
        """What was learnt of depth, and of the operations of a graph."""
        if self.structure is not None:
            return [self.structure]
        if not self.model.structure or self.guide.traits.variable is not None:
            return []
        return [edge_structure(cast(Any, self.model), cast(Any, self.guide))]

    def __repr__(self) -> str:
        pair = f"{type(self.model).__name__}, {type(self.guide).__name__}"
        return f"Fit({pair}, {self.data!r}, epochs={self.best_epoch}, val_nll={self.val_nll:.4g})"

    def _repr_html_(self) -> str:
        model, guide, data = self.model, self.guide, self.data
        facts: dict[str, Any] = {
            "model, guide": f"{type(model).__name__}, {type(guide).__name__}",
            "data": f"{data.name}, {data.N:,} training rows",
            "parameters": sum(p.numel() for part in (model, guide) for p in part.parameters()),
        }
        if self.history:
            facts["trained"] = f"{self.best_epoch} epochs, {self.seconds:.3g} s"
        if len(data.x_val):
            facts["nats of a validation row"] = self.val_nll
        sentences = [text for one in self.structures for text in one.sentences()]
        small = "inference.shrink(fit)" if guide.traits.variable is None else "inference.path(fit)"
        following = f'fit.evaluate("test"); fit.warnings; small = {small}'
        return card("Fit", facts, sentences, following=following)

    def summary(self) -> pd.DataFrame:
        """Its network by layers, for one row: shapes, parameters and multiply-adds; of random
        weights the means."""
        x = self.data.head(1)[0]
        if not self.model.random_weights:
            return summarise(self.model, self.model.components, x)
        net = self.posterior.mean_network()
        return summarise(net, partial(give, net, fields=fields_of(net)), x)

    @property
    def fits(self) -> list[Fit[M, G]]:
        """This fit alone, so that one fit and several are averaged by the same functions."""
        return [self]

    @property
    def warnings(self) -> list[str]:
        """Warnings before the results are believed, a sentence or two each: a network no better
        than the mean of the targets, or too sure of itself, a checkpoint at the edge of those that
        could be chosen, or worse than what was before them, a q(d) that has not arrived."""
        return doubts(self)

    def at(self, weight: float, *, extrapolate: bool = False) -> Fit[M, Guide]:
        """The fit of one weight of the KL, where the guide is a
        :class:`~pyroccam.guides.Conditional`: as if it had been trained with that ``kl_weight``; or
        of one value of another number that it is ``over``, as if the model had had it.

        The guide is an ordinary one, the model is that of this fit, or a copy with the number that
        was asked for; with batch normalisation it is a copy whose running statistics are those of
        this posterior, by a pass of training rows. ``val_nll`` is found anew (NaN without
        validation rows), ``seconds`` are those of the common training, and its ``history``, which
        is of the usual weight, is left out. See :meth:`~pyroccam.guides.Conditional.condition`.
        """
        model: Any = self.model
        guide: Any = self.guide.condition(weight, extrapolate=extrapolate)
        variable, kl_weight = self.guide.traits.variable, self.settings.kl_weight
        if variable == "kl_weight":
            kl_weight = weight
        else:
            model, guide = copy.deepcopy((model, guide))
            model.numbers()[variable].set(float(weight))
        guide.eval()
        if keeps_statistics(model):
            model, guide = copy.deepcopy((model, guide))
            size, seed = self.settings.batch_size, self.settings.seed
            renew_statistics(model, guide, self.data, batch_size=size, seed=seed)
        pair, structure = posterior_of(model, guide, self.data), None
        if self.structure is not None:  # q(d) is the best beside the weights, as after any fit
            exact = pair.depth_posterior(self.data, kl_weight)
            running = guide.posterior("depth").probs
            assert exact is not None
            with torch.no_grad():
                guide.get_parameter(guide.traits.moves).copy_(exact.log().clamp_min(-1e4))
            rule = self.structure.threshold / slack(self.data.N, self.settings.kl_weight)
            structure = pair.structure(self.data, rule, running, kl_weight)
        found: Fit[M, Any] = replace(
            self,
            model=model,
            guide=guide,
            settings=replace(self.settings, kl_weight=kl_weight),
            val_nll=validation_nll(pair, self.data),
            history=[],  # which is of another weight
            structure=structure,
            weights=pair.shares,
            out=None,
        )
        return found

    def evaluate(
        self, split: str = "test", how: How = "ensemble", **drawing: Unpack[Drawing]
    ) -> dict[str, float]:
        """Metrics on a split: accuracy, NLL, Brier, ECE, or RMSE, NLL.

        Arguments:
            split: ``train``, ``val`` (which chose the checkpoint, unless it is the last: no
                estimate for new rows) or ``test``.
            how: of the ``ensemble``, the mixture over depths or over draws of random weights. Of
                random weights also ``deterministic``, of the network of the posterior means, and
                ``stochastic``, of one draw (the mean of each metric over the draws).
            drawing: ``draws`` and ``noise`` as for :meth:`outputs`.

        Training rows that are streamed pass once, in parts; what is no mean over rows, such as ECE,
        is left out.
        """

        def judged(x: Tensor, y: Tensor) -> dict[str, float]:
            outputs = self.outputs(x, how, **drawing)
            return self._judged(self.left_out(outputs, y) if split == "val" else outputs, y, how)

        return by_parts(self.data, split, judged)

    def evaluate_ways(
        self, split: str = "test", **drawing: Unpack[Drawing]
    ) -> dict[str, dict[str, float]]:
        """:meth:`evaluate` in every way that there is for random weights; of the same draws, which
        pass once."""
        if split == "train" and self.data.streamed:  # and no outputs of all rows are kept
            return {how: self.evaluate(split, how, **drawing) for how in HOWS}
        x, y = self.data.split(split)
        drawn = self.outputs(x, **drawing)
        means = self.outputs(x, "deterministic", **drawing)
        outputs = {how: means if how == "deterministic" else drawn for how in HOWS}
        return {how: self._judged(found, y, how) for how, found in outputs.items()}

    def _judged(self, outputs: Tensor, y: Tensor, how: How) -> dict[str, float]:
        evaluate = evaluate_single if how == "stochastic" else evaluate_outputs
        shares = self._shares(outputs)
        return evaluate(outputs, shares, self.model.likelihood, y, self.data.y_std)

    @checked
    def outputs(
        self,
        x: Tensor | Several,
        how: How = "ensemble",
        *,
        draws: Draws | None = None,
        noise: Noise = "weights",
    ) -> Tensor:
        """Outputs that a prediction mixes, ``(S, N, outputs)``: at every depth, or of S draws of
        random weights (by the seed of the fit), or of the one network of their means.

        Arguments:
            x: inputs ``(N, *)``, standardised as the data set is; a dict or a tuple, if a row has
                several of them.
            how: as for :meth:`evaluate`.
            draws: S, of random weights, 20 by default; a million at most.
            noise: of the draws, see :class:`~pyroccam.inference.posterior.draws.DrawnNetwork`.

        Raises:
            PyroccamError: for one row without a batch, and what is no finite number.
            TooLarge: for more draws than fit into memory (:mod:`pyroccam.data.limits`).
        """
        rows = self.data.packed(x)
        if how == "deterministic":
            return self.posterior.mean_outputs(rows)
        count = len(self.weights) if draws is None else draws
        if draws is not None:
            ask(4.0 * count * len(rows) * self.model.likelihood.outputs, f"draws={draws}")
        return self.posterior.outputs(rows, count, noise=noise)

    def predict(
        self, x: Tensor | Several, how: How = "ensemble", **drawing: Unpack[Drawing]
    ) -> Tensor:
        """Predictive log-probabilities ``(B, C)``, or means ``(B, T)`` of standardised targets.

        Probabilities are averaged over the draws, not logits.

        Arguments:
            x: inputs ``(B, *)``, standardised as the data set is; a dict or a tuple, if a row has
                several of them.
            how, drawing: as for :meth:`evaluate`; ``stochastic`` predicts with one draw.
        """
        if how == "stochastic":
            drawing["draws"] = 1
        return self.predicted(self.outputs(x, how, **drawing))

    def predicted(self, outputs: Tensor) -> Tensor:
        """What :meth:`predict` gives, of :meth:`outputs`."""
        shares, likelihood = self._shares(outputs), self.model.likelihood
        with torch.no_grad():
            predicted = likelihood.predicted(outputs)
        if likelihood.task == "classification":
            return mixture_log_probs(predicted, shares)
        return torch.einsum("s,sbt->bt", shares, predicted)

    def left_out(self, outputs: Tensor, y: Tensor) -> Tensor:
        """:meth:`outputs` for all validation rows, each as if it had not been one: a last layer in
        closed form knows them."""
        return self.model.likelihood.left_out(self.model, outputs, y, self.data.val_weights)

    def to_arviz(self, draws: int = 500, **options: Any) -> Any:
        """The posterior for ArviZ, see :func:`pyroccam.inference.arviz.to_arviz`."""
        from ..arviz import to_arviz

        return to_arviz(self, draws, **options)

    def components(
        self, x: Tensor | Several, how: How = "ensemble", **drawing: Unpack[Drawing]
    ) -> tuple[Tensor, Tensor]:
        """What a prediction mixes: :meth:`outputs` ``(S, N, outputs)``, and weights ``(S,)``."""
        outputs = self.outputs(x, how, **drawing)
        return outputs, self._shares(outputs)

    def _shares(self, outputs: Tensor) -> Tensor:
        """Weights of what is mixed: depths have their weights, draws are equally likely."""
        if not self.model.random_weights:
            return self.weights.to(outputs)
        return outputs.new_full((len(outputs),), 1.0 / len(outputs))


@dataclass
class Repeats(Generic[M, G]):
    """Several fits that differ in their seeds."""

    fits: list[Fit[M, G]]
    seconds: float

    def evaluate(self, split: str = "test", *, noise: Noise = "weights") -> dict[str, float]:
        """Metrics of all repeats together, each with its own likelihood, weights and scale of the
        targets: a deep ensemble, if each is a point estimate.

        References:
            Lakshminarayanan, Pritzel, Blundell 2017, arXiv:1612.01474.
        """
        return evaluate_together(self.fits, split, noise=noise)

    def to_arviz(self, draws: int = 500, **options: Any) -> Any:
        """The repeats as chains, see :func:`pyroccam.inference.arviz.to_arviz`."""
        from ..arviz import to_arviz

        return to_arviz(self, draws, **options)

    def spread(self, metrics: Callable[[Fit], dict[str, float]] = Fit.evaluate) -> dict[str, Any]:
        """Mean, standard deviation and number of each metric over the repeats."""
        return mean_spread([metrics(one) for one in self.fits])
