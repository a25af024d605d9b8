"""Fits of several replicates in common steps, against the same fits one after the other."""

import copy
import dataclasses
import math
import os
import pickle
import signal
import sys

import pytest
import torch
from fitting import QUICK, Wobble, assert_same, blobs, pair, spy
from pyroccam import guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.training.step import TrainingStep
from stepping import WIDTH, Residual, build, linear, norm
from torch import nn
from uncompiled import leave_uncompiled

# 3 batches of one size in each of 8 epochs: a second size is another graph, and takes its time.
COMMON = {k: v for k, v in QUICK.items() if k != "seed"} | {"batch_size": 18, "weight_decay": 0.01}
TERM = signal.SIGTERM


def double(rows):
    """A data set in double precision: in single, training magnifies rounding in a few epochs."""
    names = ("x_train", "x_val", "x_test")
    return dataclasses.replace(rows, **{name: getattr(rows, name).double() for name in names})


def maker(update="gradient", own_data=False):
    """A function of the seed that makes a noiseless pair with its weights and prior, and data."""
    shared = double(blobs())

    def make(seed):
        rows = double(blobs(seed=seed)) if own_data else shared
        model, _ = build(lambda: [Residual(linear(), nn.Tanh(), norm())], seed)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)
        model.log_prior.copy_(torch.tensor([0.5 - 0.1 * seed, 0.5 + 0.1 * seed]).log())
        return model, guides.CategoricalDepth(model, update=update, hold=0.25).double(), rows

    return make


def fixed(make, depth=1):
    """The same at a fixed depth, which is faster."""

    def make_fixed(seed):
        model, _, rows = make(seed)
        model = model.at_depth(depth)
        return model, guides.Deterministic(model), rows

    return make_fixed


def noisy(seed):
    rows = blobs()
    model = models.LearntDepth(nn.Linear(2, 6), [Wobble()], nn.Linear(6, 3), data=rows)
    return model, guides.CategoricalDepth(model, hold=0.25), rows


def both(make, seeds=(0, 1), **settings):
    settings = {**COMMON, "epochs": 6, **settings}
    together = inference.fit_repeats(make, seeds, together=True, **settings)
    apart = inference.fit_repeats(make, seeds, together=False, **settings)
    assert [fit.engine["replicates"] for fit in together.fits] == [len(seeds)] * len(seeds)
    assert [fit.engine["replicates"] for fit in apart.fits] == [1] * len(seeds)
    return together.fits, apart.fits


def assert_alike(mine, theirs, rtol=1e-6):
    """Whole fits, equal but for rounding."""
    assert len(mine.history) == len(theirs.history)
    for ours, others in zip(mine.history, theirs.history, strict=True):
        assert ours == pytest.approx(others, rel=rtol, abs=1e-9)
    assert mine.best_epoch == theirs.best_epoch
    assert mine.val_nll == pytest.approx(theirs.val_nll, rel=rtol)
    assert mine.settings == theirs.settings
    for one, other in ((mine.model, theirs.model), (mine.guide, theirs.guide)):
        for name, t in one.state_dict().items():
            torch.testing.assert_close(t, other.state_dict()[name], rtol=1e-4, atol=1e-6)
    if theirs.structure is not None:
        assert mine.structure.depth_chosen == theirs.structure.depth_chosen


# -- together as alone ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "own_data", "settings"),
    [
        ("closed", True, {"optimizer": "sgd", "batch_size": 16}),
        ("gradient", False, {"clip_norm": 0.5, "schedule": "onecycle"}),
        ("closed", False, {"batch_size": 54}),
        ("gradient", True, {"batch_size": 54, "kl_warmup": 0.5}),
    ],
    ids=["closed", "gradient", "closed-whole", "gradient-whole"],
)
def test_fits_together_are_the_fits_alone(update, own_data, settings):
    """Weights, data, priors, orders of rows, a last smaller batch, q(d), the choice."""
    together, apart = both(maker(update, own_data), **settings)
    for mine, theirs in zip(together, apart, strict=True):
        assert_alike(mine, theirs)
    assert torch.equal(*(fit.data.x_train for fit in together)) == (not own_data)
    assert together[0].val_nll != pytest.approx(together[1].val_nll, rel=1e-3)


