"""Curvatures and the normals of them, against dense matrices and finite differences."""

import pytest
import torch
from evidences import fitted, hidden
from pyroccam import guides, models
from pyroccam.data import Dataset, PyroccamError
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
from random_weights import limit
from torch import nn

EYE = torch.eye(200, dtype=torch.float64)


def dense(precision, size):
    """The matrix of a precision, by solving for every direction."""
    return torch.linalg.inv(torch.stack([precision.solve(one) for one in EYE[:size, :size]], 1))


def positive(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T + 0.1 * EYE[:size, :size]


def kinds():
    outer, inner = positive(2), positive(3, seed=1)
    whole = torch.kron(outer, inner) + 0.7 * EYE[:6, :6]
    numbers = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    kronecker = Kronecker(outer, inner, 0.7)
    order = torch.tensor([5, 0, 7, 3, 1, 4, 2, 6])
    placed = torch.zeros(8, 8, dtype=torch.float64)
    placed[order[:2, None], order[:2]] = outer
    placed[order[2:, None], order[2:]] = whole
    return {
        "dense": (Dense(positive(4)), positive(4)),
        "diagonal": (Diagonal(numbers), numbers.diag()),
        "kronecker": (kronecker, whole),
        "blocks": (Blocks([(order[:2], Dense(outer)), (order[2:], kronecker)]), placed),
    }


@pytest.mark.parametrize("kind", ["dense", "diagonal", "kronecker", "blocks"])
def test_a_precision_is_its_matrix(kind):
    precision, matrix = kinds()[kind]
    size, covariance = len(matrix), torch.linalg.inv(matrix)
    assert precision.log_det == pytest.approx(float(torch.logdet(matrix)), abs=1e-10)
    torch.testing.assert_close(dense(precision, size), matrix)
    torch.testing.assert_close(precision.variance, covariance.diagonal())
    generator = torch.Generator().manual_seed(0)
    standard = torch.randn(40_000, size, generator=generator, dtype=torch.float64)
    drawn, density = precision.draw(standard)
    zero = torch.zeros(size, dtype=torch.float64)
    known = torch.distributions.MultivariateNormal(zero, covariance_matrix=covariance)
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
    with joint(hidden(), "laplace") as density:
        theta, step = density.centre(), 1e-4
        nudges = step * EYE[: density.size, : density.size]
        up, down = (density.gradient(theta + s * nudges)[1] for s in (1, -1))
        found = CURVATURES["hessian"](density, theta).matrix
        torch.testing.assert_close(found, -(up - down) / (2 * step), rtol=1e-5, atol=1e-4)


def softmax(n=12, hidden=(), prior=None):
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(n, 2, generator=generator), torch.arange(n) % 3
    rows = Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False, classes=3)
    layers = [nn.Linear(2, 3)] if not hidden else [nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)]
    torch.manual_seed(0)
    model = models.BayesianNetwork(nn.Sequential(*layers), rows, prior=prior or priors.Normal(0.8))
    return fitted(model, guides.MeanField(model), rows)


def test_the_linearised_network_by_its_jacobian():
    """Σ Jᵀ Λ J with Jacobians by finite differences and the curvature of a softmax by hand."""
    with joint(softmax(hidden=(4,)), "laplace") as density:
        theta, step, x = density.centre(), 1e-5, density.whole[0]
        nudges = step * EYE[: density.size, : density.size]
        gaps = [density.outputs(theta + e, x) - density.outputs(theta - e, x) for e in nudges]
        jacobian = torch.stack(gaps, -1).detach() / (2 * step)
        p = density.outputs(theta, x).softmax(-1).detach()
        weight = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        known = torch.einsum("bkn,bkl,blm->nm", jacobian, weight, jacobian)
        known += EYE[: density.size, : density.size] / 0.8**2
        found = CURVATURES["full"](density, theta).matrix
        torch.testing.assert_close(found, known, rtol=1e-6, atol=1e-6)
        assert float((found - CURVATURES["hessian"](density, theta).matrix).abs().max()) > 1e-2


@pytest.mark.parametrize("one_row", [True, False])
def test_kronecker_factors_where_they_are_exact(one_row):
    """Of one row every layer's block is a product, and of linear layers with one output."""
    fit = softmax(n=3, hidden=(4,))
    if not one_row:
        x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
        rows = Dataset.from_tensors(x, x[:, :1] - 0.4, x, x[:, :1] - 0.4, val_fraction=0.0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        model = models.BayesianNetwork(net, rows, prior=priors.Normal(0.8))
        fit = fitted(model, guides.MeanField(model), rows)
    with joint(fit, "laplace") as density:
        if one_row:
            density.whole, density.rows = tuple(part[:1] for part in density.whole), 1
        theta = density.centre()
        full = CURVATURES["full"](density, theta).matrix
        found = dense(CURVATURES["kronecker"](density, theta), density.size)
        start = 0
        for layer in density.model.layers.values():
            own = slice(start, start + sum(value.numel() for value in layer.start.values()))
            torch.testing.assert_close(found[own, own], full[own, own], rtol=1e-7, atol=1e-8)
            assert float(found[own, :start].abs().sum()) < 1e-8
            start = own.stop


def test_other_priors_and_layers():
    with joint(softmax(hidden=(4,), prior=priors.StudentT()), "laplace") as density:
        theta = density.centre()
        known = torch.autograd.functional.hessian(lambda t: -density(t[None])[0], theta)
        found = CURVATURES["hessian"](density, theta).matrix
        torch.testing.assert_close(found, known, rtol=1e-8, atol=1e-8)
        for word in ("kronecker", "diagonal"):
            with pytest.raises(PyroccamError):
                CURVATURES[word](density, theta)
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 2
    images = Dataset.from_tensors(x, y, x, y, val_fraction=0.0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    model = models.BayesianNetwork(net, images, prior=priors.Normal())
    with joint(fitted(model, guides.MeanField(model), images), "laplace") as density:
        with pytest.raises(PyroccamError):
            CURVATURES["kronecker"](density, density.centre())
        density.size = 6000
        with pytest.raises(PyroccamError):
            CURVATURES["full"](density, density.centre())
