"""Hypergradients of L and Q with everything that they can have, by differences."""

import functools

import pyro
import pytest
import torch
from differences import along, differences, directions, dot, error
from pyroccam.inference.selection import Against, InverseGamma, Level
from pyroccam.inference.selection import hypergradient as hg
from pyroccam.models import priors
from selecting import alternatives, objectives, rows, scattered
from torch.fx.experimental.proxy_tensor import make_fx


@functools.cache
def two_levels(particles=1):
    """L and Q with everything that they can have, and a key of each, of other rows."""
    torch.manual_seed(0)
    outer = Level(
        0.8,
        0.4,
        [
            Against(priors.GumbelSoftmax(0.7, [3.0, 1.0, 0.5]), -0.5),  # in closed form
            Against(priors.GumbelSoftmax(0.3, [1.0, 2.0, 1.0]), 0.3),
            Against(priors.Dirichlet(2.0), 0.2),
        ],
        InverseGamma(1.0, 0.5),
    )
    made = objectives(scattered(alternatives()), Level(prior=0.7), outer, particles)
    return made, made.key(*rows()), made.key(*rows(seed=1))


def test_the_pair_has_structure_in_closed_form_and_not():
    made, key, _ = two_levels(particles=2)
    (site,) = made.model.structure.values()
    assert made.guide.edge("x-y.structure").temperature is site.temperature  # tied
    assert [len(noise) for noise in key.structure] == [0, 1, 1]
    assert key.noise[0].shape == (2, 3)


def test_the_outer_objective_itself():
    """Every part of Q depends on h; the derivatives alone, without an inner level."""
    made, _, key = two_levels()
    theta, h = made.theta, made.h
    found = torch.func.grad(made.outer, argnums=1)(theta, h, key)
    assert error(found, differences(lambda h: made.outer(theta, h, key), h)) < 1e-9
    assert all(float(t.abs().min()) > 1e-6 for t in found.values())


@pytest.mark.parametrize("steps", [1, 3, 10])
@pytest.mark.parametrize("update", [hg.gradient_ascent(0.02), hg.adam(0.05)], ids=["sgd", "adam"])
def test_unrolled(steps, update):
    made, key, key_q = two_levels(particles=2 if steps == 1 else 1)
    theta, h = made.theta, made.h
    theta, state = hg.ascend(made.inner, theta, h, keys=[key, key], update=update)
    keys = [made.key(*rows(seed=s)) for s in range(steps)]
    options = {"update": update, "state": state, "keys": keys}
    found, end, _ = hg.unrolled(made.inner, made.outer, theta, h, key=key_q, **options)
    direct = torch.func.grad(made.outer, argnums=1)(end, h, key_q)
    assert error(found, direct) > 1e-3  # the steps count

    def after(h):
        return made.outer(hg.ascend(made.inner, theta, h, **options)[0], h, key_q)

    for direction in directions(h, 2):
        slope = along(after, h, direction)
        assert dot(found, direction) == pytest.approx(slope, rel=1e-6)


def converged(made, theta, h, key, steps=0):
    """θ at the maximum of L: ascent with a graph, then Newton's method."""
    if steps:
        update = hg.adam(0.1)
        theta, state = hg.ascend(made.inner, theta, h, keys=[key], update=update)

        def step(theta, state):
            options = {"keys": [key], "update": update, "state": state}
            return hg.ascend(made.inner, theta, h, **options)

        graph = make_fx(step)(theta, state)
        for _ in range(steps):
            theta, state = graph(theta, state)
    names, shapes = [*theta], [t.shape for t in theta.values()]

    def unflat(v):
        parts = v.split([s.numel() for s in shapes])
        return {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}

    slope = torch.func.grad(lambda v: made.inner(unflat(v), h, key))
    v = torch.cat([t.reshape(-1) for t in theta.values()])
    for _ in range(20):
        g = slope(v)
        if float(g.abs().max()) < 1e-11:
            return unflat(v)
        # Logits are known up to a constant.
        v = v - torch.linalg.pinv(torch.func.jacrev(slope)(v), rtol=1e-10, hermitian=True) @ g
    raise AssertionError(f"The slope is still {float(g.abs().max())}.")


def test_implicit():
    made, key, key_q = two_levels()
    h = made.h
    theta = converged(made, made.theta, h, key, steps=250)
    found, solution = hg.implicit(
        made.inner, made.outer, theta, h, inner_key=key, key=key_q, tol=1e-12
    )
    assert not solution.indefinite

    def total(h):
        return made.outer(converged(made, theta, h, key), h, key_q)

    for direction in directions(h, 2):
        slope = along(total, h, direction)
        assert dot(found, direction) == pytest.approx(slope, rel=1e-6)


def test_a_dirichlet_has_first_and_second_derivatives():
    """Of gamma variables of uniform numbers: L by differences, and the slope of L along v."""
    torch.manual_seed(0)
    dirichlet = alternatives(priors.Dirichlet(0.7, learn=True))
    made = objectives(scattered(dirichlet), Level(prior=0.3), Level(prior=2.0))
    key, h = made.key(*rows()), made.h
    theta = made.theta
    slope = torch.func.grad(made.inner)
    assert error(slope(theta, h, key), differences(lambda t: made.inner(t, h, key), theta)) < 1e-6
    (v,) = directions(theta, 1)
    (curved,) = torch.func.vjp(lambda t: slope(t, h, key), theta)[1](v)

    def inclined(t):
        return sum((part * v[name]).sum() for name, part in slope(t, h, key).items())

    assert dot(curved, v) == pytest.approx(along(inclined, theta, v), rel=1e-5)
    keys = [made.key(*rows()) for _ in range(2)]
    found, _, _ = hg.unrolled(
        made.inner, made.outer, theta, h, keys=keys, key=key, update=hg.gradient_ascent(0.02)
    )

    def after(h):
        options = {"keys": keys, "update": hg.gradient_ascent(0.02)}
        return made.outer(hg.ascend(made.inner, theta, h, **options)[0], h, key)

    (direction,) = directions(h, 1)
    assert dot(found, direction) == pytest.approx(along(after, h, direction), rel=1e-5)


def test_a_dirichlet_has_the_terms_of_the_bound_on_average():
    """Where noise is held, and where a bound draws by torch: means within six standard errors."""
    made = objectives(scattered(alternatives(priors.Dirichlet(0.7, learn=True))))
    torch.manual_seed(1)
    held = torch.stack([made.terms(made.theta, made.h, made.key(*rows()))[0] for _ in range(150)])
    with torch.no_grad(), pyro.validation_enabled(False):
        drawn = torch.stack([made.bound.terms(*rows()).log_likelihood / 12 for _ in range(150)])
    apart = float((held.mean() - drawn.mean()).abs())
    assert apart < 6.0 * float((held.var() / 150 + drawn.var() / 150).sqrt())
