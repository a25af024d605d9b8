"""What every guide has to do: one case for each, that the tests of the contract run over."""

import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyroccam import guides, models
from pyroccam.models import priors
from pyroccam.testing import GuideCase
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


def case(model, guide, elbo=TraceMeanField_ELBO, falls_to=0.9):
    """The case of a guide, by functions that make it and its model."""
    found = {"model": staticmethod(model), "guide": staticmethod(guide)}
    return type("Case", (GuideCase,), {**found, "elbo": staticmethod(elbo), "falls_to": falls_to})()


def rounded(model):
    return guides.Points(model, by=guides.WholeSteps())


def above(model):
    return {"0": model.layers["0"].start["weight"].abs() > 0.3}


def points(make):
    return case(network, make, Trace_ELBO, 0.8)


def enumerated():
    return TraceEnum_ELBO(max_plate_nesting=1)


CASES = {
    "CategoricalDepth": case(depth, guides.CategoricalDepth, enumerated, 0.7),
    "CategoricalDepth by gradient": case(
        depth, lambda model: guides.CategoricalDepth(model, update="gradient"), enumerated, 0.7
    ),
    "Marginal": case(depth, guides.Marginal, enumerated, 0.7),
    "Deterministic": case(fixed, guides.Deterministic, Trace_ELBO, 0.7),
    "MeanField": case(network, guides.MeanField),
    "MeanField of scales": case(scaled, guides.MeanField),
    "MeanField of gates": case(gated, lambda m: guides.MeanField(m, local=False)),
    "MeanField of structure": case(structured, lambda m: guides.MeanField(m, local=False)),
    "Conditional": case(
        network, lambda m: guides.Conditional(guides.MeanField(m), low=0.1, high=2.0)
    ),
    "Conditional of scales": case(
        scaled, lambda m: guides.Conditional(guides.MeanField(m), low=0.1, high=2.0, pivots=2)
    ),
    "Conditional of dropout": case(
        network, lambda m: guides.Conditional(guides.VariationalDropout(m), low=0.1, high=2.0)
    ),
    "Conditional of gates": case(
        gated, lambda m: guides.Conditional(guides.MeanField(m, local=False), low=2.0, high=3.0)
    ),
    "Conditional of structure": case(
        structured,
        lambda m: guides.Conditional(guides.MeanField(m, local=False), low=0.1, high=2.0),
    ),
    "MeanKL": case(network, lambda model: guides.MeanKL(model, nats=20.0)),
    "VariationalDropout": case(network, guides.VariationalDropout),
    "ZeroMean": case(network, guides.ZeroMean, falls_to=1.0),
    "ZeroMean, uniform": case(
        network, lambda model: guides.ZeroMean(model, noise="uniform"), falls_to=1.0
    ),
    "ZeroMean, rademacher": case(
        network, lambda model: guides.ZeroMean(model, noise="rademacher"), falls_to=1.0
    ),
    "Delta": points(guides.Delta),
    "Mask": points(lambda m: guides.Points(m, by=guides.Mask(above(m)))),
    "WholeSteps": case(of_integers, rounded, Trace_ELBO, 0.8),
    "WholeSteps, with its noise": case(of_integers, rounded, falls_to=0.8),
    "Switch": points(lambda m: guides.Points(m, by=guides.Switch(c=0.5, gamma=0.01))),
    "Book": points(lambda m: guides.Points(m, by=guides.Book({"0": (BOOK, INDEX)}))),
}
