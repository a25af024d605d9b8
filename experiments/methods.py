"""The table of methods: what the command line, the benchmarks and the experiments offer.

Adding a method is adding a row here, with its model and its guide in their own files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .. import guides, models
from ..data import Dataset
from ..inference.settings import unknown_name
from ..models.stack import DepthStack

__all__ = ["METHODS", "Method", "find"]

Pair = tuple[Any, nn.Module]


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        name: on the command line.
        title: in one line.
        reference: where it comes from.
        build: from a network, the data and the options to a (model, guide) pair.
        options: what ``--set`` takes beside the network's and the fit's settings, with defaults.
        settings: fit settings that differ from the network's.
        full_batch: it cannot take minibatches.
    """

    name: str
    title: str
    reference: str
    build: Callable[[DepthStack, Dataset, dict[str, Any]], Pair]
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    full_batch: bool = False


def _learnt_depth(stack: DepthStack, data: Dataset, options: dict[str, Any]) -> models.LearntDepth:
    return models.LearntDepth(stack, data=data, prior=models.priors.parse(str(options["prior"])))


def _ldn(stack: DepthStack, data: Dataset, options: dict[str, Any]) -> Pair:
    model = _learnt_depth(stack, data, options)
    return model, guides.CategoricalDepth(model, hold=options["hold"], rate=options["rate"])


def _ldn_gradient(stack: DepthStack, data: Dataset, options: dict[str, Any]) -> Pair:
    model = _learnt_depth(stack, data, options)
    return model, guides.CategoricalDepth(model, update="gradient", hold=options["hold"])


def _marginal(stack: DepthStack, data: Dataset, options: dict[str, Any]) -> Pair:
    model = _learnt_depth(stack, data, options)
    return model, guides.Marginal(model)


def _fixed(stack: DepthStack, data: Dataset, options: dict[str, Any]) -> Pair:
    depth = stack.max_depth if options["depth"] is None else int(options["depth"])
    model = models.LearntDepth(stack, data=data).at_depth(depth)
    return model, guides.Deterministic(model)


_LDN = "Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2002.02797"
_PRIOR = {"prior": "geometric:0.85", "threshold": 0.95}

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method(
            "ldn",
            "learnt depth, q(d) in closed form",
            f"{_LDN}; Neal and Hinton 1998 for the update",
            _ldn,
            {**_PRIOR, "hold": 0.5, "rate": None},
        ),
        Method(
            "ldn-gradient",
            "learnt depth, q(d) by gradient",
            _LDN,
            _ldn_gradient,
            {**_PRIOR, "hold": 0.5},
        ),
        Method(
            "ldn-marginal",
            "learnt depth by maximum marginal likelihood, full batch (for comparison)",
            "Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2006.08437",
            _marginal,
            dict(_PRIOR),
            full_batch=True,
        ),
        Method(
            "ddn",
            "the same network at one fixed depth (--set depth=...; the deepest by default)",
            _LDN,
            _fixed,
            {"depth": None},
        ),
    )
}


def find(name: str) -> Method:
    """A method by its name; an unknown one is an error that suggests the nearest."""
    if name not in METHODS:
        raise ValueError(unknown_name("method", name, METHODS))
    return METHODS[name]
