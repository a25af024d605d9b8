"""Hypergradients against closed forms, differences and each other."""

import math

import pytest
import torch
from differences import differences, error
from pyroccam.inference.selection import hypergradient as hg
from torch.func import functional_call, grad, jacrev
from torch.fx.experimental.proxy_tensor import make_fx

F64 = torch.float64


def implicit(inner, outer, theta, h, key=None, **options):
    """With one key of both objectives."""
    return hg.implicit(inner, outer, theta, h, inner_key=key, key=key, **options)


def through(inner, outer, theta, h, steps, update, key=None, **options):
    """Unrolled, with one key of all steps and of Q."""
    keys = {"keys": [key] * steps, "key": key}
    return hg.unrolled(inner, outer, theta, h, **keys, update=update, **options)


# Ridge regression with a precision for each weight


def ridge(seed=0, rows=30, weights=5):
    """L, Q, h and the maximum of L as a function of h."""
    g = torch.Generator().manual_seed(seed)
    x, x_val = (torch.randn(rows, weights, generator=g, dtype=F64) for _ in range(2))
    w = torch.randn(weights, generator=g, dtype=F64)
    y, y_val = (a @ w + torch.randn(rows, generator=g, dtype=F64) for a in (x, x_val))
    h = {"log_precision": torch.randn(weights, generator=g, dtype=F64)}

    def inner(theta, h, key):
        fit = (y - x @ theta["w"]).square().sum()
        return -0.5 * (fit + (h["log_precision"].exp() * theta["w"] ** 2).sum())

    def outer(theta, h, key):
        return -0.5 * (y_val - x_val @ theta["w"]).square().sum()

    def best(h):
        a = x.T @ x + h["log_precision"].exp().diag()
        return {"w": torch.linalg.solve(a, x.T @ y)}, a

    return inner, outer, h, best


def test_implicit_is_the_gradient_of_the_validation_loss():
    inner, outer, h, best = ridge()
    theta, a = best(h)
    found, solution = implicit(inner, outer, theta, h, tol=1e-13)
    slope = grad(outer)(theta, h, None)["w"]
    precision = h["log_precision"].exp()
    expected = {"log_precision": -precision * theta["w"] * torch.linalg.solve(a, slope)}
    assert error(found, expected) < 1e-11
    assert error(found, differences(lambda h: outer(best(h)[0], h, None), h)) < 1e-9
    assert solution.iterations <= 5
    assert not solution.indefinite


def test_many_steps_are_the_implicit_gradient():
    inner, outer, h, best = ridge()
    theta, a = best(h)
    update = hg.gradient_ascent(1.0 / float(torch.linalg.eigvalsh(a)[-1]))
    zero = {"w": torch.zeros(5, dtype=F64)}
    found, end, _ = through(inner, outer, zero, h, 200, update)
    assert error(end, theta) < 1e-9
    assert error(found, implicit(inner, outer, theta, h, tol=1e-12)[0]) < 1e-8


def test_damping():
    inner, outer, h, best = ridge()
    theta, a = best(h)
    _, solution = implicit(inner, outer, theta, h, damping=3.0, tol=1e-12)
    v = torch.linalg.solve(a + 3.0 * torch.eye(5, dtype=F64), grad(outer)(theta, h, None)["w"])
    assert error(solution.x, {"w": v}) < 1e-11
    # Much of it is a gradient step (from a maximum, which the step does not leave).
    much, _ = implicit(inner, outer, theta, h, damping=1e9)
    assert error(much, through(inner, outer, theta, h, 1, hg.gradient_ascent(1e-9))[0]) < 1e-6


def test_envelope():
    """At a maximum over θ, the gradient of the maximum is the partial one."""
    inner, _, h, best = ridge()
    theta, _ = best(h)
    found, _ = implicit(inner, inner, theta, h, tol=1e-12)
    assert error(found, grad(inner, argnums=1)(theta, h, None)) < 1e-12
    assert error(found, differences(lambda h: inner(best(h)[0], h, None), h)) < 1e-9


