"""The table of methods: what the command line, the benchmarks and the experiments offer.

Adding a method is adding a row here, with its model and its guide in their own files.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from ... import guides, models
from ...data import Dataset
from ...data.errors import NetworkError
from ...inference.posterior.draws import DrawnNetwork
from ...inference.pruning.thresholds import by_layer_now
from ...models.checks import unknown_name
from ...models.layers.affine import AFFINE
from ...models.networks import ready as networks
from ...models.networks.dropout import with_dropout
from ...models.networks.graphs import GRAPHS
from ...models.networks.plain import PLAIN
from ...models.networks.stack import DepthStack
from ..boundary import place_in_own_code
from . import narrowing, points, sharing
from .stages import Options, Pair, Stages, no_stages

__all__ = ["METHODS", "Method", "find"]


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        name: on the command line.
        title: in one line.
        reference: where it comes from.
        build: from a network, the data and the options to a (model, guide) pair.
        over: what kind of network it takes: a ``stack`` that can stop at any depth, any ``net``, or
            one with a ``graph`` of alternatives in it.
        options: what ``--set`` takes beside the network's and the fit's settings, with defaults.
        settings: fit settings that differ from the network's.
        full_batch: it cannot take minibatches.
        first: from the options and the settings to settings of the first fit that differ.
        stages: from the same to the fits that follow; by default there are none.
    """

    name: str
    title: str
    reference: str
    build: Callable[[Any, Dataset, dict[str, Any]], Pair]
    over: Literal["stack", "net", "graph"] = "stack"
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    full_batch: bool = False
    first: Callable[[Options, dict[str, Any]], dict[str, Any]] = lambda options, settings: {}
    stages: Stages = no_stages

    @property
    def networks(self) -> dict[str, Callable[..., nn.Module]]:
        """Ready networks that it takes, by name."""
        if self.over == "stack":
            return dict(networks.NETWORKS)
        return PLAIN if self.over == "net" else GRAPHS

    def network(self, name: str) -> Callable[..., nn.Module]:
        """What makes a network, from the shape of an input, the number of outputs and options.

        Arguments:
            name: of a ready network, or ``module:function`` for one of a person's own.

        Raises:
            ValueError: if there is none.
        """
        if name in self.networks:
            return self.networks[name]
        module, _, function = name.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), function)):
            known = [*self.networks, "MODULE:FUNCTION of your own"]
            raise ValueError(unknown_name(f"network of {self.name}", name, known))
        sys.path.insert(0, "")  # the folder in which the command runs
        try:
            found = getattr(importlib.import_module(module), function, None)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"Network {name!r}: {module} cannot be imported ({error}). Run in the folder of "
                f"{module.replace('.', '/')}.py, or install it."
            ) from error
        except (Exception, SystemExit) as error:
            place = place_in_own_code(error)
            where = "" if place is None else f" ({place})"
            raise NetworkError(
                f"Network {name!r}: {module} fails while it is imported, by "
                f"{type(error).__name__}: {error}{where}"
            ) from error
        finally:
            sys.path.remove("")
        if not callable(found):
            raise ValueError(
                f"Network {name!r}: {module} has no function {function!r}, which would be called "
                "with the shape of an input and the number of outputs."
            )
        made: Callable[..., nn.Module] = found
        return made


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
    model = models.BayesianNetwork(
        net,
        data,
        prior=prior,
        layers=_layers(options["layers"], net),
        random_biases=options["random_biases"],
    )
    more = {"scales": options["scales"]}
    if options["max_scale"] is not None:
        more["max_scale"] = _limit(options["max_scale"], model)
    guide = guides.parse(str(options["guide"]), model, **more)
    # These say now what they would say in the middle, or at the end.
    DrawnNetwork(model, guide, options["noise"])
    for name in ("threshold", "narrow_at"):
        _refuse_names(options[name], model)
    if options["narrow"]:
        narrowing.refuse_uncuttable(model, guide, data)
    elif not guide.zero_mean:  # of which nothing is cut
        narrowing.tell_uncuttable(model, data)
    return model, guide


def _refuse_names(rule: Any, model: models.BayesianNetwork) -> None:
    """Thresholds for layers that there are not."""
    if isinstance(rule, dict):
        by_layer_now(rule, model)


