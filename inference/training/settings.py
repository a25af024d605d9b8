"""How a fit is run: every number that changes its result, checked and written down."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import nn

from ...data.errors import PyroccamError
from ...guides.base import Guide
from ...models.base import likelihood_of, priors_of
from ...models.checks import as_number, unknown_name
from ..compilation.products import Precision

__all__ = [
    "ParameterGroup",
    "Settings",
    "learning_rate_factor",
    "make_optimizer",
    "parameter_groups",
    "unknown_name",
]

MOST_STEPS = 10**9
"""Steps of a fit: those of the smallest network, of 0.1 ms, take a day."""

Schedule = Literal["cosine", "linear", "onecycle", "constant"]
OptimizerName = Literal["adamw", "adam", "sgd"]


@dataclass(frozen=True)
class Settings:
    """Settings of :func:`pyroccam.inference.fit`.

    Attributes:
        epochs: passes over the training rows; ``None`` takes as many as make ``steps`` steps, and
            at least ten.
        steps: optimiser steps to aim at when ``epochs`` is not given.
        batch_size: rows in a minibatch (all of them if fewer).
        optimizer: ``adamw``, ``adam`` or ``sgd`` (momentum 0.9).
        lr: its learning rate for the weights at the start of the schedule.
        weight_decay: for the parameters of the network; never for those of the guide, of the
            likelihood (the noise of a regression) or of a prior.
        guide_lr: learning rate of a guide over structure (q(d) by gradient, q(Γ)), constant.
        schedule: ``cosine`` or ``linear`` to zero, ``onecycle`` (a tenth of the steps up, then
            cosine) or ``constant``.
        kl_warmup: fraction of the steps over which the weight of the KL rises from 0.
        kl_weight: of the KL after that. At 1 the objective is the evidence lower bound; below, the
            data count for more than they are (a "cold" posterior), and less is cut.
        particles: draws of the latents in a step, whose bounds are averaged.
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
            (:mod:`~pyroccam.inference.compilation.products`), which takes less time on processors
            and GPUs that have it; parameters, what is evaluated, and trainings of numbers before or
            after the fit stay in single precision.
    """

    epochs: int | None = None
    steps: int = 2000
    batch_size: int = 512
    optimizer: OptimizerName = "adamw"
    lr: float = 1e-2
    weight_decay: float = 0.03
    guide_lr: float = 0.1
    schedule: Schedule = "cosine"
    kl_warmup: float = 0.0
    kl_weight: float = 1.0
    particles: int = 1
    clip_norm: float | None = None
    checkpoint: Literal["best", "last"] | None = None
    patience: int | None = None
    evaluations: int = 50
    seed: int = 0
    compile: bool | Literal["graph"] | None = None
    precision: Precision = None

    def __post_init__(self) -> None:
        for name, rule in _NUMBERS.items():
            self._check_number(name, *rule)
        for name, words in _WORDS.items():
            value = getattr(self, name)
            known = value in words if isinstance(value, str) else value is None and None in words
            self._need(known, name, " or ".join(", ".join(map(repr, words)).rsplit(", ", 1)))
        known = isinstance(self.compile, bool) or self.compile in (None, "graph")
        self._need(known, "compile", "True, False, 'graph' or None")

    def _check_number(
        self, name: str, expected: str, good: Callable[[float], bool], most: float
    ) -> None:
        """Refuse what is none, or take it as a number of Python's, which a file can hold."""
        value, whole = getattr(self, name), "whole" in expected
        if type(self).__dataclass_fields__[name].default is None:
            if value is None:
                return
            expected = f"None or {expected}"
        number = as_number(value)
        self._need(good(number) and (isinstance(value, Integral) or not whole), name, expected)
        self._need((value if whole else number) <= most, name, f"at most {most}")
        object.__setattr__(self, name, int(value) if whole else number)

    def _need(self, ok: bool, name: str, expected: str) -> None:
        if not ok:
            shown = reprlib.repr(getattr(self, name))
            raise PyroccamError(f"{name} must be {expected}, got {shown}.")

    @classmethod
    def names(cls) -> list[str]:
        """Names that can be set."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Settings:
        """Settings from a dictionary; an unknown name is an error that suggests the nearest."""
        for name in settings:
            if name not in cls.names():
                raise PyroccamError(unknown_name("fit setting", name, cls.names()))
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
                f"{epochs} epochs of {each} batches are {epochs * each:.3g} steps, at most "
                f"{MOST_STEPS:.0e} can be made: set fewer epochs, or a larger batch_size."
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


LARGEST = 2**63 - 1
"""The largest seed that torch takes."""

# What a number has to be, whether it is, and the most it may be. Particles pass the batch one by
# one, and take memory anew. A weight moves by about lr in a step: after one of a million, single
# precision has nothing left of the data.
_Rule = tuple[str, Callable[[float], bool], float]
_COUNT = "a whole number of at least 1", lambda n: n >= 1
_POSITIVE = "positive and finite", lambda n: 0 < n < math.inf
_NUMBERS: dict[str, _Rule] = {
    "epochs": (*_COUNT, MOST_STEPS),
    "steps": (*_COUNT, MOST_STEPS),
    "batch_size": (*_COUNT, LARGEST),
    "particles": (*_COUNT, 10_000),
    "patience": (*_COUNT, LARGEST),
    "evaluations": (*_COUNT, LARGEST),
    "seed": ("a whole number of at least 0", lambda n: n >= 0, LARGEST),
    "lr": (*_POSITIVE, 1_000_000),
    "guide_lr": (*_POSITIVE, 1_000_000),
    "weight_decay": ("at least 0 and finite", lambda n: 0 <= n < math.inf, 1_000_000),
    "kl_warmup": ("a fraction in [0, 1)", lambda n: 0 <= n < 1, 1),
    "kl_weight": (*_POSITIVE, 1_000_000),
    "clip_norm": ("positive", lambda n: n > 0, math.inf),
}

_WORDS: dict[str, tuple[str | None, ...]] = {
    "optimizer": ("adamw", "adam", "sgd"),
    "schedule": ("cosine", "linear", "onecycle", "constant"),
    "checkpoint": ("best", "last", None),
    "precision": ("bf16", None),
}


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


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of a pair that are treated alike.

    Attributes:
        name: ``structure`` (of the posterior of graphs), ``weights``, ``noise`` (of the
            likelihood), ``prior`` (what a prior over weights or structure learns), ``posterior``
            (of random weights) or ``guide``.
        parameters: that require a gradient.
        options: for the optimiser; ``scheduled`` says whether the schedule scales ``lr``.
    """

    name: str
    parameters: list[nn.Parameter]
    options: dict[str, Any]