# A network under an ELBO, its weights reparameterised


def network(dtype=F64):
    """L, Q (with another weight of the KL, and other data), θ and h."""
    g = torch.Generator().manual_seed(0)

    def normal(shape, g=g):
        return torch.randn(shape, generator=g, dtype=F64).to(dtype)

    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    net.requires_grad_(False)
    x, x_val = normal((20, 2)), normal((20, 2))
    y, y_val = (torch.sin(2 * a[:, :1]) + a[:, 1:] for a in (x, x_val))
    shapes = {n: p.shape for n, p in net.named_parameters()}
    theta = {f"{n}.mean": normal(s) for n, s in shapes.items()}
    theta |= {f"{n}.log_sd": torch.full(s, -1.0, dtype=dtype) for n, s in shapes.items()}
    h = {n: normal(()) for n in shapes}
    h["log_noise"] = torch.tensor(-0.5, dtype=dtype)

    def bound(theta, h, key, x, y, kl_weight):
        g = torch.Generator().manual_seed(key)
        kl, weights = 0.0, {}
        for n in shapes:
            mean, log_sd = theta[f"{n}.mean"], theta[f"{n}.log_sd"]
            weights[n] = mean + log_sd.exp() * normal(mean.shape, g)
            squares = h[n].exp() * (mean**2 + (2 * log_sd).exp())
            kl = kl + 0.5 * (squares - 1.0 - h[n] - 2 * log_sd).sum()
        gap = (y - functional_call(net, weights, (x,))) / h["log_noise"].exp()
        return (-0.5 * gap**2 - h["log_noise"]).sum() - kl_weight * kl

    def inner(theta, h, key):
        return bound(theta, h, key, x, y, 1.0)

    def outer(theta, h, key):
        return bound(theta, h, key, x_val, y_val, 0.3)

    return inner, outer, theta, h


@pytest.mark.parametrize("update", [hg.gradient_ascent(0.005), hg.adam(0.05)], ids=["sgd", "adam"])
@pytest.mark.parametrize("steps", [1, 10])
def test_unrolled_against_differences(update, steps):
    inner, outer, theta, h = network()
    # Adam's first step is a sign: begin with a state that it has.
    theta, state = hg.ascend(inner, theta, h, keys=[3, 3], update=update)
    options = {"update": update, "state": state, "keys": range(10, 10 + steps)}
    found, end, _ = hg.unrolled(inner, outer, theta, h, key=5, **options)

    def after(h):
        return outer(hg.ascend(inner, theta, h, **options)[0], h, 5)

    assert error(found, differences(after, h)) < 1e-8
    torch.testing.assert_close(end, hg.ascend(inner, theta, h, **options)[0])
    other = hg.unrolled(inner, outer, theta, h, key=6, **options)[0]
    assert error(other, found) > 1e-3


def test_one_step():
    inner, outer, theta, h = network()
    _, moved, _ = through(inner, outer, theta, h, 1, hg.gradient_ascent(0.005), 1)
    slope = grad(inner)(theta, h, 1)
    assert error(moved, {n: t + 0.005 * slope[n] for n, t in theta.items()}) < 1e-15


def test_implicit_of_a_network():
    """Against the whole Hessian, where damping makes a maximum of any point."""
    inner, outer, theta, h = network()
    names, sizes = [*theta], [t.numel() for t in theta.values()]

    def flat(values):
        return torch.cat([values[n].reshape(-1) for n in names])

    def unflat(vector):
        parts = vector.split(sizes)
        return {n: p.reshape(theta[n].shape) for n, p in zip(names, parts, strict=True)}

    hessian = jacrev(grad(lambda v: inner(unflat(v), h, 2)))(flat(theta))
    damping = float(torch.linalg.eigvalsh(hessian)[-1]) + 1.0
    system = damping * torch.eye(len(hessian), dtype=F64) - hessian
    v, direct = grad(outer, argnums=(0, 1))(theta, h, 2)
    slopes = jacrev(lambda h: flat(grad(inner)(theta, h, 2)))(h)
    v = torch.linalg.solve(system, flat(v))
    expected = {n: d + slopes[n] @ v for n, d in direct.items()}
    found, solution = implicit(inner, outer, theta, h, key=2, damping=damping, tol=1e-13)
    assert error({"v": flat(solution.x)}, {"v": v}) < 1e-11
    assert error(found, expected) < 1e-11


