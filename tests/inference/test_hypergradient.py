"""Hypergradients against closed forms, differences and each other."""

import math

import pytest
import torch
from differences import differences, error, gradient_ascent
from pyroccam.inference.selection import hypergradient as hg
from torch.func import grad

F64 = torch.float64


def implicit(inner, outer, theta, h, key=None, **options):
    """With one key of both objectives."""
    return hg.implicit(inner, outer, theta, h, inner_key=key, key=key, **options)


def through(inner, outer, theta, h, steps, update, key=None):
    """Unrolled, with one key of all steps and of Q."""
    return hg.unrolled(inner, outer, theta, h, keys=[key] * steps, key=key, update=update)


def ridge():
    """Ridge regression with a precision for each weight: L, Q, h and the maximum of L as a function
    of h."""
    g = torch.Generator().manual_seed(0)
    x, x_val = (torch.randn(30, 5, generator=g, dtype=F64) for _ in range(2))
    w = torch.randn(5, generator=g, dtype=F64)
    y, y_val = (a @ w + torch.randn(30, generator=g, dtype=F64) for a in (x, x_val))
    h = {"log_precision": torch.randn(5, generator=g, dtype=F64)}

    def inner(theta, h, key):
        fit = (y - x @ theta["w"]).square().sum()
        return -0.5 * (fit + (h["log_precision"].exp() * theta["w"] ** 2).sum())

    def outer(theta, h, key):
        return -0.5 * (y_val - x_val @ theta["w"]).square().sum()

    def best(h):
        a = x.T @ x + h["log_precision"].exp().diag()
        return {"w": torch.linalg.solve(a, x.T @ y)}, a

    return inner, outer, h, best


def test_the_gradient_of_the_validation_loss():
    """In closed form, by differences, and through many steps to the maximum."""
    inner, outer, h, best = ridge()
    theta, a = best(h)
    found, solution = implicit(inner, outer, theta, h, tol=1e-13)
    slope = grad(outer)(theta, h, None)["w"]
    expected = -h["log_precision"].exp() * theta["w"] * torch.linalg.solve(a, slope)
    assert error(found, {"log_precision": expected}) < 1e-11
    assert error(found, differences(lambda h: outer(best(h)[0], h, None), h)) < 1e-9
    assert solution.iterations <= 5
    assert not solution.indefinite
    update = gradient_ascent(1.0 / float(torch.linalg.eigvalsh(a)[-1]))
    zero = {"w": torch.zeros(5, dtype=F64)}
    unrolled, end, _ = through(inner, outer, zero, h, 200, update)
    assert error(end, theta) < 1e-9
    assert error(unrolled, found) < 1e-8
    # Envelope: at a maximum over θ, the gradient of the maximum is the partial one.
    found, _ = implicit(inner, inner, theta, h, tol=1e-12)
    assert error(found, grad(inner, argnums=1)(theta, h, None)) < 1e-12


def test_damping():
    inner, outer, h, best = ridge()
    theta, a = best(h)
    _, solution = implicit(inner, outer, theta, h, damping=3.0, tol=1e-12)
    v = torch.linalg.solve(a + 3.0 * torch.eye(5, dtype=F64), grad(outer)(theta, h, None)["w"])
    assert error(solution.x, {"w": v}) < 1e-11


def test_adam_is_that_of_torch():
    inner, _, h, best = ridge()
    theta = {"w": 0.5 * best(h)[0]["w"], "idle": torch.ones(2, dtype=F64)}
    options = {"keys": [None] * 4, "update": hg.adam(0.05)}
    end, state = hg.ascend(inner, theta, h, **options)
    end, _ = hg.ascend(inner, end, h, **options, state=state)
    free = {n: torch.nn.Parameter(t.clone()) for n, t in theta.items()}
    optimizer = torch.optim.Adam(free.values(), lr=0.05, maximize=True)
    for _ in range(8):
        optimizer.zero_grad()
        (inner(free, h, None) + 0.0 * free["idle"].sum()).backward()
        optimizer.step()
    assert error(end, {n: p.detach() for n, p in free.items()}) < 1e-12


def test_what_is_not_finite_is_refused():
    def inner(theta, h, key):  # its first derivative exists at zero, the second does not
        return h["b"].sum() * theta["w"].abs().pow(1.5).sum()

    theta, h = {"w": torch.zeros(2)}, {"b": -torch.ones(2)}
    for factor in (1.0, math.inf):
        with pytest.raises(hg.NonFiniteGradient):
            implicit(inner, lambda t, h, key, by=factor: (by * t["w"]).sum(), theta, h)


def system(size=12):
    """A linear system of which only products are known."""
    g = torch.Generator().manual_seed(1)
    a = torch.randn(size, 2 * size, generator=g, dtype=F64)
    a = a @ a.T / size
    b = {"x": torch.randn(2, 3, generator=g, dtype=F64), "y": torch.randn(6, dtype=F64)}

    def product(p, a=a):
        found = a @ torch.cat([p["x"].flatten(), p["y"]])
        return {"x": found[:6].reshape(2, 3), "y": found[6:]}

    return a, b, product


def test_conjugate_gradients_notice_an_indefinite_system():
    a, b, product = system()
    shifted = a - 0.5 * (torch.linalg.eigvalsh(a)[:2].sum()) * torch.eye(12, dtype=F64)
    assert int((torch.linalg.eigvalsh(shifted) < 0).sum()) == 1
    found = hg.conjugate_gradient(lambda p: product(p, shifted), b, tol=1e-12)
    assert found.indefinite
    assert 0 < found.iterations < 12
    saddle = hg.conjugate_gradient(lambda p: product(p, -a), b)
    assert (saddle.indefinite, saddle.iterations) == (True, 0)
