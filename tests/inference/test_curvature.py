"""The curvature test against closed forms, autograd's Hessian and differences."""

from types import SimpleNamespace

import pytest
import torch
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import posterior_of
from pyroccam.inference.posterior.draws import draw_outputs, draw_weights
from pyroccam.inference.posterior.mean_propagation import Curvature, Curvatures
from pyroccam.models import priors
from random_weights import limit, table
from torch import nn
from torch.func import functional_call

F64 = torch.float64


def posterior(net, rows, guide=guides.MeanField, prior=None, **options):
    """Of a pair in double precision, with its data."""
    likelihood = None
    if rows.task == "regression":
        likelihood = models.Regression(1, scale=0.4, floor=0.0)
    prior = prior or priors.Normal()
    model = models.BayesianNetwork(net, rows, prior=prior, likelihood=likelihood).double()
    x, y = (t.double() if t.is_floating_point() else t for t in rows.split("train"))
    data = SimpleNamespace(split=lambda name: (x, y))
    return posterior_of(model, guide(model, **options).double(), data), x, y


def small(rows):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, rows.outputs))


def log_likelihood(of, x, y):
    net = of.mean_network()
    means = {n: p.detach() for n, p in net.named_parameters()}

    def f(name, w):
        outputs = functional_call(net, {**means, name: w}, (x,))
        return of.model.likelihood(outputs[None]).log_prob(y).mean()

    return f, means


def test_of_a_linear_regression():
    """log p is quadratic: κ = -σ² mean(x²) / noise², wherever it is taken.

    The means are those of least squares: without a slope there, draws tell more.
    """
    torch.manual_seed(0)
    of, x, y = posterior(nn.Linear(3, 1), table("regression"), scale=0.3)
    best = torch.linalg.lstsq(torch.cat([x, torch.ones_like(y)], 1), y).solution.T
    with torch.no_grad():
        of.guide.posterior(".weight").base_dist.loc.copy_(best[:, :3])
        of.guide.posterior(".bias").base_dist.loc.copy_(best[:, 3])
    noise = float(of.model.likelihood.scale.detach())
    expected = -(0.3**2) * x.square().mean(0)[None] / noise**2
    for at in ("means", "posterior"):
        rough = of.curvature(at=at, probes=150)[""]
        assert float(((rough.kappa - expected) / rough.error).abs().max()) < limit(3)
        assert float((rough.error / expected.abs()).max()) < 0.2


def test_of_a_small_network_against_the_whole_hessian():
    torch.manual_seed(1)
    rows = table()
    of, x, y = posterior(small(rows), rows, scale=0.2)
    f, means = log_likelihood(of, x, y)
    rough = of.curvature(probes=200)
    for layer in ("0", "2"):
        name = f"{layer}.weight"
        hessian = torch.autograd.functional.hessian(lambda w, name=name: f(name, w), means[name])
        n = means[name].numel()
        expected = 0.2**2 * hessian.reshape(n, n).diagonal().reshape(means[name].shape)
        z = ((rough[layer].kappa - expected) / rough[layer].error.clamp_min(1e-12)).abs().max()
        assert float(z) < limit(n)


def test_only_chosen_weights_are_drawn():
    torch.manual_seed(4)
    of, x, _ = posterior(nn.Linear(3, 2), table(), scale=0.5)
    kappa = torch.tensor([[3.0, -2.0, 0.1], [0.5, 0.0, 1.0]], dtype=F64)
    found = Curvatures({"": Curvature(kappa, torch.zeros_like(kappa), 1)})
    only = found.to_sample(share=0.5)
    assert only[""].tolist() == [[True, True, False], [False, False, True]]
    assert not found.to_sample(share=0.0)[""].any()
    drawn = draw_weights(of.model, of.guide, 50, only)["weight"]
    assert torch.equal(drawn.std(0) > 0, only[""])
    mean = of.guide.posterior(".weight").mean.detach()
    assert torch.equal(drawn[0][~only[""]], mean[~only[""]])
    scaled, *_ = posterior(nn.Linear(3, 2), table(), prior=priors.GroupNormalJeffreys())
    for refused in (
        lambda: scaled.curvature(at="posterior"),
        lambda: draw_weights(of.model, of.guide, 1, {"first": torch.ones(2, 3).bool()}),
        lambda: draw_outputs(of.model, of.guide, x, 2, noise="activations", only={}),
    ):
        with pytest.raises(PyroccamError):
            refused()