@pytest.mark.parametrize("steps", [1, 7])
def test_adam_is_that_of_torch(steps):
    inner, _, theta, h = network()
    options = {"keys": [1] * steps, "update": hg.adam(0.05)}
    end, state = hg.ascend(inner, theta, h, **options)
    end, _ = hg.ascend(inner, end, h, **options, state=state)
    free = {n: torch.nn.Parameter(t.clone()) for n, t in theta.items()}
    optimizer = torch.optim.Adam(free.values(), lr=0.05, maximize=True)
    for _ in range(2 * steps):
        optimizer.zero_grad()
        inner(free, h, 1).backward()
        optimizer.step()
    assert error(end, {n: p.detach() for n, p in free.items()}) < 1e-12


def quadratic(curvature, seed=0):
    """Second derivatives of L that do not depend on θ."""
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(4, 4, generator=g, dtype=F64) for _ in range(2))
    a = curvature * (a @ a.T / 4 + torch.eye(4, dtype=F64))
    theta = {"w": torch.randn(4, generator=g, dtype=F64)}
    h = {"b": torch.randn(4, generator=g, dtype=F64)}

    def inner(theta, h, key):
        return theta["w"] @ (b @ h["b"] - 0.5 * a @ theta["w"])

    def outer(theta, h, key):
        return (theta["w"].sin() + h["b"] ** 2).sum()

    return inner, outer, theta, h, a, b


def test_a_saddle_is_noticed():
    inner, outer, theta, h, *_ = quadratic(-1.0)
    found, solution = implicit(inner, outer, theta, h, damping=0.5)
    assert (solution.indefinite, solution.iterations) == (True, 0)
    assert error(found, {"b": 2 * h["b"]}) < 1e-15
    assert not implicit(inner, outer, theta, h, damping=10.0)[1].indefinite


# What holds of all of them


def all_of_them(inner, outer, theta, h, key=None):
    for update, steps in ((hg.adam(0.01), 2), (hg.gradient_ascent(0.01), 1)):
        yield through(inner, outer, theta, h, steps, update, key)[0]
    yield implicit(inner, outer, theta, h, key=key, damping=300.0)[0]


def test_single_precision():
    exact = all_of_them(*network(), 7)
    for found, expected in zip(all_of_them(*network(torch.float32), 7), exact, strict=True):
        assert {t.dtype for t in found.values()} == {torch.float32}
        assert error(found, expected) < 1e-4


def test_what_an_objective_does_not_use():
    """Its gradient is zero; and no result has a graph, whatever requires one."""

    def inner(theta, h, key):
        return -((theta["w"] - h["inner"]) ** 2).sum()

    def outer(theta, h, key):
        return -((theta["w"] - h["outer"]) ** 2).sum()

    theta = {"w": torch.nn.Parameter(torch.ones(2)), "idle": torch.nn.Parameter(torch.ones(()))}
    h = {n: torch.nn.Parameter(torch.zeros(())) for n in ("inner", "outer", "neither")}
    for found in all_of_them(inner, outer, theta, h):
        assert [*found] == ["inner", "outer", "neither"]
        assert not any(t.requires_grad for t in found.values())
        assert float(found["outer"]) != 0.0
        assert float(found["neither"]) == 0.0
    for found in all_of_them(inner, lambda theta, h, key: theta["w"].sum(), theta, h):
        assert float(found["outer"]) == 0.0
    for found in all_of_them(lambda t, h, key: -(t["w"] ** 2).sum(), outer, theta, h):
        assert float(found["inner"]) == 0.0
    for found in all_of_them(lambda t, h, key: h["inner"], lambda t, h, key: h["inner"], theta, h):
        assert [float(t) for t in found.values()] == [1.0, 0.0, 0.0]
    _, end, state = through(inner, outer, theta, h, 2, hg.adam(0.1))
    assert not any(t.requires_grad for t in end.values())
    assert float(end["idle"]) == 1.0
    assert {t.dtype for t in end.values()} == {torch.float32}
    assert not any(t.requires_grad for t in state[1].values())


