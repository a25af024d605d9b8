"""Small networks of random structure, pairs over them, and what they compute, by hand."""

import itertools
import math

import torch
from pyro import poutine
from pyroccam import guides, models
from pyroccam.models import StructuredNetwork, StructureGraph
from random_weights import Rows
from torch import nn
from torch.func import functional_call

FIRST, SECOND = "x-h", "h-y"
EDGES = {FIRST: ("tanh", "relu", "deep"), SECOND: ("straight", "bent")}
GAMMAS = {  # within the simplex
    FIRST: torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64),
    SECOND: torch.tensor([0.9, 0.1], dtype=torch.float64),
}
NOISE = 0.5


def choice_of(inputs, hidden, bent, straight):
    """One edge of two alternatives by these names, and one without a choice to two outputs."""
    bow = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh())
    first = {bent: bow, straight: nn.Linear(inputs, hidden)}
    return StructureGraph({("x", "h"): first, ("h", "y"): [nn.Linear(hidden, 2)]})


def graph(outputs=1, inputs=3, seed=0, **more):
    """Of two edges, with three primitives (one of two layers) and with two."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return StructureGraph(
            {
                ("x", "h"): {
                    "tanh": nn.Sequential(nn.Linear(inputs, 2), nn.Tanh()),
                    "relu": nn.Sequential(nn.Linear(inputs, 2), nn.ReLU()),
                    "deep": nn.Sequential(nn.Linear(inputs, 2), nn.Tanh(), nn.Linear(2, 2)),
                },
                ("h", "y"): {
                    "straight": nn.Linear(2, outputs),
                    "bent": nn.Sequential(nn.Tanh(), nn.Linear(2, outputs)),
                },
            },
            **more,
        )


def small(outputs=1, seed=0):
    """Of one edge with two primitives, which is traced faster."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bent = nn.Sequential(nn.Linear(3, outputs), nn.Tanh())
        return StructureGraph({("x", "h"): {"straight": nn.Linear(3, outputs), "bent": bent}})


def larger(shared):
    """A network with two graphs, which have one structure or two."""
    torch.manual_seed(5)
    first = graph(outputs=3, seed=1)
    gamma = first.gamma if shared else None
    return nn.Sequential(
        nn.Linear(3, 3), first, nn.Tanh(), graph(outputs=2, seed=2, gamma=gamma), nn.Linear(2, 1)
    )


def make(structure, net=None, rows=None, **options):
    """A model in double precision of regression N = 12."""
    rows = Rows(3, outputs=1, N=12) if rows is None else rows
    likelihood = models.Regression(rows.outputs, floor=0.0)
    net = graph(rows.outputs) if net is None else net
    model = StructuredNetwork(net, rows, structure=structure, likelihood=likelihood, **options)
    nn.init.constant_(model.double().likelihood.log_scale, math.log(NOISE))
    return model


def pair(structure, guide=guides.MeanField, seed=0, **options):
    """The same with a guide whose parameters are at random."""
    model = make(structure, **options)
    own = guide(model).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in own.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.copy_(0.2 * noise - 1.0 if name.endswith("log_scale") else 0.7 * noise)
    return model, own


def batch(size=12, seed=0):
    """Inputs and targets of regression, ``(size, 3)`` and ``(size, 1)``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    return x, (x @ torch.tensor([[1.0], [-0.5], [0.3]], dtype=torch.float64)).sin()


def every(model):
    """All structures of an enumerated model: positions in the tables by site, and γ by edge."""
    tables = {site: prior.vertices for site, prior in model.structure.items()}
    for chosen in itertools.product(*(range(len(t)) for t in tables.values())):
        at = dict(zip(tables, chosen, strict=True))
        yield at, {site.removesuffix(".structure"): tables[site][k] for site, k in at.items()}


def computed(weights, gammas, x, net=None):
    """Outputs of the plain network with these weights by name and this γ by edge, by torch alone.

    Arguments:
        weights: ``layer.weight`` and ``layer.bias``, where they are not those of the network.
        net: of which the model was made.
    """
    net = (graph() if net is None else net).double()
    named = dict(weights)
    for edge, gamma in gammas.items():
        path, _, own = edge.rpartition(".")
        named[f"{path}.gamma.{own}".lstrip(".")] = gamma
    return functional_call(net, named, (x,))


def means(model, x):
    """Of the outputs, in a pass through the model."""
    return poutine.trace(model).get_trace(x).nodes["y"]["fn"].base_dist.loc


def known(path=""):
    """Values of relaxed sites at ``GAMMAS``."""
    return {f"{path}{edge}.structure": gamma.log() for edge, gamma in GAMMAS.items()}


def share(gamma, site):
    """γ of the primitive that a weight of the graph belongs to."""
    _, edge, primitive = site.split(".")[:3]
    return gamma[edge][EDGES[edge].index(primitive)]


def drawn_weights(model):
    """Values for all sites of the weights."""
    return {
        site: torch.randn(layer.latents()[name].prior.event_shape, dtype=torch.float64)
        for site, (layer, name) in model.sites.items()
    }
