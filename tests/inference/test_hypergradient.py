"""Hypergradients against closed forms, differences and each other."""

import math

import pytest
import torch
from differences import differences, error
from pyroccam.inference.selection import hypergradient as hg
from torch.func import functional_call, grad, jacrev
from torch.fx.experimental.proxy_tensor import make_fx

F64 = torch.float64


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
    found = hg.implicit(inner, outer, theta, h, tol=1e-13)
    slope = grad(outer)(theta, h, None)["w"]
    precision = h["log_precision"].exp()
    expected = {"log_precision": -precision * theta["w"] * torch.linalg.solve(a, slope)}
    assert error(found.gradient, expected) < 1e-11
    assert error(found.gradient, differences(lambda h: outer(best(h)[0], h, None), h)) < 1e-9
    assert found.slope < 1e-12
    assert found.solution.residual < 1e-12
    assert found.solution.iterations <= 5
    assert not found.solution.indefinite
    # It starts where it ended, and finds nothing to do.
    again = hg.implicit(inner, outer, theta, h, start=found.solution.x)
    assert again.solution.iterations == 0
    assert error(again.gradient, expected) < 1e-11


def test_many_steps_are_the_implicit_gradient():
    inner, outer, h, best = ridge()
    theta, a = best(h)
    lr = 1.0 / float(torch.linalg.eigvalsh(a)[-1])
    zero = {"w": torch.zeros(5, dtype=F64)}
    through, end, _ = hg.unrolled(inner, outer, zero, h, steps=200, update=hg.gradient_ascent(lr))
    assert error(end, theta) < 1e-9
    assert error(through, hg.implicit(inner, outer, theta, h, tol=1e-12).gradient) < 1e-8


def test_damping():
    inner, outer, h, best = ridge()
    theta, a = best(h)
    found = hg.implicit(inner, outer, theta, h, damping=3.0, tol=1e-12)
    v = torch.linalg.solve(a + 3.0 * torch.eye(5, dtype=F64), grad(outer)(theta, h, None)["w"])
    assert error(found.solution.x, {"w": v}) < 1e-11
    # Much of it is a gradient step (from a maximum, which the step does not leave).
    much = hg.implicit(inner, outer, theta, h, damping=1e9)
    greedy, _ = hg.one_step(inner, outer, theta, h, lr=1e-9)
    assert error(much.gradient, greedy) < 1e-6


def test_envelope():
    """At a maximum over θ, the gradient of the maximum is the partial one."""
    inner, _, h, best = ridge()
    theta, _ = best(h)
    found = hg.implicit(inner, inner, theta, h, tol=1e-12).gradient
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
    theta, state = hg.ascend(inner, theta, h, steps=2, update=update, key=3)
    keys = range(10, 10 + steps)
    options = {"steps": steps, "update": update, "state": state, "keys": keys}
    found, end, _ = hg.unrolled(inner, outer, theta, h, key=5, **options)

    def through(h):
        return outer(hg.ascend(inner, theta, h, **options)[0], h, 5)

    assert error(found, differences(through, h)) < 1e-8
    torch.testing.assert_close(end, hg.ascend(inner, theta, h, **options)[0])
    other = hg.unrolled(inner, outer, theta, h, key=6, **options)[0]
    assert error(other, found) > 1e-3


def test_one_step():
    inner, outer, theta, h = network()
    found, moved = hg.one_step(inner, outer, theta, h, lr=0.005, key=1)
    options = {"steps": 1, "key": 1}
    through, end, _ = hg.unrolled(
        inner, outer, theta, h, update=hg.gradient_ascent(0.005), **options
    )
    line = hg.drmad(inner, outer, theta, moved, h, lr=0.005, **options)
    assert error(moved, end) < 1e-15
    assert error(found, through) < 1e-13
    assert error(found, line) < 1e-13

    def after(h):
        slope = grad(inner)(theta, h, 1)
        return outer({n: t + 0.005 * slope[n] for n, t in theta.items()}, h, 1)

    assert error(found, differences(after, h)) < 1e-8


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
    found = hg.implicit(inner, outer, theta, h, key=2, damping=damping, tol=1e-13)
    assert error({"v": flat(found.solution.x)}, {"v": v}) < 1e-11
    assert error(found.gradient, expected) < 1e-11


@pytest.mark.parametrize("steps", [1, 7])
def test_adam_is_that_of_torch(steps):
    inner, _, theta, h = network()
    end, state = hg.ascend(inner, theta, h, steps=steps, update=hg.adam(0.05), key=1)
    end, _ = hg.ascend(inner, end, h, steps=steps, update=hg.adam(0.05), state=state, key=1)
    free = {n: torch.nn.Parameter(t.clone()) for n, t in theta.items()}
    optimizer = torch.optim.Adam(free.values(), lr=0.05, maximize=True)
    for _ in range(2 * steps):
        optimizer.zero_grad()
        inner(free, h, 1).backward()
        optimizer.step()
    assert error(end, {n: p.detach() for n, p in free.items()}) < 1e-12