def test_one_data_set_is_kept_once():
    one = {**COMMON, "epochs": 1}
    fits = inference.fit_repeats(fixed(maker()), [0, 1], together=True, **one).fits
    assert fits[0].data.x_train is fits[1].data.x_train


def against(rows):
    """Validation targets that training contradicts: the longer, the worse."""
    return dataclasses.replace(rows, y_val=(rows.y_val + 1) % 3)


def test_each_replicate_stops_by_itself():
    def make(seed):
        model, guide, rows = fixed(maker())(seed)
        return model, guide, against(rows) if seed == 1 else rows

    together, apart = both(make, (0, 1), epochs=8, patience=2)
    assert [len(fit.history) for fit in together] == [8, 3]
    for mine, theirs in zip(together, apart, strict=True):
        assert_alike(mine, theirs)


def test_noise_differs_between_replicates_and_steps(monkeypatch):
    losses = []
    original = TrainingStep.evaluate

    def evaluate(self, x, y):
        losses.append(original(self, x, y).tolist())
        return torch.tensor(losses[-1])

    monkeypatch.setattr(TrainingStep, "evaluate", evaluate)
    first = noisy(0)
    still = {**COMMON, "batch_size": 54, "lr": 1e-30, "weight_decay": 0.0, "epochs": 3}
    # Pairs that are equal, and all rows in one batch: noise alone tells them apart.
    inference.fit_repeats(lambda seed: copy.deepcopy(first), [0, 1], together=True, **still)
    assert len({value for pair in losses for value in pair}) == 6


# -- when one of them breaks ------------------------------------------------------------------


class Ill(nn.Module):
    """Turns what passes into NaN from the k-th step on, where k is a buffer: one of its own."""

    def __init__(self, after):
        super().__init__()
        self.register_buffer("left", torch.tensor(float(after)))

    def forward(self, a):
        if self.training:
            self.left -= 1
        return torch.where(self.left < 0, float("nan"), a)


def ill(ends):
    """Replicates of which some break after so many steps."""

    def make(seed):
        rows = blobs()
        blocks = [Wobble(), Ill(ends.get(seed, 1e6))]
        model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
        return model, guides.CategoricalDepth(model, hold=0.25), rows

    return make


def test_a_broken_replicate_does_not_disturb_the_others(monkeypatch):
    """They end bit for bit as they do beside a sound one, noise included; it is put back."""
    sound = inference.fit_repeats(ill({}), [0, 1, 2], together=True, **COMMON).fits
    made, kept = {}, []

    def make(seed):
        made[seed] = ill({1: 10})(seed)
        return made[seed]

    spy(monkeypatch, "_evaluate", after=lambda t: kept.append(copy.deepcopy(t.replicates[1].good)))
    with pytest.raises(inference.NonFiniteLoss, match=r"1 of 3 .*seed 1: The loss is nan") as error:
        inference.fit_repeats(make, [0, 1, 2], together=True, **COMMON)
    assert "step 10 of 24 (epoch 4 of 8); site 'y'" in str(error.value)
    assert [fit.settings.seed for fit in error.value.fits] == [0, 2]
    for mine, theirs in zip(error.value.fits, [sound[0], sound[2]], strict=True):
        assert_same(mine, theirs)
    for part, module in zip(("model", "guide"), made[1], strict=False):
        for key, t in module.state_dict().items():
            assert torch.equal(t, kept[2][part][key]), key  # of the third epoch
            assert torch.isfinite(t).all(), key


