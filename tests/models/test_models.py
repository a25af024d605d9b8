"""What all models keep to."""

import torch
from alternatives import FIRST, SECOND, graph
from model_case import ModelCase
from pyroccam import models
from pyroccam.models import base, priors
from random_weights import Rows
from torch import nn

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
WORDS = Rows(3, outputs=2, task="classification")


class TestLearntDepth(ModelCase):
    latents = ("depth",)

    def made(self):
        model = models.LearntDepth.mlp(WORDS, width=4, max_depth=2)
        return model, X, torch.arange(5) % 2


class TestPlainNetwork(ModelCase):
    def made(self):
        rows = Rows(3, outputs=1)
        return models.LearntDepth.mlp(rows, width=4, max_depth=2).at_depth(1), X, X[:, :1]


class TestBayesianNetwork(ModelCase):
    latents = ("0.weight", "0.bias", "3.weight", "3.bias")

    def made(self):
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        prior = priors.Normal(learn="layer")
        return models.BayesianNetwork(net, WORDS, prior=prior), X, torch.arange(5) % 2


class TestBayesianStack(ModelCase):
    latents = (
        "depth",
        *(f"{layer}.{name}"
          for layer in ("stem", "blocks.0", "blocks.1", "adapters.0.0", "head.1")
          for name in ("weight", "bias")),
    )  # fmt: skip

    def made(self):
        adapter = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        stack = models.DepthStack(
            nn.Linear(3, 4),
            [nn.Linear(4, 4), nn.Linear(4, 4)],
            nn.Sequential(nn.Tanh(), nn.Linear(4, 2)),
            [adapter, adapter, None],
        )
        prior = priors.Normal(learn="weight")
        return models.BayesianStack(stack, WORDS, prior=prior), X, torch.arange(5) % 2


class TestStructuredNetwork(ModelCase):
    latents = (
        *(f"{edge}.structure" for edge in (FIRST, SECOND)),
        *(f"edges.{FIRST}.{layer}.{name}"
          for layer in ("tanh.0", "relu.0", "deep.0", "deep.2") for name in ("weight", "bias")),
        *(f"edges.{SECOND}.{layer}.{name}"
          for layer in ("straight", "bent.1") for name in ("weight", "bias")),
    )  # fmt: skip

    def made(self):
        structure = priors.GumbelSoftmax(0.5, learn=True)
        prior = priors.Normal(learn="weight")
        rows = Rows(3, outputs=1)
        return (
            models.StructuredNetwork(graph(), rows, structure=structure, prior=prior),
            X,
            X[:, :1],
        )


def test_every_model_has_a_case():
    """By its class, or by that of which it is."""
    tested = {type(case().fresh()[0]) for case in ModelCase.__subclasses__()}
    kinds = {one for n in models.__all__ if isinstance(one := getattr(models, n), type)}
    assert tested == {kind for kind in kinds if issubclass(kind, base.Model)}
