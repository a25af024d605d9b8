"""Fits of several replicates, in common steps and one after the other, and their mixture."""

import copy
import dataclasses
import functools
import itertools
import math
import pickle

import pytest
import torch
from bayesian import bayesian
from fitting import QUICK, Wobble, assert_same, blobs, pair, spy, stopped
from pyroccam import guides, inference, models
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.posterior import EnsembleNetwork
from pyroccam.inference.posterior.ensemble import components
from pyroccam.inference.training import Fit, Repeats, Settings, trainer
from pyroccam.models import priors
from random_weights import table
from stepping import WIDTH, Residual, build, linear, norm
from torch import nn

# 3 batches of one size in each of 8 epochs: a second size is another graph, and takes its time.
COMMON = {k: v for k, v in QUICK.items() if k != "seed"} | {"batch_size": 18, "weight_decay": 0.01}


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


def assert_alike(mine, theirs):
    """Whole fits, equal but for rounding."""
    assert len(mine.history) == len(theirs.history)
    for ours, others in zip(mine.history, theirs.history, strict=True):
        assert ours == pytest.approx(others, rel=1e-6, abs=1e-9)
    assert mine.best_epoch == theirs.best_epoch
    assert mine.settings == theirs.settings
    for one, other in ((mine.model, theirs.model), (mine.guide, theirs.guide)):
        for name, t in one.state_dict().items():
            torch.testing.assert_close(t, other.state_dict()[name], rtol=1e-4, atol=1e-6)
    if theirs.structure is not None:
        assert mine.structure.depth_chosen == theirs.structure.depth_chosen


# -- together as alone ------------------------------------------------------------------------


def against(make):
    """Of the second the validation targets are those that training contradicts."""

    def turned(seed):
        model, guide, rows = make(seed)
        y = (rows.y_val + 1) % 3
        return model, guide, dataclasses.replace(rows, y_val=y) if seed == 1 else rows

    return turned


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (maker("closed", own_data=True), {"optimizer": "sgd", "batch_size": 16}),
        (maker(), {"clip_norm": 0.5, "schedule": "onecycle", "kl_warmup": 0.5}),
        (against(fixed(maker())), {"epochs": 8, "patience": 2}),
    ],
    ids=["closed", "gradient", "stopped"],
)
def test_fits_together_are_the_fits_alone(make, settings):
    """Weights, data, priors, orders of rows, a last smaller batch, q(d), the choice, the end."""
    settings = {**COMMON, "epochs": 6, **settings}
    together, apart = (
        inference.fit_repeats(make, [0, 1], together=how, **settings).fits for how in (True, False)
    )
    assert [fit.engine["replicates"] for fit in (*together, *apart)] == [2, 2, 1, 1]
    for mine, theirs in zip(together, apart, strict=True):
        assert_alike(mine, theirs)
    assert together[0].val_nll != pytest.approx(together[1].val_nll, rel=1e-3)
    if "patience" in settings:
        assert [len(fit.history) for fit in together] == [8, 3]


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


# -- going on ---------------------------------------------------------------------------------


def test_replicates_go_on_bit_for_bit(tmp_path, monkeypatch):
    """One that is broken stays so; seeds are those of the checkpoint."""
    both = {"together": True, **COMMON}
    whole = inference.fit_repeats(noisy, [0, 1], **both).fits
    begin = functools.partial(inference.fit_repeats, noisy, [0, 1], out=tmp_path, **both)
    stopped(monkeypatch, begin, step=17, said="after step 17 of 24")
    with pytest.raises(inference.CheckpointError, match="another seed"):
        inference.fit_repeats(noisy, [0, 2], out=tmp_path, resume=True, **both)
    for mine, theirs in zip(begin(resume=True).fits, whole, strict=True):
        assert_same(mine, theirs)
    sick = functools.partial(inference.fit_repeats, fixed(ill({1: 10}), 2), [0, 1], **both)
    with pytest.raises(inference.NonFiniteLoss) as whole:
        sick()
    stopped(monkeypatch, functools.partial(sick, out=tmp_path / "ill"), step=17)
    with pytest.raises(inference.NonFiniteLoss) as again:
        sick(out=tmp_path / "ill", resume=True)
    assert str(again.value) == str(whole.value)
    assert_same(again.value.fits[0], whole.value.fits[0])


