"""The table of methods: what the command line, the benchmarks and the experiments offer.

Adding a method is adding a row here, with its model and its guide in their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from .. import guides, models
from ..data import Dataset
from ..inference.fit import Fit
from ..models import networks
from ..models.names import unknown_name
from ..models.plain_networks import PLAIN
from ..models.stack import DepthStack

__all__ = ["METHODS", "Method", "Pair", "Stage", "find"]

Pair = tuple[Any, nn.Module]


@dataclass(frozen=True)
class Stage:
    """A further fit of a run, which begins where the one before it ended.

    Attributes:
        name: of its folder, inside the run's.
        build: from the fit before and the options to a pair. It depends on nothing else: a finished
            run is rebuilt by it from the weights of the fit before.
        settings: that replace those of the fit before.
    """

    name: str
    build: Callable[[Fit, dict[str, Any]], Pair]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        name: on the command line.
        title: in one line.
        reference: where it comes from.
        build: from a network, the data and the options to a (model, guide) pair.
        over: what kind of network it takes: a ``stack`` that can stop at any depth, or any ``net``.
        options: what ``--set`` takes beside the network's and the fit's settings, with defaults.
        settings: fit settings that differ from the network's.
        full_batch: it cannot take minibatches.
        stages: from the options to the fits that follow the first; by default there are none.
    """

    name: str
    title: str
    reference: str
    build: Callable[[Any, Dataset, dict[str, Any]], Pair]
    over: Literal["stack", "net"] = "stack"
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    full_batch: bool = False
    stages: Callable[[dict[str, Any]], Sequence[Stage]] = lambda options: ()

    @property
    def networks(self) -> dict[str, Callable[..., nn.Module]]:
        """Ready networks that it takes, by name."""
        return dict(networks.NETWORKS) if self.over == "stack" else PLAIN


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


def _bayes(net: nn.Module, data: Dataset, options: dict[str, Any]) -> Pair:
    prior = models.priors.parse_weights(str(options["prior"]))
    model = models.BayesianNetwork(net, data, prior=prior)
    return model, guides.parse(str(options["guide"]), model, scales=options["scales"])


_LDN = "Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2002.02797"
_PRIOR = {"prior": "geometric:0.85", "threshold": 0.95}
_COMPRESSION = "Louizos, Ullrich, Welling 2017, arXiv:1705.08665"
_WEIGHTS = {
    "optimizer": "adam", "lr": 2e-3, "schedule": "linear", "weight_decay": 0.0, "kl_warmup": 0.1,
    "batch_size": 256, "epochs": 60,
}  # fmt: skip


def _row(name: str, title: str, reference: str, prior: str, guide: str = "mean-field") -> Method:
    """A prior and a guide over the weights of any network."""
    options = {
        "prior": prior, "guide": guide, "scales": "example", "threshold": None, "tolerance": 0.001,
    }  # fmt: skip
    return Method(name, title, reference, _bayes, "net", options, dict(_WEIGHTS))


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method(
            "ldn",
            "learnt depth, q(d) in closed form",
            f"{_LDN}; Neal and Hinton 1998 for the update",
            _ldn,
            options={**_PRIOR, "hold": 0.5, "rate": None},
        ),
        Method(
            "ldn-gradient",
            "learnt depth, q(d) by gradient",
            _LDN,
            _ldn_gradient,
            options={**_PRIOR, "hold": 0.5},
        ),
        Method(
            "ldn-marginal",
            "learnt depth by maximum marginal likelihood, full batch (for comparison)",
            "Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2006.08437",
            _marginal,
            options=dict(_PRIOR),
            full_batch=True,
        ),
        Method(
            "ddn",
            "the same network at one fixed depth (--set depth=...; the deepest by default)",
            _LDN,
            _fixed,
            options={"depth": None},
        ),
        _row("gnj", "Bayesian compression, log-uniform scales of groups", _COMPRESSION, "gnj"),
        _row("ghs", "Bayesian compression, half-Cauchy scales of groups", _COMPRESSION, "ghs:1e-5"),
        _row(
            "sparse-vd",
            "sparse variational dropout: a dropout rate for each weight",
            "Molchanov, Ashukha, Vetrov 2017, arXiv:1701.05369",
            "log-uniform",
        ),
        _row(
            "bayes",
            "any prior and guide over the weights (--set prior=... --set guide=...)",
            "Graves 2011; Blundell et al. 2015, arXiv:1505.05424",
            "normal:1",
        ),
    )
}


def find(name: str) -> Method:
    """A method by its name; an unknown one is an error that suggests the nearest."""
    if name not in METHODS:
        raise ValueError(unknown_name("method", name, METHODS))
    return METHODS[name]