def test_a_replicate_that_has_stopped_cannot_break():
    """What it does beside the others, when it is done, is of no account."""

    def make(seed):
        model, guide, rows = fixed(ill({1: 15}), 2)(seed)
        return model, guide, against(rows) if seed == 1 else rows

    fits = inference.fit_repeats(make, [0, 1], together=True, patience=2, **COMMON).fits
    assert len(fits[1].history) < 5  # of the 8 epochs of the other: 15 steps are 5
    assert len(fits[0].history) > 5
    assert math.isfinite(fits[1].evaluate("test")["nll"])


def test_when_all_are_broken_there_are_no_fits():
    with pytest.raises(inference.NonFiniteLoss, match="step 3 of 24") as e:
        inference.fit_repeats(fixed(ill({0: 3, 1: 3}), 2), [0, 1], together=True, **COMMON)
    assert list(e.value.fits) == []


# -- going on ---------------------------------------------------------------------------------


def stopped(monkeypatch, step, *arguments, **options):
    """A fit of repeats in common steps whose process gets a signal after so many."""

    def count(trainer):
        if trainer.step_number == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        spy(patch, "_step", after=count)
        with pytest.raises(inference.Interrupted, match=f"after step {step + 1} of 24"):
            inference.fit_repeats(*arguments, together=True, **options, **COMMON)


def test_replicates_go_on_bit_for_bit(tmp_path, monkeypatch):
    both = {"together": True, **COMMON}
    whole = inference.fit_repeats(noisy, [0, 1], **both).fits
    stopped(monkeypatch, 16, noisy, [0, 1], out=tmp_path)
    torch.rand(5)
    again = inference.fit_repeats(noisy, [0, 1], out=tmp_path, resume=True, **both).fits
    for mine, theirs in zip(again, whole, strict=True):
        assert_same(mine, theirs)


def test_a_broken_replicate_stays_broken_when_resumed(tmp_path, monkeypatch):
    make, common = fixed(ill({1: 10}), 2), {"together": True, **COMMON}
    with pytest.raises(inference.NonFiniteLoss) as whole:
        inference.fit_repeats(make, [0, 1], **common)
    stopped(monkeypatch, 16, make, [0, 1], out=tmp_path)
    with pytest.raises(inference.NonFiniteLoss) as again:
        inference.fit_repeats(make, [0, 1], out=tmp_path, resume=True, **common)
    assert str(again.value) == str(whole.value)
    assert_same(again.value.fits[0], whole.value.fits[0])


def test_a_checkpoint_of_other_seeds_is_refused(tmp_path, monkeypatch):
    stopped(monkeypatch, 3, fixed(noisy), [0, 1], out=tmp_path)
    resumed = {"together": True, "out": tmp_path, "resume": True, **COMMON}
    with pytest.raises(inference.CheckpointError, match="another seed"):
        inference.fit_repeats(fixed(noisy), [0, 2], **resumed)


@pytest.mark.parametrize("engine", [True, "graph"])
def test_a_traced_fit_goes_on_bit_for_bit(engine, tmp_path, monkeypatch):
    """All that surrounds the compiler, which is the identity here; a last batch runs eagerly."""
    leave_uncompiled(monkeypatch)
    if engine == "graph":
        monkeypatch.setattr(sys.modules["pyroccam.inference.training.trainer"], "TRACE_FROM", 20)
    settings = {**COMMON, "seed": 3, "compile": True if engine is True else None}
    first = fixed(noisy)(0)
    whole = inference.fit(*copy.deepcopy(first), **settings)
    assert whole.engine["kind"] == ("compiled" if engine is True else "graph")
    assert whole.engine["fallback"] is None
    with monkeypatch.context() as patch:
        spy(patch, "_step", after=lambda t: t.step_number == 13 and os.kill(os.getpid(), TERM))
        with pytest.raises(inference.Interrupted):
            inference.fit(*copy.deepcopy(first), out=tmp_path, **settings)
    again = inference.fit(*copy.deepcopy(first), out=tmp_path, resume=True, **settings)
    assert_same(again, whole)


# -- afterwards -------------------------------------------------------------------------------


