"""MacKay's updates of the prior, beside the prior of the greatest evidence."""

import math

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.marginal_likelihood import Laplace
from pyroccam.inference.marginal_likelihood.normals import Blocks, Dense, Diagonal, Kronecker
from scipy.optimize import minimize
from torch import nn

NOISE = 0.5


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(25, 6, generator=generator)
    w = 0.4 + 0.3 * torch.randn(6, 1, generator=generator)
    y = x @ w + 0.2 + NOISE * torch.randn(25, 1, generator=generator)
    return data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)


def fit_of(rows, prior, net=None):
    torch.manual_seed(0)
    likelihood = models.Regression(1, scale=NOISE, floor=0.0).requires_grad_(False)
    net = nn.Linear(6, 1) if net is None else net
    model = models.BayesianNetwork(net, rows, prior=prior, likelihood=likelihood)
    settings = {"steps": 20, "lr": 0.02, "weight_decay": 0.0, "progress": False}
    return inference.fit(model, guides.MeanField(model), rows, **settings)


def log_evidence(rows, mean, scale):
    """Of a line: ``log N(y; m X 1, s² X Xᵀ + σ² I)``, weights and bias alike."""
    x, y = (part.double() for part in rows.split("train"))
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    cover = scale**2 * x @ x.T + NOISE**2 * torch.eye(len(x), dtype=x.dtype)
    return float(torch.distributions.MultivariateNormal(mean * x.sum(1), cover).log_prob(y[:, 0]))


@pytest.mark.parametrize("curvature", ["full", "kronecker"])
@pytest.mark.parametrize("learn", ["scale", "layer"])
def test_the_prior_of_the_greatest_evidence(rows, learn, curvature):
    fit = fit_of(rows, models.priors.Normal(3.0, learn=learn))
    before = {name: value.clone() for name, value in fit.model.state_dict().items()}
    found = inference.evidence(fit, by=Laplace(curvature=curvature, updates=60))
    for name, value in fit.model.state_dict().items():
        assert torch.equal(value, before[name])  # the fit keeps its own

    def loss(at):
        return -log_evidence(rows, at[1] if learn == "layer" else 0.0, math.exp(at[0]))

    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
    assert found.value == pytest.approx(-best.fun, abs=1e-5)
    assert found.details["prior scale of "] == pytest.approx(math.exp(best.x[0]), rel=1e-3)
    assert found.value > inference.evidence(fit, by=Laplace(curvature=curvature)).value + 1.0


def test_each_layer_has_a_scale_of_its_own(rows):
    net = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1))
    fit = fit_of(rows, models.priors.Normal(1.0, learn="scale"), net)
    before, after = (
        inference.evidence(fit, by=Laplace(curvature="kronecker", updates=k)).value for k in (0, 3)
    )
    assert after > before + 1.0
    found = inference.evidence(fit, by=Laplace(updates=2))
    assert {"prior scale of 0", "prior scale of 2"} <= set(found.details)


def test_a_prior_that_learns_nothing_is_refused(rows):
    fit = fit_of(rows, models.priors.Normal(1.0))
    with pytest.raises(PyroccamError):
        inference.evidence(fit, by=Laplace(updates=3))


def test_variances_are_the_diagonal_of_the_inverse():
    generator = torch.Generator().manual_seed(1)

    def positive(size):
        root = torch.randn(size, size + 2, generator=generator, dtype=torch.float64)
        return root @ root.T

    outer, inner = positive(2), positive(3)
    kronecker = Kronecker(outer, inner, 0.3)
    whole = torch.kron(outer, inner) + 0.3 * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(kronecker.variance, whole.inverse().diagonal())
    dense, flat = positive(4), torch.tensor([0.5, 4.0], dtype=torch.float64)
    torch.testing.assert_close(Dense(dense).variance, dense.inverse().diagonal())
    torch.testing.assert_close(Diagonal(flat).variance, 1 / flat)
    places = torch.tensor([5, 0, 2, 7, 1, 3]), torch.tensor([6, 4])
    both = Blocks([(places[0], kronecker), (places[1], Diagonal(flat))])
    matrix = torch.zeros(8, 8, dtype=torch.float64)
    matrix[places[0][:, None], places[0]] = whole
    matrix[places[1][:, None], places[1]] = flat.diag()
    torch.testing.assert_close(both.variance, matrix.inverse().diagonal())
