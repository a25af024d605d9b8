"""What every guide has to do: one case for each, that the tests of the contract run over."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from fitting import blobs
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyroccam import guides, models
from pyroccam.models import priors
from torch import nn

BOOK = torch.tensor([-0.4, 0.1, 0.7])
INDEX = torch.arange(16).reshape(8, 2) % 4 - 1


def depth(rows, seed=0):
    torch.manual_seed(seed)
    return models.LearntDepth.mlp(rows, width=6, max_depth=2)


def fixed(rows, seed=0):
    return depth(rows, seed).at_depth(1)


def network(rows, seed=0, prior=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    return models.BayesianNetwork(net, rows, prior=prior or priors.Normal())


def scaled(rows, seed=0):
    return network(rows, seed, priors.GroupHalfCauchy(0.5))


def gated(rows, seed=0):
    return network(rows, seed, priors.SpikeSlab())


def of_integers(rows, seed=0):
    return network(rows, seed, priors.Integers())


def structured(rows, seed=0):
    torch.manual_seed(seed)
    made = {
        name: nn.Sequential(nn.Linear(2, 8), act)
        for name, act in (("a", nn.Tanh()), ("b", nn.ReLU()))
    }
    graph = models.StructureGraph({("x", "h"): made, ("h", "y"): [nn.Linear(8, 3)]})
    structure = priors.GumbelSoftmax()
    return models.StructuredNetwork(graph, rows, structure=structure, prior=priors.Normal())


@dataclass(frozen=True)
class GuideCase:
    """How a guide is made, for which model.

    Attributes:
        model: from rows and a seed.
        guide: from a model.
        elbo: of Pyro, that the pair trains under.
        falls_to: share of the first losses that those of the last of 40 steps are below.
    """

    model: Callable
    guide: Callable
    elbo: Callable = TraceMeanField_ELBO
    falls_to: float = 0.9

    def pair(self, seed=0):
        rows = blobs()
        model = self.model(rows, seed)
        return model, self.guide(model), rows


def rounded(model):
    return guides.Points(model, by=guides.WholeSteps())


def above(model):
    return {"0": model.layers["0"].start["weight"].abs() > 0.3}


def points(make):
    return GuideCase(network, make, Trace_ELBO, 0.8)


def enumerated():
    return TraceEnum_ELBO(max_plate_nesting=1)


CASES = {
    "CategoricalDepth": GuideCase(depth, guides.CategoricalDepth, enumerated, 0.7),
    "CategoricalDepth by gradient": GuideCase(
        depth, lambda model: guides.CategoricalDepth(model, update="gradient"), enumerated, 0.7
    ),
    "Marginal": GuideCase(depth, guides.Marginal, enumerated, 0.7),
    "Deterministic": GuideCase(fixed, guides.Deterministic, Trace_ELBO, 0.7),
    "MeanField": GuideCase(network, guides.MeanField),
    "MeanField of scales": GuideCase(scaled, guides.MeanField),
    "MeanField of gates": GuideCase(gated, lambda m: guides.MeanField(m, local=False)),
    "MeanField of structure": GuideCase(structured, lambda m: guides.MeanField(m, local=False)),
    "Conditional": GuideCase(
        network, lambda m: guides.Conditional(guides.MeanField(m), low=0.1, high=2.0)
    ),
    "Conditional of scales": GuideCase(
        scaled, lambda m: guides.Conditional(guides.MeanField(m), low=0.1, high=2.0, pivots=2)
    ),
    "Conditional of dropout": GuideCase(
        network, lambda m: guides.Conditional(guides.VariationalDropout(m), low=0.1, high=2.0)
    ),
    "Conditional of gates": GuideCase(
        gated, lambda m: guides.Conditional(guides.MeanField(m, local=False), low=2.0, high=3.0)
    ),
    "Conditional of structure": GuideCase(
        structured,
        lambda m: guides.Conditional(guides.MeanField(m, local=False), low=0.1, high=2.0),
    ),
    "MeanKL": GuideCase(network, lambda model: guides.MeanKL(model, nats=20.0)),
    "VariationalDropout": GuideCase(network, guides.VariationalDropout),
    "ZeroMean": GuideCase(network, guides.ZeroMean, falls_to=1.0),
    "ZeroMean, uniform": GuideCase(
        network, lambda model: guides.ZeroMean(model, noise="uniform"), falls_to=1.0
    ),
    "ZeroMean, rademacher": GuideCase(
        network, lambda model: guides.ZeroMean(model, noise="rademacher"), falls_to=1.0
    ),
    "Delta": points(guides.Delta),
    "Mask": points(lambda m: guides.Points(m, by=guides.Mask(above(m)))),
    "WholeSteps": GuideCase(of_integers, rounded, Trace_ELBO, 0.8),
    "WholeSteps, with its noise": GuideCase(of_integers, rounded, falls_to=0.8),
    "Switch": points(lambda m: guides.Points(m, by=guides.Switch(c=0.5, gamma=0.01))),
    "Book": points(lambda m: guides.Points(m, by=guides.Book({"0": (BOOK, INDEX)}))),
}