def test_a_pair_can_be_fitted_again_copied_and_pickled():
    """A second fit is that of a copy, which the first fit never touched."""
    rows = double(blobs())
    model, guide, _ = maker("closed")(0)
    first = inference.fit(model, guide, rows, **COMMON, seed=1)
    twin = pickle.loads(pickle.dumps(first.model)), pickle.loads(pickle.dumps(first.guide))
    frozen = copy.deepcopy(model.state_dict())
    again = inference.fit(model, guide, rows, **COMMON, seed=2)
    assert again.model is model
    assert_same(again, inference.fit(*twin, rows, **COMMON, seed=2))
    assert not torch.equal(model.stack.stem.weight, frozen["stack.stem.weight"])


@pytest.mark.parametrize("together", [True, False])
def test_pairs_are_given_back_when_a_step_fails(together, monkeypatch):
    def fail(trainer):
        if trainer.step_number == 2:
            raise RuntimeError("the plug was pulled")

    spy(monkeypatch, "_step", before=fail)
    made = []

    def make(seed):
        made.append(maker("closed")(seed))
        return made[-1]

    with pytest.raises(RuntimeError, match="the plug"):
        inference.fit_repeats(make, [1, 2], together=together, **COMMON)
    for model, guide, _ in made:
        for p in [*model.parameters(), *guide.parameters(), *model.buffers()]:
            assert p.untyped_storage().nbytes() == p.numel() * p.element_size()
            assert p.grad is None
        assert guide.logits.requires_grad


def test_logits_that_were_frozen_stay_frozen():
    model, guide, rows = maker("closed")(0)
    guide.logits.requires_grad_(False)
    inference.fit(model, guide, rows, **{**COMMON, "epochs": 1})
    assert not guide.logits.requires_grad


# -- what cannot go together ------------------------------------------------------------------


def wider(seed):
    rows = blobs()
    model = models.LearntDepth.mlp(rows, width=4 + seed, max_depth=1)
    return model, guides.CategoricalDepth(model), rows


def other_dropout(seed):
    model, guide = pair(blobs())
    model.stack.blocks[0].f[2].p = 0.1 * seed
    return model, guide, blobs()


def other_hold(seed):
    model, _ = pair(blobs())
    return model, guides.CategoricalDepth(model, hold=0.1 * seed), blobs()


def other_rows(seed):
    rows = blobs(n=60 + 10 * seed)
    model = models.LearntDepth.mlp(rows, width=4, max_depth=1)
    return model, guides.CategoricalDepth(model), rows


STEM = nn.Linear(2, WIDTH).requires_grad_(False)  # trained, it would be refused before


def shared_stem(seed):
    rows = blobs()
    model = models.LearntDepth(nn.Identity(), [linear()], nn.Linear(WIDTH, 3), data=rows)
    model.stack.stem = STEM
    return model, guides.CategoricalDepth(model), rows


@pytest.mark.parametrize("make", [wider, other_dropout, other_hold, other_rows, shared_stem])
def test_replicates_that_differ_in_more_than_values(make):
    few = {**COMMON, "epochs": 1}
    with pytest.raises(PyroccamError) as error:
        inference.fit_repeats(make, [0, 1], together=True, **few)
    assert error.value.hint == "together=False"
    fits = inference.fit_repeats(make, [0, 1], **few).fits  # it finds out by itself
    assert [fit.engine["replicates"] for fit in fits] == [1, 1]


@pytest.mark.parametrize("seeds", [[0, -1], [2**70], ["a"], [[0]], [], [1, 2, 1]])
def test_seeds_are_checked_before_anything_is_built(seeds):
    built = []
    with pytest.raises(PyroccamError):
        inference.fit_repeats(built.append, seeds, epochs=1)
    assert not built


def test_large_seeds():
    """Of which orders of rows are made, too."""

    def build(seed):
        rows = blobs()
        return *pair(rows), rows

    few = {k: v for k, v in QUICK.items() if k != "seed"}
    found = inference.fit_repeats(build, [2**62, 2**60], **{**few, "epochs": 2})
    assert [len(one.history) for one in found.fits] == [2, 2]