def _dropout(net: nn.Module, data: Dataset, options: dict[str, Any]) -> Pair:
    dropped = with_dropout(net, options["rate"], _layers(options["layers"], net))
    return points.point(dropped, data, options)


def _gaussian_dropout(net: nn.Module, data: Dataset, options: dict[str, Any]) -> Pair:
    rate = options["rate"]
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate={rate!r}: give the share of units that is dropped, in (0, 1).")
    prior = models.priors.LogUniform()
    layers = _layers(options["layers"], net)
    model = models.BayesianNetwork(net, data, prior=prior, layers=layers, random_biases=False)
    _refuse_names(options["threshold"], model)
    narrowing.tell_uncuttable(model, data)
    log_alpha = math.log(rate / (1.0 - rate))
    return model, guides.VariationalDropout(model, rate="layer", log_alpha=log_alpha, learn=False)


def _structured(net: nn.Module, data: Dataset, options: dict[str, Any]) -> Pair:
    asked = options["prior"]
    model = models.StructuredNetwork(
        net,
        data,
        structure=models.priors.parse_structure(str(options["structure"])),
        prior=None if asked is None else models.priors.parse_weights(str(asked)),
    )
    family = guides.StructureFamily(options["family"], options["temperature"])
    return model, guides.MeanField(model, structure=family)


def _layers(asked: Any, net: nn.Module) -> list[str] | None:
    """Names of layers, one or a list. Of all linear and convolutional layers ``hidden`` are those
    but the last, and ``penultimate`` is the one before the last."""
    if asked is None or isinstance(asked, list):
        return asked
    names = [name for name, module in net.named_modules() if type(module) in AFFINE]
    words = {"hidden": names[:-1] or names, "penultimate": names[-2:-1] or names}
    return words.get(str(asked), [str(asked)])


def _limit(asked: Any, model: models.BayesianNetwork) -> Any:
    """``first:0.2`` is for the layer that is used first, a number for all."""
    word, colon, value = str(asked).partition(":")
    if not colon or isinstance(asked, dict):
        return asked
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if word != "first" or math.isnan(limit):
        raise ValueError(f"max_scale={asked!r}: give a number, numbers by layer or first:NUMBER.")
    return {next(iter(model.layers)): limit}


_LDN = "Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2002.02797"
_PRIOR = {"prior": "geometric:0.85", "threshold": 0.95}
_COMPRESSION = "Louizos, Ullrich, Welling 2017, arXiv:1705.08665"
_WEIGHTS = {
    "optimizer": "adam", "lr": 2e-3, "schedule": "linear", "weight_decay": 0.0, "kl_warmup": 0.1,
    "batch_size": 256, "epochs": 60,
}  # fmt: skip

# Tried on LeNet-300-100 and MNIST. The limit is that of the authors' code: without it, weights that
# mean nothing in a group that does are noise of the prior's size.
_LONG = {"epochs": 180, "kl_warmup": 0.02}
# What is left was chosen on the validation rows already; to choose again would follow their luck.
_GROUPS = {"threshold": "noise", "max_scale": "first:0.2", "narrow": [0.22, 0.44, 0.67]}

_VARIANCE = "Neklyudov, Molchanov, Ashukha, Vetrov 2018, arXiv:1803.03764"
# Deviations settle slowly, and there is no KL to overfit against.
_STEPS = {"epochs": None, "steps": 8000, "kl_warmup": 0.0}
# As in the source: the last layer and the biases are numbers, and noise is of activations.
_HIDDEN = {"layers": "hidden", "random_biases": False, "noise": "activations"}

_POINT = {**_WEIGHTS, "lr": 1e-3, "kl_warmup": 0.0, "epochs": 30}


