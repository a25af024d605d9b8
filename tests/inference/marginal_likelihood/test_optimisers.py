"""Gradient descent and Langevin dynamics as posteriors, where these are normal and known."""

import math

import pytest
import torch
from evidences import hidden, linear
from pyroccam import inference
from pyroccam.inference.marginal_likelihood import Descent, Langevin
from pyroccam.inference.marginal_likelihood.joint import joint
from pyroccam.inference.marginal_likelihood.optimisers import (
    STEEPEST,
    Path,
    TooSteep,
    mixed_entropy,
)
from random_weights import limit

LR, STARTS = 1e-3, 400
EYE = torch.eye(4, dtype=torch.float64)
LAW = math.log(2 * math.pi * math.e)


def walked(steps, noisy=False, objective="likelihood"):
    own = {"steps": steps, "starts": STARTS, "evaluations": 5}
    how = Langevin(**own) if noisy else Descent(objective=objective, **own)
    with joint(linear()[0], "descent") as density, torch.random.fork_rng():
        torch.manual_seed(0)
        return how.path(density, LR)


def features():
    """Inputs with a one for the bias, targets, the noise, and the Hessian of minus the
    log-likelihood, float64."""
    fit, _ = linear()
    x, y = (part.double() for part in fit.data.split("train"))
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    noise = float(fit.model.likelihood.scale.detach())
    return x, y[:, 0], noise, x.T @ x / noise**2


def known_bound(steps, noisy, objective):
    """The bound of the normal that the steps lead to, by its mean and covariance; and the same with
    the entropy of that normal itself."""
    x, y, noise, hessian = features()
    hessian = hessian + EYE if objective == "joint" else hessian
    move = EYE - LR * hessian
    change = -LR * float(hessian.trace()) - LR**2 * float((hessian @ hessian).trace())
    mean, cover, entropy = torch.zeros(4, dtype=torch.float64), EYE, 2 * LAW
    for _ in range(steps):
        mean = move @ mean + LR * x.T @ y / noise**2
        cover = move @ cover @ move.T
        entropy += change
        if noisy:
            cover = cover + 2 * LR * EYE
            each = 2 * LAW + 2 * math.log(2 * LR)
            entropy = 2 * math.log(math.exp(entropy / 2) + math.exp(each / 2))
    misfit = float((y - x @ mean).square().sum() + (x @ cover * x).sum())
    likelihood = -0.5 * misfit / noise**2 - len(y) * math.log(noise * math.sqrt(2 * math.pi))
    prior = -0.5 * float(mean @ mean + cover.trace()) - 2 * math.log(2 * math.pi)
    own = 0.5 * float(torch.logdet(cover)) + 2 * LAW
    return likelihood + prior + entropy, likelihood + prior + own


@pytest.mark.parametrize(
    ("noisy", "objective"), [(False, "likelihood"), (False, "joint"), (True, "joint")]
)
def test_of_a_linear_regression_the_law_is_normal(noisy, objective):
    """The bound is that of this normal at every time, by a bound of its entropy, and below the
    evidence."""
    seen = walked(40, noisy, objective)
    bounds = seen.bounds(torch.arange(STARTS))
    errors = (seen.log_joint.var(1) / STARTS).sqrt() + float(seen.first.std()) / STARTS**0.5
    probes = seen.changes.var(1).cumsum(0) / STARTS
    for time, found, error in zip(seen.times, bounds.tolist(), errors.tolist(), strict=True):
        known, own = known_bound(time, noisy, objective)
        more = float(probes[time - 1].sqrt()) if time else 0.0
        assert abs(found - known) < limit(20) * (error + more)
        assert known <= own + 1e-9 < linear()[1]
    assert seen.times == [0, 8, 16, 24, 32, 40]


def test_the_steepest_direction_is_found():
    known = LR * float(torch.linalg.eigvalsh(features()[-1])[-1])
    assert walked(40).steepest == pytest.approx(known, rel=1e-6)
    by = Descent(lr=LR * STEEPEST / known * 1.01, steps=40)
    with pytest.raises(TooSteep):
        inference.evidence(linear()[0], by=by)


def test_entropy_powers():
    """Equal for normals of one shape, and below for others."""
    for size in (1, 5):
        each = [0.5 * size * (LAW + math.log(v)) for v in (0.3, 1.7, 0.3 + 1.7)]
        assert mixed_entropy(each[0], each[1], size) == pytest.approx(each[2])
        assert mixed_entropy(each[1], each[0], size) == pytest.approx(each[2])
    narrow = torch.tensor([1e-4, 1.0], dtype=torch.float64)
    shapes = narrow, torch.full_like(narrow, 0.5), narrow + 0.5
    one, other, both = (0.5 * float((LAW + v.log()).sum()) for v in shapes)
    assert mixed_entropy(one, other, 2) < both - 0.1


@pytest.mark.parametrize("kind", [Descent, Langevin])
def test_steps_in_batches_are_below_too(kind):
    fit, evidence = linear()
    by = kind(batch_size=10, steps=100, starts=40, lr=4e-4)
    found = inference.evidence(fit, by=by)
    assert evidence - 20.0 < found.value < evidence + limit(2) * found.error
    assert found.passes < 100 * 40  # of a third of the rows


@pytest.mark.parametrize("noise", [None, 0.7])
def test_the_error_is_that_of_a_mean_over_starts(noise):
    """By the delta method: of an entropy S that noise is added to, e^(2S / n) is a share of the
    sum that it comes to."""
    generator = torch.Generator().manual_seed(0)
    joint, first, change = 1e-3 * torch.randn(3, 12, generator=generator).double()
    seen = Path([1], joint[None], first, change[None], noise, 5, 0.0)
    share = 1.0 if noise is None else 1.0 / (1.0 + math.exp(2 * noise / 5))
    halves = (joint + share * (first + change)).reshape(2, 6)
    value, error, when = seen.best()
    own = 0.0 if noise is None else mixed_entropy(0.0, noise, 5)
    assert value == pytest.approx(own + float(halves.mean()), abs=1e-6)
    # Of the mean of two means of six.
    assert error == pytest.approx(math.sqrt(float(halves.var(1).sum()) / 6) / 2, rel=1e-3)
    assert when == 1


def test_a_step_that_is_found():
    found = inference.evidence(hidden(), by=Descent(steps=20, starts=8))
    assert found.details["steepest"] < 0.5 * STEEPEST
    halvings = math.log2(0.1 / found.details["lr"])
    assert halvings == pytest.approx(round(halvings), abs=1e-9)
    assert "highest at the last" in found.doubt
