"""How a fit is run: every number that changes its result, checked and written down."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..guides.mean_field import NetworkGuide
from ..models.names import unknown_name
from ..models.numbers import as_number
from ..models.priors.structure import EdgePrior
from ..models.priors.weights import LayerPrior

__all__ = [
    "ParameterGroup",
    "Settings",
    "learning_rate_factor",
    "make_optimizer",
    "parameter_groups",
    "unknown_name",
]

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
        compile: compile the step (:mod:`~pyroccam.inference.step`), or never compile it: a single
            pair then runs Pyro's handlers at every step, replicates together run as a graph that is
            traced only. ``None`` traces, and compiles too, where a shape of batch is stepped often
            enough to pay for that.
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
    compile: bool | None = None

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, expected: str) -> None:
            if not ok:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}.")

        for name in ("steps", "batch_size", "evaluations", "particles"):
            need(_whole(getattr(self, name), 1), name, "a whole number of at least 1")
        for name in ("epochs", "patience"):
            value = getattr(self, name)
            need(value is None or _whole(value, 1), name, "None or a whole number of at least 1")
        need(self.optimizer in ("adamw", "adam", "sgd"), "optimizer", "'adamw', 'adam' or 'sgd'")
        need(
            self.schedule in ("cosine", "linear", "onecycle", "constant"),
            "schedule",
            "'cosine', 'linear', 'onecycle' or 'constant'",
        )
        need(self.checkpoint in (None, "best", "last"), "checkpoint", "'best', 'last' or None")
        for name in ("lr", "guide_lr"):
            need(_positive(getattr(self, name)), name, "positive and finite")
        need(as_number(self.weight_decay) >= 0, "weight_decay", "at least 0")
        need(0 <= as_number(self.kl_warmup) < 1, "kl_warmup", "a fraction in [0, 1)")
        need(_positive(self.kl_weight), "kl_weight", "positive and finite")
        clips = self.clip_norm is None or as_number(self.clip_norm) > 0
        need(clips, "clip_norm", "None or positive")
        need(_whole(self.seed, 0), "seed", "a whole number of at least 0")
        need(self.compile in (None, True, False), "compile", "True, False or None")

    @classmethod
    def names(cls) -> list[str]:
        """What can be set."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Settings:
        """From a dictionary; an unknown name is an error that suggests the nearest."""
        for name in settings:
            if name not in cls.names():
                raise TypeError(unknown_name("fit setting", name, cls.names()))
        return cls(**settings)

    def epochs_for(self, rows: int) -> int:
        """The number of epochs over ``rows`` training rows."""
        if self.epochs is not None:
            return self.epochs
        return max(10, math.ceil(self.steps / self.steps_per_epoch(rows)))

    def steps_per_epoch(self, rows: int) -> int:
        """Minibatches in an epoch, the last one perhaps smaller."""
        return math.ceil(rows / self.batch_size)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _positive(value: object) -> bool:
    return 0 < as_number(value) < math.inf


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
    """What is trained. Weight decay is for weights that are numbers. A guide over structure has a
    rate of its own; one over weights has that of the weights, with its schedule.

    Raises:
        ValueError: if there is nothing to train.
    """
    latents = [p for p in guide.parameters() if p.requires_grad]
    likelihood = getattr(model, "likelihood", None)
    noise = [] if likelihood is None else [p for p in likelihood.parameters() if p.requires_grad]
    learnt = [m for m in model.modules() if isinstance(m, LayerPrior | EdgePrior)]
    prior = [p for m in learnt for p in m.parameters() if p.requires_grad]
    known = {id(p) for p in (*guide.parameters(), *noise, *prior)}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    moving = {"lr": settings.lr, "scheduled": True}
    edges = [guide.edge(site) for site in guide.edges] if isinstance(guide, NetworkGuide) else []
    shape = list(
        {id(p): p for edge in edges for p in edge.parameters() if p.requires_grad}.values()
    )
    latents = [p for p in latents if all(p is not other for other in shape)]
    apart = {"lr": settings.guide_lr, "weight_decay": 0.0, "scheduled": False}
    groups = [
        ParameterGroup("structure", shape, apart),
        ParameterGroup("weights", weights, {**moving, "weight_decay": settings.weight_decay}),
        ParameterGroup("noise", noise, {**moving, "weight_decay": 0.0}),
        ParameterGroup("prior", prior, {**moving, "weight_decay": 0.0}),
        # Where the weights are random, their posterior is what is trained.
        ParameterGroup("posterior", latents, {**moving, "weight_decay": 0.0})
        if isinstance(guide, NetworkGuide)
        else ParameterGroup("guide", latents, apart),
    ]
    groups = [group for group in groups if group.parameters]
    if not groups:
        raise ValueError(
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