def test_a_traced_fit_goes_on_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "TRACE_FROM", 20)
    first = fixed(noisy)(0)

    def attempt(**more):
        return inference.fit(*copy.deepcopy(first), **COMMON, seed=3, compile=None, **more)

    whole = attempt()
    assert (whole.engine["kind"], whole.engine["fallback"]) == ("graph", None)
    stopped(monkeypatch, functools.partial(attempt, out=tmp_path), step=14)
    assert_same(attempt(out=tmp_path, resume=True), whole)


# -- afterwards -------------------------------------------------------------------------------


def test_a_pair_can_be_fitted_again_copied_and_pickled():
    """A second fit is that of a copy, which the first fit never touched."""
    model, guide, rows = maker("closed")(0)
    first = inference.fit(model, guide, rows, **COMMON, seed=1)
    twin = pickle.loads(pickle.dumps(first.model)), pickle.loads(pickle.dumps(first.guide))
    frozen = copy.deepcopy(model.state_dict())
    again = inference.fit(model, guide, rows, **COMMON, seed=2)
    assert again.model is model
    assert_same(again, inference.fit(*twin, rows, **COMMON, seed=2))
    assert not torch.equal(model.stack.stem.weight, frozen["stack.stem.weight"])
    guide.logits.requires_grad_(False)
    inference.fit(model, guide, rows, **{**COMMON, "epochs": 1})
    assert not guide.logits.requires_grad  # what was frozen stays so


# -- what cannot go together ------------------------------------------------------------------


def shallow(rows, width=4):
    model = models.LearntDepth.mlp(rows, width=width, max_depth=1)
    return model, guides.CategoricalDepth(model), rows


def other_hold(seed):
    model, _ = pair(blobs())
    return model, guides.CategoricalDepth(model, hold=0.1 * seed), blobs()


STEM = nn.Linear(2, WIDTH).requires_grad_(False)  # trained, it would be refused before


def shared_stem(seed):
    rows = blobs()
    model = models.LearntDepth(nn.Identity(), [linear()], nn.Linear(WIDTH, 3), data=rows)
    model.stack.stem = STEM
    return model, guides.CategoricalDepth(model), rows


def of_prior(prior):
    rows = table()
    return *bayesian(rows, prior), rows


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: shallow(blobs(), 4 + seed),
        lambda seed: shallow(blobs(n=60 + 10 * seed)),
        other_hold,
        shared_stem,
        lambda seed: of_prior([priors.LogUniform(), priors.ARD()][seed]),
        lambda seed: of_prior(priors.SpikeSlab(temperature=[0.5, 0.4][seed])),
    ],
)
def test_replicates_that_differ_in_more_than_values(make):
    few = {**COMMON, "epochs": 1}
    with pytest.raises(PyroccamError) as error:
        inference.fit_repeats(make, [0, 1], together=True, **few)
    assert error.value.hint == "together=False"
    fits = inference.fit_repeats(make, [0, 1], **few).fits  # it finds out by itself
    assert [fit.engine["replicates"] for fit in fits] == [1, 1]


def test_seeds_are_checked_before_anything_is_built():
    built = []
    for seeds in ([0, -1], [2**70], ["a"], [[0]], [], [1, 2, 1]):
        with pytest.raises(PyroccamError):
            inference.fit_repeats(built.append, seeds, epochs=1)
    assert not built
    few = {**COMMON, "epochs": 2}
    found = inference.fit_repeats(lambda seed: shallow(blobs()), [2**62, 2**60], **few)
    assert [len(one.history) for one in found.fits] == [2, 2]  # large ones make orders, too


# -- several fits as one, against a mixture written out, in original units --------------------


def rows(seed=0, task="regression", n=40):
    """The same test rows for every seed, other validation rows, and so another scale."""
    generator = torch.Generator().manual_seed(0)
    x = 5.0 + 3.0 * torch.randn(n + 12, 2, generator=generator)
    slopes = torch.tensor([[1.0, -0.1]])
    y = 200.0 + 40.0 * x[:, :1] * slopes + 10.0 * torch.randn(n + 12, 2, generator=generator)
    if task == "classification":
        y = (x[:, 0] > 5).long() + (x[:, 1] > 5).long()
    return Dataset.from_tensors(x[:n], y[:n], x[n:], y[n:], val_fraction=0.3, seed=seed)


