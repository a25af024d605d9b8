"""Curvatures and the normals of them, against dense matrices and finite differences."""

import pyro
import pytest
import torch
from evidences import fitted, hidden, logistic
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.marginal_likelihood.curvature import CURVATURES
from pyroccam.inference.marginal_likelihood.joint import joint
from pyroccam.inference.marginal_likelihood.normals import (
    Blocks,
    Dense,
    Diagonal,
    Kronecker,
    NotPositive,
)
from pyroccam.models import priors
from random_weights import limit, table
from torch import nn


def dense(precision, size):
    """The matrix of a precision, by solving for every direction."""
    columns = [precision.solve(one) for one in torch.eye(size, dtype=torch.float64)]
    return torch.linalg.inv(torch.stack(columns, 1))


def positive(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def kinds():
    outer, inner = positive(2), positive(3, seed=1)
    whole = torch.kron(outer, inner) + 0.7 * torch.eye(6, dtype=torch.float64)
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    blocks = Blocks([(order[:2], Dense(outer)), (order[2:], Dense(positive(4)))])
    placed = torch.zeros(6, 6, dtype=torch.float64)
    placed[order[:2, None], order[:2]] = outer
    placed[order[2:, None], order[2:]] = positive(4)
    numbers = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    return {
        "dense": (Dense(positive(4)), positive(4)),
        "diagonal": (Diagonal(numbers), numbers.diag()),
        "kronecker": (Kronecker(outer, inner, 0.7), whole),
        "blocks": (blocks, placed),
    }


@pytest.mark.parametrize("kind", ["dense", "diagonal", "kronecker", "blocks"])
def test_a_precision_is_its_matrix(kind):
    precision, matrix = kinds()[kind]
    size = len(matrix)
    assert precision.log_det == pytest.approx(float(torch.logdet(matrix)), abs=1e-10)
    torch.testing.assert_close(dense(precision, size), matrix)
    generator = torch.Generator().manual_seed(0)
    standard = torch.randn(40_000, size, generator=generator, dtype=torch.float64)
    drawn, density = precision.draw(standard)
    covariance = torch.linalg.inv(matrix)
    known = torch.distributions.MultivariateNormal(
        torch.zeros(size, dtype=torch.float64), covariance_matrix=covariance
    )
    torch.testing.assert_close(density, known.log_prob(drawn), rtol=1e-8, atol=1e-8)
    deviation = covariance.diagonal()
    error = ((deviation[:, None] * deviation + covariance**2) / len(drawn)).sqrt()
    z = (drawn.T @ drawn / len(drawn) - covariance) / error
    assert float(z.abs().max()) < limit(size**2)


def test_what_is_no_precision():
    with pytest.raises(NotPositive):
        Dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).solve(torch.ones(2))
    with pytest.raises(NotPositive):
        Diagonal(torch.tensor([1.0, 0.0]))


def test_the_hessian_by_finite_differences():
    fit = hidden()
    with joint(fit, "laplace") as density:
        theta = density.centre()
        size, step = density.size, 1e-4
        nudges = step * torch.eye(size, dtype=torch.float64)
        up, down = (density.gradient(theta + s * nudges)[1] for s in (1, -1))
        found = CURVATURES["hessian"](density, theta).matrix
        torch.testing.assert_close(found, -(up - down) / (2 * step), rtol=1e-5, atol=1e-4)


def test_outputs_that_are_linear_have_one_curvature():
    """The generalised Gauss-Newton matrix is then the Hessian: of classes, by their probabilities,
    and of a softmax of three."""
    for fit in (logistic()[0], softmax()):
        with joint(fit, "laplace") as density:
            theta = density.centre() + 0.3
            full, own = (CURVATURES[k](density, theta).matrix for k in ("full", "hessian"))
            torch.testing.assert_close(full, own, rtol=1e-8, atol=1e-8)
            diagonal = CURVATURES["diagonal"](density, theta).precision
            torch.testing.assert_close(diagonal, full.diagonal(), rtol=1e-8, atol=1e-8)