def parameter_groups(
    settings: Settings, model: nn.Module, guide: nn.Module
) -> list[ParameterGroup]:
    """Groups of parameters. Weight decay is for weights that are numbers. A guide over structure
    has a rate of its own; one over weights has that of the weights, with its schedule.

    Raises:
        PyroccamError: if there is nothing to train.
    """
    latents = [p for p in guide.parameters() if p.requires_grad]
    likelihood = likelihood_of(model) or nn.Identity()
    noise = [p for p in likelihood.parameters() if p.requires_grad]
    prior = [p for own in priors_of(model) for p in own.parameters() if p.requires_grad]
    known = {id(p) for p in (*guide.parameters(), *noise, *prior)}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    moving = {"lr": settings.lr, "scheduled": True}
    edges: list[nn.Parameter] = getattr(guide, "structure_parameters", list)()
    shape = [p for p in edges if p.requires_grad]
    latents = [p for p in latents if all(p is not other for other in shape)]
    apart = {"lr": settings.guide_lr, "weight_decay": 0.0, "scheduled": False}
    groups = [
        ParameterGroup("structure", shape, apart),
        ParameterGroup("weights", weights, {**moving, "weight_decay": settings.weight_decay}),
        ParameterGroup("noise", noise, {**moving, "weight_decay": 0.0}),
        ParameterGroup("prior", prior, {**moving, "weight_decay": 0.0}),
        # Where the weights are random, their posterior is what is trained.
        ParameterGroup("posterior", latents, {**moving, "weight_decay": 0.0})
        if getattr(model, "random_weights", False)
        else ParameterGroup("guide", latents, apart),
    ]
    groups = [group for group in groups if group.parameters]
    if not groups:
        raise PyroccamError(
            "Neither the model nor the guide has a parameter that requires a gradient."
        )
    return groups


def make_optimizer(settings: Settings, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """One fused torch optimiser over groups of parameters."""
    match settings.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, momentum=0.9, fused=True)
        case "adam":
            return torch.optim.Adam(groups, fused=True)
        case _:
            return torch.optim.AdamW(groups, fused=True)
