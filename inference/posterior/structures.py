"""What a fit has learnt of its structure: the depth of a stack, the primitives of a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from ...data import card
from ...guides import NetworkGuide
from ...models import StructuredNetwork
from ...models.networks import filled

Choice = dict[str, list[str]]
"""Names of the chosen primitives by edge."""


class Structure(Protocol):
    """A structure that was learnt: one of ``fit.structures``, or the report of a cut."""

    @property
    def title(self) -> str:
        """Of what it is the structure."""

    @property
    def choice(self) -> Any:
        """What is kept: a depth, primitives by edge, or what is left of the layers."""

    def sentences(self) -> list[str]:
        """What was learnt in words, for a terminal and a page alike."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """The same as a small table: texts and numbers by the names of their columns."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Plain data for a result file."""
        ...


class Presentable:
    """A structure, as a notebook shows it."""

    def _repr_html_(self) -> str:
        own = cast(Structure, self)
        return card(own.title, {}, own.sentences(), own.rows(), "inference.shrink(fit)")


@dataclass(frozen=True)
class EdgeStructure(Presentable):
    """The structure of a graph that a fit finds.

    Attributes:
        probs: by edge, of each of its primitives that it is the one, or, in the cube, that it is
            one of those that are in.
        chosen: the most probable.
        entropy: of the vertices under the posterior, edges independent, in nats.
        log_prob: of the chosen structure under it, in nats.
    """

    probs: dict[str, dict[str, float]]
    chosen: Choice
    entropy: float
    log_prob: float
    title = "Operations"

    @property
    def choice(self) -> Choice:
        return self.chosen

    @property
    def certainty(self) -> float:
        return math.exp(self.log_prob)

    def sentences(self) -> list[str]:
        edges = "; ".join(
            f"{edge}: {' + '.join(p) or 'nothing'}" for edge, p in self.chosen.items()
        )
        return [
            f"Chosen of the operations are {edges}.",
            f"All of these together have probability {self.certainty:.3f}; the entropy of the "
            f"structure is {self.entropy:.2f} nats.",
        ]

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "edge": edge,
                "chosen": " + ".join(names) or "nothing",
                "probability of each": ", ".join(
                    f"{name} {p:.2f}" for name, p in self.probs.get(edge, {}).items()
                )
                or "no alternative",
            }
            for edge, names in self.chosen.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def __str__(self) -> str:
        parts = []
        for edge, names in self.chosen.items():
            found = self.probs.get(edge)
            shown = [n if found is None else f"{n} ({found[n]:.2f})" for n in names]
            parts.append(f"{edge}: {' + '.join(shown) or 'none'}")
        return f"{'; '.join(parts)}. Probability of all {self.certainty:.3f}"


@torch.no_grad()
def edge_structure(model: StructuredNetwork, guide: NetworkGuide) -> EdgeStructure:
    """The most probable primitive of every edge; in the cube all with a probability above ½.

    Where that would leave a vertex without edges, the edges that cost least probability have their
    most probable primitives after all, so that every choice is a network.
    """
    probs: dict[str, dict[str, float]] = {}
    known: Choice = {edge: list(names) for edge, names in model.primitives.items()}
    chosen, full = dict(known), dict(known)
    log_prob, lost = dict.fromkeys(known, 0.0), dict.fromkeys(known, 0.0)
    entropy = 0.0
    for site, prior in model.structure.items():
        factor, edge = guide.edge(site), prior.edge
        pairs = zip(prior.primitives, factor.probs().double().tolist(), strict=True)
        probs[edge] = {name: round(value, 6) for name, value in pairs}
        vertices = [factor.vertex(), factor.vertex(empty=False)]
        chosen[edge], full[edge] = (
            [n for n, v in zip(prior.primitives, one.tolist(), strict=True) if v > 0.5]
            for one in vertices
        )
        log_prob[edge], other = map(factor.vertex_log_prob, vertices)
        lost[edge] = log_prob[edge] - other
        entropy += factor.entropy()
    for edge in filled(model.start_network(), chosen, lost):
        chosen[edge] = full[edge]
        log_prob[edge] -= lost[edge]
    return EdgeStructure(probs, chosen, entropy, sum(log_prob.values()))