def softmax(n=12, hidden=()):
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(n, 2, generator=generator), torch.arange(n) % 3
    rows = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False, classes=3)
    layers = [nn.Linear(2, 3)] if not hidden else [nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)]
    torch.manual_seed(0)
    model = models.BayesianNetwork(nn.Sequential(*layers), rows, prior=priors.Normal(0.8))
    return fitted(model, guides.MeanField(model), rows)


def test_the_linearised_network_by_its_jacobian():
    """Σ Jᵀ Λ J with Jacobians by finite differences and the curvature of a softmax by hand."""
    fit = softmax(hidden=(4,))
    with joint(fit, "laplace") as density:
        theta, step = density.centre(), 1e-5
        nudges = step * torch.eye(density.size, dtype=torch.float64)
        jacobian = torch.stack(
            [
                (
                    density.outputs(theta + one, density.whole[0])
                    - density.outputs(theta - one, density.whole[0])
                )
                / (2 * step)
                for one in nudges
            ],
            -1,
        ).detach()
        p = density.outputs(theta, density.whole[0]).softmax(-1).detach()
        weight = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        known = torch.einsum("bkn,bkl,blm->nm", jacobian, weight, jacobian)
        known += torch.eye(density.size, dtype=torch.float64) / 0.8**2
        found = CURVATURES["full"](density, theta).matrix
        torch.testing.assert_close(found, known, rtol=1e-6, atol=1e-6)
        assert float((found - CURVATURES["hessian"](density, theta).matrix).abs().max()) > 1e-2


@pytest.mark.parametrize("case", ["one row", "deep and linear"])
def test_kronecker_factors_where_they_are_exact(case):
    """Of one row every layer's block is a product, and of linear layers with one output and one
    noise for all rows."""
    if case == "one row":
        fit = softmax(n=3, hidden=(4,))
    else:
        x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
        y = x[:, :1] - 0.4
        rows = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        model = models.BayesianNetwork(net, rows, prior=priors.Normal(0.8))
        fit = fitted(model, guides.MeanField(model), rows)
    with joint(fit, "laplace") as density:
        if case == "one row":
            density.whole, density.rows = tuple(part[:1] for part in density.whole), 1
        theta = density.centre()
        full = CURVATURES["full"](density, theta).matrix
        found = dense(CURVATURES["kronecker"](density, theta), density.size)
        start = 0
        for layer in density.model.layers.values():
            size = sum(value.numel() for value in layer.start.values())
            own = slice(start, start + size)
            torch.testing.assert_close(found[own, own], full[own, own], rtol=1e-7, atol=1e-8)
            assert float(found[own, : own.start].abs().sum()) < 1e-8
            start += size


def test_other_priors_and_layers():
    rows = table()
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    model = models.BayesianNetwork(net, rows, prior=priors.StudentT())
    fit = inference.fit(model, guides.MeanField(model), rows, steps=1, progress=False)
    with joint(fit, "laplace") as density:
        theta = density.centre()
        own = torch.autograd.functional.hessian(lambda t: -density.log_prior(t[None])[0], theta)
        likelihood = torch.autograd.functional.hessian(
            lambda t: -density.log_likelihood(t[None])[0], theta
        )
        found = CURVATURES["hessian"](density, theta).matrix
        torch.testing.assert_close(found, own + likelihood, rtol=1e-8, atol=1e-8)
        for word in ("kronecker", "diagonal"):
            with pytest.raises(PyroccamError):
                CURVATURES[word](density, theta)
    images = data.load("digits")
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    with pyro.validation_enabled(False):
        model = models.BayesianNetwork(net, images, prior=priors.Normal())
    fit = inference.fit(
        model, guides.MeanField(model), images, epochs=1, batch_size=2000, progress=False
    )
    with joint(fit, "laplace") as density:
        with pytest.raises(PyroccamError):
            CURVATURES["kronecker"](density, density.centre())
        density.size = 6000
        with pytest.raises(PyroccamError):
            CURVATURES["full"](density, density.centre())