def untrained(data, depth, weights, scale=None, seed=0, likelihood=None):
    """What a fit would give, with weights, q(d) and noise as asked."""
    torch.manual_seed(seed)
    stack = models.networks.residual_mlp(data.input_shape, data.outputs, width=4, max_depth=depth)
    model = models.LearntDepth(stack, data=data, likelihood=likelihood)
    guide = guides.CategoricalDepth(model)
    with torch.no_grad():
        for p in model.stack.parameters():
            p.add_(0.3 * torch.randn_like(p))
        guide.logits.copy_(torch.tensor(weights).log())
        if scale is not None:
            model.likelihood.log_scale.copy_(torch.tensor(scale).log())
    model.eval()
    rest = {"history": [], "best_epoch": 1, "val_nll": 0.0, "seconds": 0.0, "structure": None}
    return Fit(model, guide, data, Settings(seed=seed), weights=guide.probs, **rest)


def three():
    """Other depths, other q(d), other noise, other scales."""
    noise = [[0.2, 0.9], [0.7, 0.4], [1.5, 0.05]]
    q = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]]
    return [untrained(rows(k), depth, q[k], noise[k], k) for k, depth in enumerate((3, 5, 3))]


@torch.no_grad()
def by_hand(fits):
    """Density of each row, a term for each repeat and depth, and the mean of the mixture."""
    first, parts, mean = fits[0].data, [], 0.0
    x = first.x_test * first.x_std + first.x_mean
    y = first.y_test * first.y_std + first.y_mean
    for one in fits:
        data, model = one.data, one.model
        mu = model.stack.outputs((x - data.x_mean) / data.x_std) * data.y_std + data.y_mean
        sd = (model.likelihood.floor + model.likelihood.log_scale.exp()) * data.y_std
        log_p = -0.5 * ((y - mu) / sd) ** 2 - sd.log() - 0.5 * math.log(2 * math.pi)
        parts.append(log_p.sum(-1) + (one.weights / len(fits)).log()[:, None])
        mean = mean + torch.einsum("d,dnt->nt", one.weights, mu) / len(fits)
    nll = -torch.cat(parts).logsumexp(0).mean()
    return {"rmse": float((mean - y).square().mean().sqrt()), "nll": float(nll)}


def test_each_repeat_has_its_own_likelihood_weights_and_scale():
    fits = three()
    expected = by_hand(fits)
    for order in itertools.permutations(fits):
        assert Repeats(list(order), 0.0).evaluate() == pytest.approx(expected, rel=1e-5)
    assert Repeats(fits[:1], 0.0).evaluate() == pytest.approx(fits[0].evaluate(), rel=1e-5)
    alike = [one for one in fits if len(one.weights) == 4]  # q(d) of the first is not the second's
    assert Repeats(alike, 0.0).evaluate() == pytest.approx(by_hand(alike), rel=1e-5)
    odd = dataclasses.replace(fits[1].data, y_test=fits[1].data.y_test + 0.1)
    with pytest.raises(PyroccamError):
        Repeats([fits[0], dataclasses.replace(fits[1], data=odd)], 0.0).evaluate()
    with pytest.raises(PyroccamError):
        Repeats(fits[:2], 0.0).evaluate("val")


def test_repeats_are_a_deep_ensemble_at_the_scale_of_each(tmp_path):
    def make(seed):
        data = rows(seed, "classification")
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        model = models.BayesianNetwork(net, data, prior=models.priors.Normal())
        return model, guides.Delta(model), data

    few = {"epochs": 1, "progress": False, "device": "cpu"}
    found = inference.fit_repeats(make, [0, 1], out=tmp_path, **few)
    assert [f.settings.seed for f in found.fits] == [0, 1]
    assert (tmp_path / "checkpoint.pt").exists()  # of both
    assert (tmp_path / "seed-1" / "fit.json").exists()
    fits = found.fits
    expected = sum(one.predict(one.data.x_test).exp() for one in fits) / 2
    x, y = fits[0].data.split("test")
    nll = -float(expected[torch.arange(len(y)), y].log().mean())
    assert found.evaluate()["nll"] == pytest.approx(nll, rel=1e-5)
    alone, spread = [one.evaluate()["nll"] for one in fits], found.spread()["nll"]
    assert (spread["mean"], spread["n"]) == (pytest.approx(sum(alone) / 2), 2)
    ensemble = EnsembleNetwork(fits)
    torch.testing.assert_close(ensemble(x).exp().float(), expected, atol=1e-5, rtol=1e-4)
    outputs, shares = components(fits, x)
    mixed = torch.einsum("s,snc->nc", shares, outputs.softmax(-1))
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-4)
