"""The three-regime toy and the structure transition: their parts."""

import pytest
import torch
from pyroccam.models.distributions import LearntTemperature

from experiments.published.structure.competing import (
    SITE,
    Protocol,
    build,
    look,
)


def test_the_start_is_that_of_the_protocol():
    (model, guide), data = build(3, 10.0, Protocol(scale=0.07, prior=-1.0))
    assert data.N == 50
    assert float(model.structure[SITE].temperature()) == 10.0
    assert look((model, guide))["temperature"] == pytest.approx(0.2)
    assert isinstance(guide.edge(SITE).temperature, LearntTemperature)
    weights = [guide.posterior(site).base_dist for site in model.sites]
    assert sum(q.loc.numel() for q in weights) == 15
    assert all(torch.allclose(q.scale, torch.tensor(0.07)) for q in weights)
    assert look((model, guide))["log_scale"] == -1.0
    again = build(3, 10.0, Protocol())[0][0]
    assert torch.equal(again.structure[SITE].logits, model.structure[SITE].logits)
    assert not torch.equal(build(4, 10.0, Protocol())[1].y_train, data.y_train)


def test_the_graph_is_the_three_models():
    (model, _), data = build(0, 1.0, Protocol())
    graph, x = model.part("net"), data.x_train[:4]
    parts = graph.modules()  # Bayesian or not yet
    layers = [m for m in parts if isinstance(m, torch.nn.Linear) or hasattr(m, "start")]
    assert len(layers) == 3
    gamma = torch.tensor([0.5, 0.3, 0.2])
    w, b = torch.linspace(-1, 1, 11)[None], torch.tensor([0.3])
    one = torch.tensor([[0.8]])
    weights = {
        name: (w, b) if "complex" in name else (one, b if "simple" in name else None)
        for name in model.layers
    }
    net = model.plain(weights, {"x-y": gamma})
    expected = 0.5 * (x @ w.T + b).tanh() + 0.3 * (0.8 * x[:, :1] + b).tanh() + 0.2 * 0.8
    assert torch.allclose(net(x), expected, atol=1e-6)