def _row(
    name: str,
    title: str,
    reference: str,
    prior: str,
    options: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> Method:
    """A prior and a guide over the weights of any network."""
    usual: dict[str, Any] = {
        "prior": prior, "guide": "mean-field", "scales": "example", "max_scale": None,
        "threshold": None, "tolerance": 0.001,
        "narrow": [], "narrow_at": None, "narrow_tolerance": None, "last_rows": None,
        "layers": None, "random_biases": True, "noise": "weights",
    }  # fmt: skip
    options, settings = {**usual, **(options or {})}, {**_WEIGHTS, **(settings or {})}
    return Method(
        name, title, reference, _bayes, "net", options, settings,
        first=narrowing.first_settings, stages=narrowing.stages,
    )  # fmt: skip


def _point(name: str, title: str, reference: str, options: Options, stages: Stages) -> Method:
    """Fits of point estimates over any network."""
    return Method(
        name, title, reference, points.point, "net", dict(options), dict(_POINT), stages=stages
    )


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
        _row(
            "gnj",
            "Bayesian compression, log-uniform scales of groups",
            _COMPRESSION,
            "gnj",
            _GROUPS,
            _LONG,
        ),
        _row(
            "ghs",
            "Bayesian compression, half-Cauchy scales of groups",
            _COMPRESSION,
            "ghs:1e-5",
            {**_GROUPS, "narrow_tolerance": 0.02},  # its error is the lowest: there is more to give
            _LONG,
        ),
        _row(
            "sparse-vd",
            "sparse variational dropout: a dropout rate for each weight",
            "Molchanov, Ashukha, Vetrov 2017, arXiv:1701.05369",
            "log-uniform",
            {"threshold": 3.0},  # as published: a dropout rate above 0.95
        ),
        _row(
            "variance",
            "a variance network: hidden weights of mean zero, all in their deviations",
            _VARIANCE,
            "log-uniform",
            {**_HIDDEN, "layers": "penultimate", "guide": "zero-mean"},
            _STEPS,
        ),
        _row(
            "variational-dropout",
            "dropout with a learnt rate (--set guide=dropout-layer, -neuron or -weight)",
            f"Kingma, Salimans, Welling 2015, arXiv:1506.02557; {_VARIANCE}",
            "log-uniform",
            {**_HIDDEN, "guide": "dropout-layer"},
            _STEPS,
        ),
        Method(
            "gaussian-dropout",
            "Gaussian dropout of a fixed rate (--set rate=...), for comparison",
            "Srivastava et al. 2014; Kingma, Salimans, Welling 2015, arXiv:1506.02557",
            _gaussian_dropout,
            "net",
            {
                "rate": 0.5,
                "layers": "hidden",
                "noise": "activations",
                "threshold": None,
                "tolerance": 0.001,
            },
            {**_WEIGHTS, **_STEPS, "lr": 1e-3},
        ),
        Method(
            "dropout",
            "binary dropout of a fixed rate, in prediction too, for comparison",
            "Srivastava et al. 2014; Gal, Ghahramani 2016, arXiv:1506.02142",
            _dropout,
            "net",
            {"prior": "normal:1", "rate": 0.5, "layers": None},
            {**_WEIGHTS, **_STEPS, "lr": 1e-3},
        ),
        _point(
            "sws",
            "soft weight-sharing: weights gather around the means of a mixture",
            "Nowlan, Hinton 1992; Ullrich, Meeds, Welling 2017, arXiv:1702.04008",
            sharing.SHARING,
            sharing.sharing,
        ),
        _point(
            "deep-compression",
            "prune small weights and retrain, then let the others share few values",
            "Han, Mao, Dally 2016, arXiv:1510.00149",
            points.PRUNING,
            points.pruning,
        ),
        _point(
            "dns",
            "dynamic network surgery: small weights go while training, and may come back",
            "Guo, Yao, Chen 2016, arXiv:1608.04493",
            points.SURGERY,
            points.surgery,
        ),
        Method(
            "structure",
            "graphs of alternatives: which primitive on which edge",
            "Bakhteev, Strijov, Bayesian selection of deep learning model structure; Maddison, "
            "Mnih, Teh 2017, arXiv:1611.00712; Liu, Simonyan, Yang 2019, arXiv:1806.09055",
            _structured,
            "graph",
            {
                "structure": "gumbel-softmax:1:0.2",
                "family": "prior",
                "temperature": "tied",
                "prior": None,
                "random": 3,
            },
            {
                **_WEIGHTS,
                "lr": 5e-3,
                "guide_lr": 0.02,
                "kl_warmup": 0.0,
                "weight_decay": 1e-4,
                "epochs": 60,
            },
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
