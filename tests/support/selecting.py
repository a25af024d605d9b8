"""Tiny pairs with two levels, in double precision, and their rows."""

import torch
from pyroccam import guides, inference, models
from pyroccam.inference.selection import Level
from pyroccam.inference.selection.levels import Objectives
from pyroccam.inference.selection.search import Search
from random_weights import Rows
from torch import nn

from experiments.sets import toys

F64 = torch.float64
QUIET = {"progress": False, "device": "cpu"}
POLYNOMIAL = toys.polynomial()


def rows(count=12, weights=2, seed=0):
    """Of a linear regression: inputs ``(count, weights)`` and targets ``(count, 1)``."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, weights, generator=g, dtype=F64)
    w = torch.linspace(1.5, -1.0, weights, dtype=F64)
    return x, (x @ w + 0.5 * torch.randn(count, generator=g, dtype=F64))[:, None]


def linear(weights=2, **options):
    """A model of one linear layer without bias, a scale of the prior for each weight."""
    options = {"prior": models.priors.Normal(learn="weight"), "count": 12, **options}
    net = options.pop("net", None) or nn.Linear(weights, 1, bias=False)
    data = Rows(weights, N=options.pop("count"), outputs=1)
    return models.BayesianNetwork(net, data, **options).double()


class Zero(nn.Module):
    """A primitive that gives zeros."""

    def forward(self, x):
        return 0.0 * x[:, :1]


def alternatives(structure=None, count=12, **options):
    """A model of a line, a curve or nothing, in two inputs."""
    graph = models.StructureGraph(
        {
            ("x", "y"): {
                "line": nn.Linear(2, 1, bias=False),
                "curve": nn.Sequential(nn.Linear(2, 1, bias=False), nn.Tanh()),
                "zero": Zero(),
            }
        }
    )
    options = {"prior": models.priors.Normal(learn="weight"), **options}
    structure = structure or models.priors.GumbelSoftmax(temperature=0.7, learn=True)
    data = Rows(2, N=count, outputs=1)
    return models.StructuredNetwork(graph, data, structure=structure, **options).double()


def scattered(model, guide=guides.MeanField, seed=0, **options):
    """The model and a guide, with all parameters at random."""
    made = guide(model, **options).double()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *made.named_parameters()]:
            start = -1.0 if "log_scale" in name else 0.0
            p.copy_(start + 0.5 * torch.randn(p.shape, generator=g, dtype=F64))
    return model, made


def objectives(pair, L=None, Q=None, particles=1):
    return Objectives(*pair, (L or Level(), Q or Level()), particles)


def polynomial(rows=POLYNOMIAL, prior=None):
    """The same pair at each call: twelve features with a scale each, and the noise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        net = nn.Linear(12, 1, bias=False)
    prior = prior or models.priors.Normal(learn="weight")
    model = models.BayesianNetwork(net, rows, prior=prior)
    return model, guides.MeanField(model)


def run(method, pair=None, rows=POLYNOMIAL, **options):
    options = {"outer_steps": 6, "inner_steps": 10, "lr": 0.02, "outer_lr": 0.05, **options}
    model, guide = pair or polynomial(rows)
    return inference.select(model, guide, rows, method=method, **{"draws": 5, **QUIET, **options})


def states_of(monkeypatch):
    """θ, h and what a method keeps, after each outer step, as they come."""
    look, found = Search.look, []

    def watch(self, keys):
        found.append((self.theta, self.h, self.kept))
        return look(self, keys)

    monkeypatch.setattr(Search, "look", watch)
    return found
