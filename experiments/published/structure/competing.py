r"""Three models that compete for one curve, and how they are fitted together.

The graph has one edge with three primitives, and data of which the simple one is true
(:func:`~experiments.sets.regimes`: 50 rows, :math:`y = \tanh x_0 + 0.5 ε`):

.. math:: f(x) = γ_0 \tanh(w \cdot x + b) + γ_1 \tanh(w' x_0 + b') + γ_2 w''

Learnt are the variance of every weight in the prior, the probabilities s of the primitives, the
noise, and the posterior with its temperature. A seed has points, initial weights and noise of its
own.

The protocol is one for all regimes and temperatures, that of the thesis: Adam at 0.01, three draws
in a step, the norm of the gradient clipped at 1 (of :math:`KL + NLL / λ`, so that it is nearly
always clipped). In the first half of the steps :math:`w \sim N(0, σ²)`, with σ from 1; then σ is
set to :math:`e^{10}` and the prior becomes :math:`N(0, γ² σ²)`, floored at :math:`e^{-4}`; the
state of Adam is kept. Other than there, γ in the prior of the weights is the draw of q and not one
of p(Γ | h); the posterior begins with narrow weights (σ = 0.05), for wide ones hide the inputs that
the likelihood could use; and its temperature begins at 0.2 and not at 1, for at high temperatures a
mixture of complex and simple serves the likelihood as well as one of them. What is reported as q is
the probability to be the largest: at λ = 0.01, where the KL holds nothing, the temperature of q
rises and most draws mix the two all the same.

References:
    Bakhteev, Strijov, Bayesian selection of deep learning model structure; the thesis of the first
    author (2019), for the settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyroccam import guides, models
from pyroccam.data import Dataset
from pyroccam.inference.training.settings import Settings
from pyroccam.inference.training.step import TrainingStep
from pyroccam.models.contexts import seeded
from pyroccam.models.networks.primitives import One
from pyroccam.models.plain.feature_choice import select
from pyroccam.models.priors.normal import Normal
from pyroccam.models.priors.scaling import Floored, Scaling
from pyroccam.models.priors.structure import GumbelSoftmax
from torch import nn

from ...sets import regimes

__all__ = ["PRIMITIVES", "SITE", "Pair", "Protocol", "build", "learn", "look", "spread_prior"]

PRIMITIVES = ("complex", "simple", "constant")
SITE = "x-y.structure"

Pair = tuple[models.StructuredNetwork, guides.MeanField]


@dataclass(frozen=True)
class Protocol:
    """How a fit is run, whatever the regime.

    Attributes:
        steps: of Adam, half of them before the prior of the weights gets its γ².
        lr: of Adam, for all parameters.
        particles: draws in a step.
        clip: of the norm of the gradient of KL + NLL / λ.
        scale: of the posterior of the weights at the start.
        temperature: of q(Γ) at the start.
        prior: log-scale of the prior of the weights at the start.
        reset: the same in the middle.
        floor: logarithm of the least scale of the prior with γ².
    """

    steps: int = 1000
    lr: float = 0.01
    particles: int = 3
    clip: float = 1.0
    scale: float = 0.05
    temperature: float = 0.2
    prior: float = 0.0
    reset: float = 10.0
    floor: float = -4.0


def build(seed: int, temperature: float, protocol: Protocol) -> tuple[Pair, Dataset]:
    """A pair and the data of a seed.

    Arguments:
        temperature: of p(Γ | h).
    """
    data = regimes(seed=seed, standardise=False)
    with seeded(seed, torch.device("cpu")):
        complex_, simple = nn.Linear(data.x_train.shape[1], 1), nn.Linear(1, 1)
        constant = nn.Linear(1, 1, bias=False)
        graph = models.StructureGraph(
            {
                ("x", "y"): {
                    "complex": nn.Sequential(complex_, nn.Tanh()),
                    "simple": nn.Sequential(select([0], -1), simple, nn.Tanh()),
                    "constant": nn.Sequential(One(), constant),
                }
            }
        )
        for parameter in graph.parameters():
            nn.init.normal_(parameter, std=0.1)
        model = models.StructuredNetwork(
            graph,
            data,
            structure=GumbelSoftmax(temperature, learn=True),
            prior=Normal(math.exp(protocol.prior), learn="weight"),
            likelihood=models.Regression(1, scale=1.0),
        )
        family = guides.StructureFamily(temperature="learnt")
        guide = guides.MeanField(model, scale=protocol.scale, structure=family)
        with torch.no_grad():
            edge: Any = guide.edge(SITE)
            edge.temperature.log_value.fill_(math.log(protocol.temperature))
            edge.logits.normal_(std=0.1)
            model.structure[SITE].logits.normal_(std=0.1)
    return (model, guide), data


def learn(
    temperature: float, weight: float, seeds: Sequence[int], protocol: Protocol
) -> tuple[list[tuple[Pair, Dataset]], bool]:
    """The fits of all seeds, in common steps; and whether every loss was finite.

    Arguments:
        temperature: of p(Γ | h).
        weight: λ, of the KL.
    """
    made = [build(seed, temperature, protocol) for seed in seeds]
    pairs, sets = [pair for pair, _ in made], [data for _, data in made]
    settings = Settings.of(
        {
            "optimizer": "adam", "lr": protocol.lr, "guide_lr": protocol.lr, "weight_decay": 0.0,
            "schedule": "constant", "kl_weight": weight, "particles": protocol.particles,
            # The loss is (λ KL + NLL) / N, of which this is the gradient of KL + NLL / λ.
            "clip_norm": protocol.clip * weight / sets[0].N,
        }
    )  # fmt: skip
    x, y = (torch.stack(list(part)) for part in zip(*(d.split("train") for d in sets), strict=True))
    if len(pairs) == 1:
        x, y = x[0], y[0]
    finite = True
    with seeded(seeds[0], x.device), pyro.validation_enabled(False):
        step = TrainingStep(pairs, settings, compile="graph")
        for number in range(protocol.steps):
            if number == protocol.steps // 2:
                for model, _ in pairs:
                    spread_prior(model, protocol.reset, Floored(math.exp(protocol.floor)))
            finite = finite and bool(step(x, y).isfinite().all())
        step.release()
    return made, finite


@torch.no_grad()
def spread_prior(
    model: models.StructuredNetwork, log_scale: float, scaling: Scaling | None
) -> None:
    """Another scale for the prior of all weights, and how it depends on γ from now on."""
    for parameter in scales_of(model):
        parameter.fill_(log_scale)
    model.scaling = scaling


def scales_of(model: models.StructuredNetwork) -> list[nn.Parameter]:
    """The log-scales in the prior of the weights."""
    return [
        parameter
        for layer in model.layers.values()
        for name, parameter in layer.prior.named_parameters()
        if name.startswith("log_scale")
    ]


@torch.no_grad()
def look(pair: Pair) -> dict[str, Any]:
    """Findings on the structure."""
    model, guide = pair
    edge: Any = guide.edge(SITE)
    q, p = edge.probs(), model.structure[SITE].probs()
    tensors = [*model.parameters(), *guide.parameters()]
    return {
        "q": [round(v, 4) for v in q.tolist()],
        "p": [round(v, 4) for v in p.tolist()],
        "winner": PRIMITIVES[int(q.argmax())],
        "temperature": round(float(edge.temperature()), 4),
        "logits": [round(v, 4) for v in edge.logits.tolist()],
        "noise": round(float(model.part("likelihood").scale), 4),
        "log_scale": round(float(torch.cat([t.flatten() for t in scales_of(model)]).mean()), 3),
        "finite": all(bool(t.isfinite().all()) for t in tensors),
    }