# The straight line


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


def both(inner, outer, theta, h, steps, lr, **options):
    """The hypergradient on the line and through the path."""
    update = hg.gradient_ascent(lr)
    through, end, _ = hg.unrolled(inner, outer, theta, h, steps=steps, update=update)
    return hg.drmad(inner, outer, theta, end, h, steps=steps, lr=lr, **options), through, end


def test_drmad_is_exact_where_second_derivatives_are_constant():
    line, through, _ = both(*quadratic(1.0)[:4], steps=25, lr=0.1)
    assert error(line, through) < 1e-14


def test_drmad_improves_with_a_straighter_path():
    """The path of a ridge regression becomes a line when all of it is short."""
    inner, outer, h, _ = ridge()
    zero = {"w": torch.zeros(5, dtype=F64)}
    gaps = [error(*both(inner, outer, zero, h, 20, lr)[:2]) for lr in (1e-3, 2.5e-4, 6.25e-5)]
    assert gaps[0] < 0.2
    assert gaps[1] < gaps[0] / 3
    assert gaps[2] < gaps[1] / 3


@pytest.mark.parametrize("every", [1, 3, 7, 100])
def test_all_steps_count(every):
    """Without curvature each step adds the same, and those that are skipped add nothing."""
    inner, outer, theta, h, _, b = quadratic(0.0)
    line, through, end = both(inner, outer, theta, h, 20, 0.1, every=every)
    assert error(line, through) < 1e-13
    late = hg.drmad(inner, outer, theta, end, h, steps=20, lr=0.1, every=every, skip=0.25)
    v, direct = grad(outer, argnums=(0, 1))(end, h, None)
    assert error(late, {"b": direct["b"] + 15 * 0.1 * b.T @ v["w"]}) < 1e-13


def test_every():
    """Powers of the constant matrix to second order, exact for pairs of steps."""
    inner, outer, theta, h, a, b = quadratic(1.0)
    line, _, end = both(inner, outer, theta, h, 10, 0.01, every=4)
    v, g = (part[n] for part, n in zip(grad(outer, argnums=(0, 1))(end, h, 0), "wb", strict=True))
    for n in (4, 4, 2):
        g = g + 0.01 * b.T @ (n * v - 0.01 * math.comb(n, 2) * a @ v)
        v = v - 0.01 * n * a @ v + 0.01**2 * math.comb(n, 2) * a @ a @ v
    assert error(line, {"b": g}) < 1e-13
    gaps = [error(*both(inner, outer, theta, h, 48, 0.002, every=k)[:2]) for k in (2, 3, 4, 6)]
    assert gaps[0] < 1e-13
    # In T / k products, what each lacks is k (k - 1) (k - 2) / 6 times something.
    assert gaps[2] / gaps[1] == pytest.approx(3.0, rel=0.05)
    assert gaps[3] / gaps[1] == pytest.approx(10.0, rel=0.05)


def test_skipped_steps_are_forgotten_first():
    inner, outer, theta, h, *_ = quadratic(1.0)
    gaps = [error(*both(inner, outer, theta, h, 40, 0.1, skip=s)[:2]) for s in (0.05, 0.25, 0.75)]
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[0] < 0.02


def test_a_saddle_is_noticed():
    inner, outer, theta, h, *_ = quadratic(-1.0)
    with pytest.warns(hg.IndefiniteCurvature, match=r"0 iterations.*damping above 0\.5") as seen:
        found = hg.implicit(inner, outer, theta, h, damping=0.5)
    assert seen[0].filename == __file__
    assert found.solution.indefinite
    assert error(found.gradient, {"b": 2 * h["b"]}) < 1e-15
    assert not hg.implicit(inner, outer, theta, h, damping=10.0).solution.indefinite


# What holds of all of them


def all_of_them(inner, outer, theta, h, key=None):
    first, moved = hg.one_step(inner, outer, theta, h, lr=0.01, key=key)
    yield first
    for update in (hg.gradient_ascent(0.01), hg.adam(0.01)):
        yield hg.unrolled(inner, outer, theta, h, steps=2, update=update, key=key)[0]
    yield hg.drmad(inner, outer, theta, moved, h, steps=2, lr=0.01, key=key)
    yield hg.implicit(inner, outer, theta, h, key=key, damping=300.0).gradient


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
    _, end, state = hg.unrolled(inner, outer, theta, h, steps=2, update=hg.adam(0.1))
    assert not any(t.requires_grad for t in end.values())
    assert float(end["idle"]) == 1.0
    assert not any(t.requires_grad for t in state[1].values())