@pytest.mark.parametrize("update", [hg.gradient_ascent(0.1), hg.adam(0.1)], ids=["sgd", "adam"])
def test_it_can_be_traced(update):
    def inner(theta, h, key):
        moved = torch.tanh(theta["w"] + h["log_sd"].exp() * key)
        return -((moved - h["b"] * theta["w"]).sum() ** 2)

    def outer(theta, h, key):
        return (h["b"] * theta["w"] + key).sin().sum()

    def call(theta, h, key):
        return through(inner, outer, theta, h, 2, update, key)[:2]

    def inputs():
        w, b, log_sd, noise = torch.randn(4, 3, dtype=F64)
        return {"w": w}, {"b": b, "log_sd": log_sd}, noise

    torch.manual_seed(0)
    graph, elsewhere = make_fx(call)(*inputs()), inputs()
    torch.testing.assert_close(graph(*elsewhere), call(*elsewhere), rtol=1e-10, atol=1e-10)


def test_what_is_not_finite_is_refused():
    def inner(theta, h, key):  # its first derivative exists at zero, the second does not
        return h["b"].sum() * theta["w"].abs().pow(1.5).sum()

    def outer(theta, h, key):
        return theta["w"].sum()

    def broken(theta, h, key):
        return (theta["w"] * math.inf).sum()

    theta, h = {"w": torch.zeros(2)}, {"b": -torch.ones(2)}
    for one in (outer, broken):
        with pytest.raises(hg.NonFiniteGradient):
            implicit(inner, one, theta, h)


# Linear systems of which only products are known


def system(size=12):
    g = torch.Generator().manual_seed(1)
    a = torch.randn(size, 2 * size, generator=g, dtype=F64)
    a = a @ a.T / size
    b = {"x": torch.randn(2, 3, generator=g, dtype=F64), "y": torch.randn(6, dtype=F64)}

    def product(p, a=a):
        found = a @ torch.cat([p["x"].flatten(), p["y"]])
        return {"x": found[:6].reshape(2, 3), "y": found[6:]}

    return a, b, product


def test_conjugate_gradients_need_as_many_iterations_as_unknowns():
    a, b, product = system()
    found = hg.conjugate_gradient(product, b, tol=0.0, max_iter=12)
    exact = torch.linalg.solve(a, torch.cat([b["x"].flatten(), b["y"]]))
    assert error(found.x, {"x": exact[:6].reshape(2, 3), "y": exact[6:]}) < 1e-10
    assert found.iterations == 12
    few = hg.conjugate_gradient(product, b, max_iter=3)
    assert few.iterations == 3
    assert error(few.x, found.x) > 1e-6
    zero = {n: torch.zeros_like(t) for n, t in b.items()}
    assert hg.conjugate_gradient(product, zero).iterations == 0


def test_conjugate_gradients_notice_an_indefinite_system():
    a, b, product = system()
    shifted = a - 0.5 * (torch.linalg.eigvalsh(a)[:2].sum()) * torch.eye(12, dtype=F64)
    assert int((torch.linalg.eigvalsh(shifted) < 0).sum()) == 1
    found = hg.conjugate_gradient(lambda p: product(p, shifted), b, tol=1e-12)
    assert found.indefinite
    assert 0 < found.iterations < 12
    assert hg.conjugate_gradient(lambda p: product(p, -a), b).iterations == 0
