"""The two-level problem: hyperparameters that are best for Q, of posteriors that are best for L."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ...data import Count, Positive, PyroccamError, Seed, checked
from ...guides import Guide
from ...models import BayesianNetwork, seeded
from ...models.likelihoods import precision
from ..posterior import posterior_of
from ..training import Fit, FitProgress, Interrupted, Settings, pick_device
from .folds import Folds, fold_rows
from .hypergradient import NonFiniteGradient
from .levels import Level, Objectives
from .methods import Greedy, Method
from .search import Search, batches

if TYPE_CHECKING:
    from ...data import Dataset


class IndefiniteCurvature(UserWarning):
    """Parameters at no maximum of the inner objective: a linear system was not solved."""


@dataclass
class Selection:
    """Result of a selection.

    Attributes:
        fit: the pair at the outer step with the largest Q. Early ones, whose θ is not yet the best
            for L, can have a Q that no solution has. With folds its θ is another, trained
            afterwards with all rows; nobody measured a Q of that.
        method: that found it.
        history: a row for each outer step: ``outer``, ``Q``, ``L``, ``log_likelihood`` and ``kl``
            in nats over all rows (the same noise in every row), ``inner`` steps and ``seconds``
            up to there. ``kl`` is that of one posterior; with K folds L has it K / (K - 1) times,
            for it is of fewer rows.
        best: position in ``history``.
        kl_weights: by layer, where they were learnt (``L=Level(prior="layer")``); ``kl`` in the
            history is then the sum with these weights.
    """

    fit: Fit[BayesianNetwork, Guide]
    method: Method
    history: list[dict[str, float]]
    best: int
    kl_weights: dict[str, float] = field(default_factory=dict)

    @property
    def Q(self) -> float:
        """The largest Q, in nats over all rows."""
        return self.history[self.best]["Q"]


@checked
def select(
    model: BayesianNetwork,
    guide: Guide,
    data: Dataset,
    L: Level | None = None,
    Q: Level | None = None,
    *,
    method: Method = Greedy(),  # noqa: B008 (it is frozen)
    outer_steps: Count = 50,
    inner_steps: Count = 50,
    lr: Positive = 1e-2,
    outer_lr: Positive = 1e-2,
    batch_size: Count = 512,
    particles: Count = 1,
    draws: Count = 20,
    seed: Seed = 0,
    device: str = "auto",
    progress: bool | None = None,
) -> Selection:
    r"""Choose what the priors learn by Q, where the guide is trained by L.

    .. math:: h^* = \arg\max_h Q(θ^*(h), h), \qquad θ^*(h) = \arg\max_θ L(θ, h)

    h are the parameters of priors (``priors.Normal(learn="weight")``,
    ``priors.GumbelSoftmax(learn=True)``), weights of the KL of layers (``L=Level(prior="layer")``)
    and the noise of a regression; θ those of the guide.
    Some choices of L and Q that have names:

    ========================  ================================================================
    evidence, ELBO            the defaults
    expected likelihood       ``Q=Level(prior=0)``
    least complexity          ``Q=Level(likelihood=0)``
    sample of size m / λ      ``L=Level(prior=λ)``, ``Q=Level(prior=λ)``
    hold-out                  ``Q=Level(prior=0, split="val")``
    λ by layer, hold-out      ``L=Level(prior="layer")``, ``Q=Level(prior=0, split="val")``
    cross-validation          ``Q=Level(prior=0, folds=4)``
    all structures in turn    ``Q=Level(..., structure=[Against(found, -1)])``
    ========================  ================================================================

    In cross-validation each fold has a θ of its own, and h is common. Of the pair θ is trained in
    the end, by L on all training rows with the best h, in as many steps as that of a fold was: no
    row is held out from it, and the Q that is reported is that of the folds.

    Arguments:
        model, guide: a pair, changed in place.
        data: its training rows (and, for ``split="val"``, validation rows).
        L, Q: the objectives.
        method: ``Greedy()``, ``Implicit(damping=0.1)``, ``Unrolled()``, ``Random()``,
            ``SelfTuning()`` or ``OneLevel()`` of :mod:`pyroccam.inference.selection`; each says
            when it is right.
        outer_steps, inner_steps: moves of h, and of θ in each of those.
        lr, outer_lr: rates of θ and of h.
        batch_size: rows of a step; different ones for L and Q.
        particles: draws of the latents in a step.
        draws: of the latents, in the reported Q and L.
        seed: of batches and noise.
        device, progress: as for :func:`~pyroccam.inference.fit`.

    Raises:
        PyroccamError: for settings that contradict each other, a pair that cannot be traced, or
            nothing to learn at a level.
        NonFiniteGradient: if a gradient, or Q or L after a step, turns NaN or infinite (``Random``
            goes on with another h), or if, with folds, the last training ends far below where it
            began; model and guide are left as they were at the best step so far.
        Interrupted: on Ctrl-C; the same.

    References:
        Bakhteev, Strijov, Bayesian selection of deep learning model structure.
    """
    L, Q = L or Level(), Q or Level()
    pair = posterior_of(model, guide, data)
    _refuse_levels(L, Q, guide, data)
    if outer_steps * inner_steps < method.least:
        given = f"{outer_steps} outer steps of {inner_steps}"
        raise PyroccamError(f"{given}, with {method}", f"{method.least} inner steps or more")
    if model.size != data.N:
        raise PyroccamError(f"a model for {model.size} rows, and data of {data.N}", "the same")
    data.refuse_weights("Two levels")
    where = pick_device(device)
    data = data.to(where, torch.float64 if precision(model) is torch.float64 else None)
    model.to(where)
    guide.to(where)
    start = time.perf_counter()
    kind = Objectives if Q.folds is None else Folds
    objectives = kind(model, guide, (L, Q), particles)
    method.check(objectives)
    model.train()
    label = f"select, {type(method).__name__}"
    with seeded(seed, where), FitProgress(label, outer_steps, progress) as bar:
        rows = (
            [batches(data, level.split, batch_size, 2 * seed + k) for k, level in enumerate((L, Q))]
            if Q.folds is None
            else fold_rows(data, Q.folds, batch_size)
        )
        search = Search(objectives, rows, inner_steps, lr, outer_lr)
        watch = [[objectives.key(*next(part)) for _ in range(draws)] for part in rows]
        history: list[dict[str, float]] = []
        first = search.theta
        best, largest, kept = 0, -math.inf, (first, search.h)
        try:
            for outer in range(1, outer_steps + 1):
                if method.restart:
                    search.theta, search.state = first, None
                method.step(search)
                row = {"outer": float(outer), **search.look(watch)}
                row["inner"] = float(outer * inner_steps)
                row["seconds"] = time.perf_counter() - start
                history.append(row)
                sound = math.isfinite(row["Q"]) and math.isfinite(row["L"])
                if not sound and not method.draws:
                    said = f"Q of {row['Q']:g} and L of {row['L']:g} after outer step {outer}"
                    raise NonFiniteGradient(said, hint="a smaller lr or outer_lr")
                if sound and row["Q"] > largest:
                    best, largest, kept = outer, row["Q"], (search.theta, search.h)
                bar.update(bar.task, completed=outer, loss=f"Q {row['Q']:.2f}")
            if not best:
                raise NonFiniteGradient("no finite Q of all h that were drawn", hint="ranges")
            objectives.put(*kept)
            steps = inner_steps if method.restart else best * inner_steps
            least = history[best - 1]["L"] / model.size
            objectives.finish(data, batch_size, steps, lr, least)
            kept = objectives.theta, objectives.h
        except KeyboardInterrupt:
            done = f"Stopped after outer step {len(history)} of {outer_steps}"
            raise Interrupted(f"{done}; what is left is of step {best}.") from None
        finally:
            objectives.put(*kept)
            model.eval()
    if search.indefinite:
        warnings.warn(
            f"In {search.indefinite} of {outer_steps} outer steps L was not concave where the "
            "inner steps ended: those hypergradients are not through a maximum.",
            IndefiniteCurvature,
            stacklevel=3,
        )
    found = Fit(
        model=model,
        guide=guide,
        data=data,
        settings=Settings(
            lr=lr, optimizer="adam", batch_size=batch_size, particles=particles,
            seed=seed, epochs=outer_steps, weight_decay=0.0, schedule="constant",
        ),
        history=history,
        best_epoch=best,
        val_nll=float("nan"),
        seconds=time.perf_counter() - start,
        structure=pair.structure(data, 0.95),
        weights=pair.shares,
        engine={"kind": "graph", "replicates": 1},
    )  # fmt: skip
    return Selection(found, method, history, best - 1, objectives.kl_weights())


def _refuse_levels(L: Level, Q: Level, guide: Guide, data: Dataset) -> None:
    if not L.likelihood:
        raise PyroccamError("L without a likelihood", "one above 0")
    if L.structure or L.folds is not None:
        raise PyroccamError(f"L={L}", "structure and folds in Q alone")
    if Q.by_layer or (L.by_layer and (Q.kl_weight or (Q.split, Q.folds) == (L.split, None))):
        raise PyroccamError(
            f"prior='layer' with Q={Q}", "it in L, and Q=Level(prior=0.0) of rows that L has not"
        )
    if L.by_layer and guide.traits.variable is not None:
        raise PyroccamError(f"prior='layer' of guides.{type(guide).__name__}", "the guide inside")
    if Q.folds is not None and (L.split != "train" or data.streamed):
        raise PyroccamError(f"folds={Q.folds}", "both levels of training rows in memory")