@pytest.mark.parametrize("which", ["one_step", "sgd", "adam", "drmad"])
def test_it_can_be_traced(which):
    def inner(theta, h, key):
        return -(
            (torch.tanh(theta["w"] + h["log_sd"].exp() * key) - h["b"] * theta["w"]).sum() ** 2
        )

    def outer(theta, h, key):
        return (h["b"] * theta["w"] + key).sin().sum()

    def call(theta, h, key):
        common = {"key": key, "check": False}
        if which == "one_step":
            return hg.one_step(inner, outer, theta, h, lr=0.1, **common)
        if which == "drmad":
            start = {n: t + 0.1 for n, t in theta.items()}
            return hg.drmad(inner, outer, start, theta, h, steps=2, lr=0.1, **common)
        update = hg.adam(0.1) if which == "adam" else hg.gradient_ascent(0.1)
        return hg.unrolled(inner, outer, theta, h, steps=2, update=update, **common)[:2]

    def inputs():
        w, b, log_sd, noise = torch.randn(4, 3, dtype=F64)
        return {"w": w}, {"b": b, "log_sd": log_sd}, noise

    torch.manual_seed(0)
    graph, elsewhere = make_fx(call)(*inputs()), inputs()
    torch.testing.assert_close(graph(*elsewhere), call(*elsewhere), rtol=1e-10, atol=1e-10)


def test_out_of_range():
    inner, outer, theta, h, *_ = quadratic(1.0)
    sgd = hg.gradient_ascent(0.1)
    for f in (hg.gradient_ascent, hg.adam, lambda lr: hg.one_step(inner, outer, theta, h, lr=lr)):
        with pytest.raises(ValueError, match="lr must be positive; got 0"):
            f(0.0)
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        hg.unrolled(inner, outer, theta, h, steps=0, update=sgd)
    with pytest.raises(ValueError, match="keys must be one for each of 3 steps; got 2"):
        hg.ascend(inner, theta, h, steps=3, update=sgd, keys=[1, 2])
    for option in ({"skip": 1.0}, {"every": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be"):
            hg.drmad(inner, outer, theta, theta, h, steps=3, lr=0.1, **option)
    with pytest.raises(ValueError, match=r"start must be of the shapes of theta, \{'w': \(4,\)\}"):
        hg.drmad(inner, outer, {"w": torch.zeros(3)}, theta, h, steps=3, lr=0.1)
    for option in ({"damping": -1.0}, {"tol": -1.0}, {"max_iter": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be at least"):
            hg.implicit(inner, outer, theta, h, **option)


def test_what_is_not_finite_is_named():
    def inner(theta, h, key):  # leaves the domain of the root when the step is too long
        return h["b"].sum() * theta["w"].sqrt().sum()

    def outer(theta, h, key):
        return theta["w"].sum()

    def broken(theta, h, key):
        return (theta["w"] * math.inf).sum()

    theta, h = {"w": torch.tensor([1.0, 0.5])}, {"b": -torch.ones(2)}
    sgd = hg.gradient_ascent(0.6)
    for f in (
        lambda: hg.ascend(inner, theta, h, steps=4, update=sgd),
        lambda: hg.unrolled(inner, outer, theta, h, steps=4, update=sgd),
    ):
        with pytest.raises(hg.NonFiniteGradient, match=r"inner gradient of step 2 of 4.*'w'.*lr"):
            f()
    zero = {"w": torch.zeros(2)}
    for f in (
        lambda: hg.one_step(inner, outer, zero, h, lr=0.1),
        lambda: hg.implicit(inner, outer, zero, h),
    ):
        with pytest.raises(hg.NonFiniteGradient, match="The inner gradient.*'w'.*smaller lr"):
            f()
    for f in (
        lambda: hg.one_step(inner, broken, theta, h, lr=0.1),
        lambda: hg.implicit(inner, broken, theta, h),
        lambda: hg.drmad(inner, broken, theta, theta, h, steps=2, lr=0.1),
        lambda: hg.unrolled(inner, broken, theta, h, steps=1, update=hg.gradient_ascent(0.1)),
    ):
        with pytest.raises(hg.NonFiniteGradient, match="The outer gradient.*'w'.*outer objective"):
            f()

    def bent(theta, h, key):  # its first derivative exists at zero, the second does not
        return h["b"].sum() * theta["w"].abs().pow(1.5).sum()

    with pytest.raises(hg.NonFiniteGradient, match="Hessian product of iteration 1.*damping"):
        hg.implicit(bent, outer, zero, h)
    with pytest.raises(hg.NonFiniteGradient, match="Hessian product.*smaller lr"):
        hg.drmad(bent, outer, zero, zero, h, steps=2, lr=0.1)
    with pytest.raises(hg.NonFiniteGradient, match="right side"):
        hg.conjugate_gradient(lambda p: p, {"w": torch.tensor([math.nan])})
