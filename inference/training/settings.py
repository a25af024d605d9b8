"""How a fit is run: every number that changes its result, checked and written down."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ...data import Between, Options, Positive, PyroccamError, Seed, nearest

if TYPE_CHECKING:
    from ...guides import Guide

MOST_STEPS = 10**9
"""Steps of a fit: those of the smallest network, of 0.1 ms, take a day."""

LARGEST = 2**63 - 1
"""The largest whole number that torch takes; a range of it ends a little earlier."""

Schedule = Literal["cosine", "linear", "onecycle", "constant"]
_Steps = Annotated[int, Between(1, MOST_STEPS)]
_Many = Annotated[int, Between(1, LARGEST)]
# A weight moves by about its rate in a step: after one of a million, single precision has nothing
# left of the data.
_Rate = Annotated[float, Between(0.0, 1e6, "(]")]


@dataclass(frozen=True)
class Settings(Options):
    """Settings of :func:`pyroccam.inference.fit`.

    Attributes:
        epochs: passes over the training rows; ``None`` takes as many as make ``steps`` steps, and
            at least ten. After 0 a fit is the pair as it was given.
        steps: optimiser steps to aim at when ``epochs`` is not given.
        batch_size: rows in a minibatch (all of them if fewer).
        optimizer: ``adamw``, ``adam`` or ``sgd`` (momentum 0.9).
        lr: its learning rate for the weights at the start of the schedule.
        beta2: of ``adamw`` and ``adam``, by which the mean of squared gradients decays in a step:
            at 0.999 it takes a thousand steps to forget those of the beginning.
        weight_decay: for the parameters of the network; never for those of the guide, of the
            likelihood (the noise of a regression) or of a prior.
        guide_lr: learning rate of a guide over structure (q(d) by gradient, q(Γ)), constant.
        schedule: ``cosine`` or ``linear`` to zero, ``onecycle`` (a tenth of the steps up, then
            cosine) or ``constant``.
        kl_warmup: fraction of the steps over which the weight of the KL rises from 0.
        kl_weight: of the KL after that. At 1 the objective is the evidence lower bound; below, the
            data count for more than they are (a "cold" posterior), and less is cut.
        particles: draws of the latents in a step, whose bounds are averaged; they take memory anew.
        clip_norm: largest gradient norm, or ``None``.
        checkpoint: which weights a fit ends with: the ``best`` by the negative log-likelihood of
            the validation rows, or the ``last``. ``None`` takes the last where weights are random:
            what is cut there grows to the end, and a likelihood does not see it.
        patience: stop after this many evaluations without a better validation NLL.
        evaluations: how many times to evaluate on the validation split (at most once an epoch).
        seed: of the data order and of all noise.
        compile: compile the step (:mod:`~pyroccam.inference.training.step`), or never compile it: a
            single pair then runs Pyro's handlers at every step, replicates together run as a graph
            that is traced only. ``None`` traces, and compiles too, where a shape of batch is
            stepped often enough to pay for that; ``graph`` traces where that pays, and no more.
        precision: ``bf16`` finds large products and convolutions of a step in bfloat16
            (:mod:`~pyroccam.inference.compilation.half_products`), which takes less time on
            processors and GPUs that have it; parameters, evaluation and trainings of numbers
            before or after the fit stay in single precision.
    """

    epochs: Annotated[int, Between(0, MOST_STEPS)] | None = None
    steps: _Steps = 2000
    batch_size: _Many = 512
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: _Rate = 1e-2
    beta2: Annotated[float, Between(0.0, 1.0, "()")] = 0.999
    weight_decay: Annotated[float, Between(0.0, 1e6)] = 0.03
    guide_lr: _Rate = 0.1
    schedule: Schedule = "cosine"
    kl_warmup: Annotated[float, Between(0.0, 1.0, "[)")] = 0.0
    kl_weight: _Rate = 1.0
    particles: Annotated[int, Between(1, 10_000)] = 1
    clip_norm: Positive | None = None
    checkpoint: Literal["best", "last"] | None = None
    patience: _Many | None = None
    evaluations: _Many = 50
    seed: Seed = 0
    compile: bool | Literal["graph"] | None = None
    precision: Literal["bf16"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "sgd" and self.beta2 != Settings.beta2:
            raise PyroccamError(f"beta2={self.beta2:g} with optimizer='sgd'", "adamw or adam")
        for name, value in vars(self).items():  # numbers of NumPy's, which no file holds
            if isinstance(value, Real) and not isinstance(value, int):
                number = int(value) if isinstance(value, Integral) else float(value)
                object.__setattr__(self, name, number)

    @classmethod
    def names(cls) -> list[str]:
        """Names that can be set."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Settings:
        """Settings from a dictionary; an unknown name is an error that suggests the nearest."""
        if unknown := [name for name in settings if name not in cls.names()]:
            raise PyroccamError(
                f"{unknown[0]!r} is no fit setting",
                f"one of {', '.join(cls.names())}",
                nearest(unknown[0], cls.names()),
            )
        return cls(**settings)

    def epochs_for(self, rows: int) -> int:
        """The number of epochs over ``rows`` training rows.

        Raises:
            PyroccamError: for more steps than can be made.
        """
        each = self.steps_per_epoch(rows)
        epochs = max(10, -(-self.steps // each)) if self.epochs is None else self.epochs
        if (epochs - 1) * each >= MOST_STEPS:  # the last may be begun
            raise PyroccamError(
                f"{epochs} epochs of {each} batches", f"{MOST_STEPS:.0e} steps at most"
            )
        return epochs

    def selectable_from(self, guide: Guide) -> float:
        """The share of the steps after which a checkpoint may be chosen.

        Before, q(d) is held or on its way to where it belongs, or the KL is not whole: what the
        depths count for is not yet what the data say of them.
        """
        return max(guide.schedule.settled, self.kl_warmup)

    def steps_per_epoch(self, rows: int) -> int:
        """Minibatches in an epoch, the last one perhaps smaller."""
        return -(-rows // self.batch_size)


def batch_bounds(rows: int, size: int) -> list[tuple[int, int]]:
    """Rows of each minibatch; a last batch of one joins its neighbour (batch statistics)."""
    starts = [*range(0, rows, size)]
    if len(starts) > 1 and rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], rows], strict=True))


def learning_rate_factor(schedule: Schedule, progress: float) -> float:
    """Factor on the learning rate at ``progress`` in [0, 1); stateless, so resuming is exact."""
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return 1.0 - progress
    if schedule == "onecycle":
        if progress < 0.1:
            return 0.04 + 0.96 * progress / 0.1
        progress = (progress - 0.1) / 0.9
    return 0.5 * (1.0 + math.cos(math.pi * progress))
