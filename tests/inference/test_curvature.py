"""The curvature test against closed forms, autograd's Hessian and differences."""

import math
from types import SimpleNamespace

import pytest
import torch
from pyroccam import guides, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior import posterior_of
from pyroccam.inference.posterior.draws import draw_outputs, draw_weights
from pyroccam.inference.posterior.mean_propagation import Curvature, Curvatures
from pyroccam.models import priors
from pyroccam.models.bayesian import BayesianNetwork
from random_weights import limit, table
from torch import nn
from torch.func import functional_call

F64 = torch.float64


def fit_of(net, rows, guide=guides.MeanField, prior=None, **options):
    """A pair in double precision that looks like a fit."""
    likelihood = None
    if rows.task == "regression":
        likelihood = models.Regression(1, scale=0.4, floor=0.0)
    model = BayesianNetwork(net, rows, prior=prior or priors.Normal(), likelihood=likelihood)
    guide = guide(model.double(), **options).double()
    x, y = (t.double() if t.is_floating_point() else t for t in rows.split("train"))
    data = SimpleNamespace(split=lambda name: (x, y))
    posterior = posterior_of(model, guide, data)
    return SimpleNamespace(model=model, guide=guide, data=data, posterior=posterior), x, y


def log_likelihood(fit, x, y):
    net = fit.posterior.mean_network()
    means = {n: p.detach() for n, p in net.named_parameters()}

    def f(name, w):
        outputs = functional_call(net, {**means, name: w}, (x,))
        return fit.model.likelihood(outputs[None]).log_prob(y).mean()

    return f, means


def test_of_a_linear_regression():
    """log p is quadratic: κ = -σ² mean(x²) / noise², wherever it is taken.

    The means are those of least squares: without a slope there, draws tell more.
    """
    torch.manual_seed(0)
    fit, x, y = fit_of(nn.Linear(3, 1), table("regression"), scale=0.3)
    best = torch.linalg.lstsq(torch.cat([x, torch.ones_like(y)], 1), y).solution.T
    with torch.no_grad():
        fit.guide.posterior(".weight").base_dist.loc.copy_(best[:, :3])
        fit.guide.posterior(".bias").base_dist.loc.copy_(best[:, 3])
    noise = float(fit.model.likelihood.scale.detach())
    expected = -(0.3**2) * x.square().mean(0)[None] / noise**2
    found = fit.posterior.curvature(probes=None)[""]
    torch.testing.assert_close(found.kappa, expected)
    assert found.rows == len(x)
    assert float(found.error.abs().max()) == 0.0
    for at in ("means", "posterior"):
        rough = fit.posterior.curvature(at=at, probes=300)[""]
        z = ((rough.kappa - expected) / rough.error).abs().max()
        assert float(z) < limit(3)
        assert float((rough.error / expected.abs()).max()) < 0.15


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_of_a_small_network_against_the_whole_hessian(task):
    torch.manual_seed(1)
    rows = table(task)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, rows.outputs))
    fit, x, y = fit_of(net, rows, scale=0.2)
    f, means = log_likelihood(fit, x, y)
    exact, rough = (fit.posterior.curvature(probes=p) for p in (None, 600))
    for layer in ("0", "2"):
        name = f"{layer}.weight"
        hessian = torch.autograd.functional.hessian(lambda w, name=name: f(name, w), means[name])
        n = means[name].numel()
        expected = 0.2**2 * hessian.reshape(n, n).diagonal().reshape(means[name].shape)
        torch.testing.assert_close(exact[layer].kappa, expected)
        z = ((rough[layer].kappa - expected) / rough[layer].error.clamp_min(1e-12)).abs().max()
        assert float(z) < limit(n)
    # And against differences of the function itself.
    w, h = means["0.weight"], 1e-4
    step = torch.zeros_like(w)
    step[1, 2] = h
    second = (f("0.weight", w + step) - 2 * f("0.weight", w) + f("0.weight", w - step)) / h**2
    assert float(exact["0"].kappa[1, 2]) == pytest.approx(0.04 * float(second.detach()), rel=1e-4)


def test_half_of_it_is_what_drawing_a_weight_costs():
    """One weight of a small deviation is drawn, by Gauss-Hermite quadrature."""
    torch.manual_seed(2)
    rows = table()
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    fit, x, y = fit_of(net, rows, scale=0.05)
    f, means = log_likelihood(fit, x, y)
    kappa = fit.posterior.curvature(probes=None)["2"].kappa
    w = means["2.weight"]
    for index in ((0, 0), (1, 3)):
        step = torch.zeros_like(w)
        step[index] = 0.05 * math.sqrt(3.0)  # three points: ±√3 and 0, weights 1/6, 1/6, 2/3
        change = (f("2.weight", w + step) + f("2.weight", w - step) - 2 * f("2.weight", w)) / 6
        assert float(change.detach()) == pytest.approx(0.5 * float(kappa[index]), rel=0.02)


def test_a_bend_has_no_curvature_where_there_are_no_means():
    """ReLU units at zero: κ at the means says nothing, over the posterior it does."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 6, bias=False), nn.ReLU(), nn.Linear(6, 2))
    fit, *_ = fit_of(net, table(), guide=guides.ZeroMean, prior=priors.LogUniform(), layers="0")
    assert float(fit.posterior.curvature(probes=4)["0"].kappa.abs().max()) == 0.0
    over = fit.posterior.curvature(at="posterior", probes=150)["0"]
    assert float((over.kappa / over.error).abs().max()) > 5.0


def test_only_chosen_weights_are_drawn():
    torch.manual_seed(4)
    fit, x, _ = fit_of(nn.Linear(3, 2), table(), scale=0.5)
    kappa = torch.tensor([[3.0, -2.0, 0.1], [0.5, 0.0, 1.0]], dtype=F64)
    found = Curvatures({"": Curvature(kappa, torch.zeros_like(kappa), 1)})
    only = found.to_sample(threshold=1.0)
    assert only[""].tolist() == [[True, True, False], [False, False, True]]
    assert torch.equal(found.to_sample(share=0.5)[""], only[""])
    assert not found.to_sample(share=0.0)[""].any()
    assert found.to_sample(share=1.0)[""].all()
    drawn = draw_weights(fit.model, fit.guide, 50, only)["weight"]
    assert torch.equal(drawn.std(0) > 0, only[""])
    mean = fit.guide.posterior(".weight").mean.detach()
    assert torch.equal(drawn[0][~only[""]], mean[~only[""]])
    out = draw_outputs(fit.model, fit.guide, x, 3, only=only)
    assert out.shape == (3, len(x), 2)


def test_what_cannot_be():
    fit, x, _ = fit_of(nn.Linear(3, 2), table())
    kappa = Curvatures({"": Curvature(torch.zeros(2, 3), torch.zeros(2, 3), 1)})
    scaled, *_ = fit_of(nn.Linear(3, 2), table(), prior=priors.GroupNormalJeffreys())
    for refused in (
        kappa.to_sample,
        lambda: kappa.to_sample(threshold=1.0, share=0.5),
        lambda: kappa.to_sample(share=1.5),
        lambda: fit.posterior.curvature(probes=1),
        lambda: fit.posterior.curvature(at="posterior", probes=None),
        lambda: fit.posterior.curvature(at="mode"),
        lambda: scaled.posterior.curvature(at="posterior"),
        lambda: draw_weights(fit.model, fit.guide, 1, {"first": torch.ones(2, 3).bool()}),
        lambda: draw_outputs(fit.model, fit.guide, x, 2, noise="activations", only={}),
    ):
        with pytest.raises(PyroccamError):
            refused()
