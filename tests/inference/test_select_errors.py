"""Selections that are refused, or end by an error: what is said, and what is left."""

import math

import pytest
import torch
from pyroccam import inference
from pyroccam.inference.selection import (
    Against,
    Drmad,
    Implicit,
    InverseGamma,
    Level,
    OneLevel,
    Random,
    Unrolled,
)
from pyroccam.inference.selection import hypergradient as hg
from pyroccam.inference.selection.levels import Objectives
from pyroccam.models import priors
from selecting import POLYNOMIAL, QUIET, polynomial, run

from experiments.sets import polynomial as polynomial_rows

ERRORS = {
    "interrupted at once": (KeyboardInterrupt, 1, inference.Interrupted, "step 0 of 6.* before"),
    "interrupted": (KeyboardInterrupt, 4, inference.Interrupted, "step 3 of 6.* the best, step 3"),
    "broken": (RuntimeError("broken"), 4, RuntimeError, "broken"),
    "nan": (None, 4, hg.NonFiniteGradient, "Q is nan and L nan after outer step 4: take a smaller"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_left_after_an_error(monkeypatch, name):
    error, at, kind, message = ERRORS[name]
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
    with pytest.raises(kind, match=message):
        run(Unrolled(), (model, guide))
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    made = Objectives(model, guide, (Level(), Level()))
    for values, own in zip(states[-1], (made.theta, made.h), strict=True):
        for key, value in values.items():
            assert torch.equal(own[key], value)


def test_steps_that_are_too_long():
    """Found in steps that are recorded, too, which do not look at values."""
    for method, message in ((OneLevel(), "smaller lr"), (Random(), "none of the h")):
        with pytest.raises(hg.NonFiniteGradient, match=message):
            run(method, lr=1e6, outer_steps=2)


def test_settings_that_contradict_each_other():
    structure = [Against(priors.GumbelSoftmax(), 1.0)]
    for message, options in (
        (r"L needs a likelihood", {"L": Level(likelihood=0.0)}),
        (r"change nothing in L: give them to Q", {"L": Level(hyperprior=InverseGamma(1.0, 1.0))}),
        (r"change nothing in L: give them to Q", {"L": Level(structure=structure)}),
        (
            r"equal in both.*L has 1 / 1 on 'train', Q 0.5 / 1 on 'train'. Use Greedy\(\)",
            {"method": OneLevel(), "Q": Level(prior=0.5)},
        ),
        (r"Q 1 / 0 on 'train'", {"method": OneLevel(), "Q": Level(likelihood=0.0)}),
        (r"Q 1 / 1 on 'val'", {"method": OneLevel(), "Q": Level(split="val")}),
        *(
            (f"{n} must be a whole number of at least 1, got 0", {n: 0})
            for n in ("outer_steps", "inner_steps", "draws", "batch_size", "particles")
        ),
        *((f"{n} must be positive and finite, got -1", {n: -1.0}) for n in ("lr", "outer_lr")),
    ):
        with pytest.raises(ValueError, match=message):
            inference.select(*polynomial(), POLYNOMIAL, **{**QUIET, **options})
    for message, make in (
        (r"Implicit\(damping\) must be at least 0 and finite, got nan", lambda: Implicit(math.nan)),
        (r"Implicit\(max_iter\) must be a whole number of at least 1", lambda: Implicit(0.1, 0)),
        (r"Drmad\(skip\) must be in \[0, 1\), got 1", lambda: Drmad(skip=1.0)),
        (r"Drmad\(every\) must be a whole number of at least 1", lambda: Drmad(every=0)),
        (r"Random\(ranges\) needs low <= high for 'loc'", lambda: Random({"loc": (1.0, 0.0)})),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_other_data():
    fewer = polynomial_rows(n_train=30)
    with pytest.raises(ValueError, match="made for 40 training rows, the data has 30"):
        inference.select(*polynomial(), fewer, **QUIET)
