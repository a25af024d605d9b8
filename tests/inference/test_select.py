"""Choosing hyperparameters: all methods, what they leave behind, and what they refuse."""

import copy
import dataclasses
import functools
import math

import pytest
import torch
from pyroccam import data, inference
from pyroccam.data import PyroccamError
from pyroccam.inference.selection import (
    Against,
    Greedy,
    Implicit,
    Level,
    OneLevel,
    Random,
    SelfTuning,
    Unrolled,
    search,
)
from pyroccam.inference.selection import hypergradient as hg
from pyroccam.inference.selection.bilevel import IndefiniteCurvature
from pyroccam.inference.selection.levels import Objectives
from pyroccam.models import priors, seeded
from selecting import (
    POLYNOMIAL,
    QUIET,
    alternatives,
    polynomial,
    rows,
    run,
    scattered,
)
from torch import nn

from experiments.sets import polynomial as polynomial_rows

METHODS = [
    OneLevel(), Greedy(), Unrolled(), Implicit(damping=1.0), Random(),
    SelfTuning(warmup=0, entropy=None),
]  # fmt: skip


def held(found):
    """θ and h that model and guide hold."""
    made = Objectives(found.fit.model, found.fit.guide, (Level(), Level()))
    return made.theta, made.h


def same(values, others, **near):
    """Two pairs of θ and h."""
    for one, other in zip(values, others, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], **{"rtol": 0, "atol": 0, **near})


@functools.cache
def watched(seed=0):
    """L and Q of all pairs here, with the noise that a selection watches."""
    made = Objectives(*polynomial(), (Level(), Level()))
    batch = POLYNOMIAL.split("train")
    with seeded(seed, torch.device("cpu")):
        return made, [[made.key(*batch) for _ in range(5)] for _ in "LQ"]


def q_of(theta, h, made, keys):
    """As it is reported."""
    with torch.no_grad():
        values = [made.outer(theta, h, key) for key in keys[1]]
    return made.model.size * float(torch.stack(values).mean())


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_every_method_improves_q(method):
    found = run(method)
    qs = [row["Q"] for row in found.history]
    made, keys = watched()
    assert max(qs) == qs[found.best] == found.Q
    assert q_of(*held(found), made, keys) == pytest.approx(found.Q, rel=1e-6)
    assert q_of(made.theta, made.h, made, keys) < found.Q - 5.0  # where it began
    if not isinstance(method, Random):
        assert qs == sorted(qs)
    assert found.method == method
    assert [row["outer"] for row in found.history] == [1, 2, 3, 4, 5, 6]
    assert [row["inner"] for row in found.history] == [10, 20, 30, 40, 50, 60]
    for row in found.history:
        assert row["L"] == pytest.approx(row["log_likelihood"] - row["kl"], rel=1e-5)
    # What is found is a fit.
    assert found.fit.best_epoch == found.best + 1
    assert found.fit.history is found.history
    assert not found.fit.model.training
    assert found.fit.predict(POLYNOMIAL.x_test[:3]).shape == (3, 1)


@pytest.fixture
def eager(monkeypatch):
    """Nothing is recorded, which takes longer than few steps do."""
    monkeypatch.setattr(search.Search, "traced", lambda self, f, *args: f(*args))


def test_the_seed_says_all_and_the_generator_is_left_alone(eager):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    options = {"outer_steps": 3, "inner_steps": 2, "batch_size": 16}
    first, again, other = (run(Greedy(), **options, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for row, alike, differs in zip(first.history, again.history, other.history, strict=True):
        assert {**row, "seconds": 0} == {**alike, "seconds": 0}
        assert row["Q"] != differs["Q"]
    same(held(first), held(again))


def test_systems_that_are_not_definite_are_counted_in_one_warning(eager):
    options = {"method": Implicit(), "outer_steps": 4, "inner_steps": 1}
    with pytest.warns(IndefiniteCurvature, match="In 4 of 4 outer steps") as seen:
        inference.select(*polynomial(), POLYNOMIAL, draws=1, **options, **QUIET)
    (one,) = (one for one in seen if one.category is IndefiniteCurvature)
    assert one.filename == __file__


def test_one_unrolled_step_is_greedy(eager):
    options = {"inner_steps": 1, "outer_steps": 8, "lr": 0.01, "Q": Level(prior=0.1)}
    greedy, unrolled = (run(method, **options) for method in (Greedy(), Unrolled()))
    for one, two in zip(greedy.history, unrolled.history, strict=True):
        assert one["Q"] == pytest.approx(two["Q"], rel=1e-5)
    same(held(greedy), held(unrolled), rtol=1e-4, atol=1e-5)


def doubled():
    x, y = rows()
    found = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)
    return dataclasses.replace(found, x_train=x, y_train=y)


def keys_of(monkeypatch):
    """Objectives and keys, as they are drawn."""
    key, seen = Objectives.key, []

    def watch(self, x, y):
        seen.append((self, key(self, x, y)))
        return seen[-1][1]

    monkeypatch.setattr(Objectives, "key", watch)
    return seen


def test_hold_out(monkeypatch):
    """Q of other rows than L: those of validation, for each of the training rows."""
    seen = keys_of(monkeypatch)
    split = polynomial_rows(val_fraction=0.25)
    found = run(Unrolled(), rows=split, Q=Level(prior=0.0, split="val"))
    made, keys = seen[0][0], [key for _, key in seen[:10]]
    assert [len(key.x) for key in keys] == [30] * 5 + [10] * 5
    assert torch.equal(keys[5].x, split.x_val)
    assert q_of(*held(found), made, [keys[:5], keys[5:]]) == pytest.approx(found.Q, rel=1e-6)
    # The mean log-likelihood of the 10 validation rows, times the 30 that train.
    outputs = found.fit.outputs(split.x_val, draws=2000)
    density = found.fit.model.likelihood(outputs).log_prob(split.y_val)
    assert 30 * density.mean().item() == pytest.approx(found.Q, rel=0.05)


def test_recorded_steps_are_the_steps(monkeypatch):
    """Of a random structure, and a KL of it that is estimated: they take all noise as given."""
    Q = Level(prior=0.5, structure=[Against(priors.GumbelSoftmax(0.4, [5.0, 1.0, 1.0]), -0.1)])
    options = {"rows": doubled(), "Q": Q, "outer_steps": 2, "inner_steps": 2}
    model = alternatives(prior=None)
    recorded = run(Greedy(), scattered(model), **options)
    monkeypatch.setattr(search.Search, "traced", lambda self, f, *args: f(*args))
    plain = run(Greedy(), scattered(model), **options)
    for one, two in zip(plain.history, recorded.history, strict=True):
        for name in ("Q", "L", "log_likelihood", "kl"):
            assert one[name] == pytest.approx(two[name], rel=1e-9)
    assert plain.history[0]["Q"] < plain.Q


class Bent(priors.Normal):
    """Learns what has no range."""

    def for_layer(self, layer):
        made = super().for_layer(layer)
        made.bend = nn.Parameter(torch.zeros(50))
        return made


ERRORS = {
    "interrupted at once": (KeyboardInterrupt, 1, inference.Interrupted),
    "interrupted": (KeyboardInterrupt, 4, inference.Interrupted),
    "broken": (TypeError("broken"), 4, TypeError),
    "nan": (None, 4, hg.NonFiniteGradient),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_left_after_an_error(monkeypatch, name):
    error, at, kind = ERRORS[name]
    step, states = Unrolled.step, []

    def failing(self, search):
        states.append((search.theta, search.h))
        if len(states) < at:
            step(self, search)
        elif error is not None:
            raise error
        else:
            search.theta = {n: t + math.nan for n, t in search.theta.items()}

    monkeypatch.setattr(Unrolled, "step", failing)
    model, guide = polynomial()
    before = torch.get_rng_state()
    with pytest.raises(kind):
        run(Unrolled(), (model, guide))
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    made = Objectives(model, guide, (Level(), Level()))
    same(states[-1], (made.theta, made.h))


@pytest.mark.parametrize("method", [OneLevel(), Unrolled()])
def test_steps_that_are_too_long(method):
    """Found in steps that are recorded, too, which do not look at values."""
    with pytest.raises(hg.NonFiniteGradient):
        run(method, lr=1e6, outer_steps=2)


def test_what_is_refused(eager):
    ratio = {"L": Level(2.0, 1.0), "outer_steps": 1, "inner_steps": 1}
    assert run(OneLevel(), Q=Level(4.0, 2.0), **ratio).best == 0  # whatever its terms are
    streamed = copy.copy(POLYNOMIAL)
    object.__setattr__(streamed, "streamed", True)
    for method, options in (
        (Greedy(), {"L": Level(likelihood=0.0)}),
        (Greedy(), {"L": Level(folds=4)}),
        (Greedy(), {"Q": Level(split="val")}),  # without such rows
        (Greedy(), {"rows": polynomial_rows(n_train=30), "pair": polynomial()}),
        (OneLevel(), {"Q": Level(prior=0.5)}),
        (OneLevel(), {"Q": Level(likelihood=0.0)}),
        (OneLevel(), {"Q": Level(split="val")}),
        *((method, {"pair": polynomial(prior=Bent(learn="weight"))})
          for method in (Random(), SelfTuning(warmup=0))),
        (SelfTuning(), {"outer_steps": 1, "inner_steps": 101}),  # which end before h moves
        (SelfTuning(steps=7, warmup=3), {"outer_steps": 1, "inner_steps": 6}),
        (Greedy(), {"L": Level(split="val"), "Q": Level(folds=4)}),
        (Greedy(), {"rows": streamed, "Q": Level(folds=4)}),
        (OneLevel(), {"Q": Level(folds=4)}),
        (Greedy(), {"Q": Level(folds=1000)}),
    ):  # fmt: skip
        with pytest.raises(PyroccamError):
            run(method, **options)
