"""Fits of streamed rows: what they find is what rows in memory give."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.inference import diagnostics
from pyroccam.inference.elbo.full_data import evidence
from pyroccam.inference.marginal_likelihood import Importance, Laplace
from pyroccam.inference.marginal_likelihood.curvature import CURVATURES
from pyroccam.inference.marginal_likelihood.joint import joint
from pyroccam.inference.posterior import exact_depth_posterior
from pyroccam.inference.selection.search import Rows
from pyroccam.inference.training.depth_update import BlockPosterior, IncrementalPosterior
from pyroccam.inference.training.trainer import Interrupted, Trainer
from torch import nn
from torch.utils.data import TensorDataset

N = 900


def arrays(task="classification"):
    rng = np.random.default_rng(0)
    x = rng.normal(2, 3, (N, 3)).astype(np.float32)
    mean = np.sin(x[:, 0]) + x[:, 1]
    y = (mean > 2).astype(np.int64)
    return x, y if task == "classification" else (mean + 0.3 * rng.normal(size=N))[:, None]


def streamed(tmp_path, task="classification", **options):
    tmp_path.mkdir(exist_ok=True)
    for name, part in zip("xy", arrays(task), strict=True):
        np.save(tmp_path / f"{name}.npy", part)
    return data.stream(tmp_path, **{"held": 128, "val": 100, "test": 100, **options})


def depth_pair(rows):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(rows, width=8, max_depth=3)
    return model, guides.CategoricalDepth(model)


def random_pair(rows):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, rows.outputs))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model)


SHORT = {"epochs": 3, "batch_size": 64, "progress": False}


@pytest.mark.parametrize("pair", [depth_pair, random_pair])
def test_the_same_batches_give_the_same_fit(tmp_path, monkeypatch, pair):
    """Rows in memory, in the order in which the streamed ones come."""
    rows = streamed(tmp_path)
    fit = inference.fit(*pair(rows), rows, **SHORT)
    memory = rows.sample(rows.N)

    def order(self, seed, epoch):
        return torch.cat([b[0] for b in rows.batches(seed, epoch, [(0, rows.N)])])

    monkeypatch.setattr(data.Dataset, "order", order)
    # the blocks of what is streamed, for the closed form of q(d)
    monkeypatch.setattr(data.Dataset, "edges", rows.edges)
    other = inference.fit(*pair(memory), memory, **SHORT)
    for name, value in fit.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
    for name, value in fit.guide.state_dict().items():
        assert torch.equal(value, other.guide.state_dict()[name]), name
    assert fit.history == other.history


@pytest.mark.parametrize("kind", ["npy", "items"])
def test_a_streamed_epoch_goes_on_where_it_stood(tmp_path, monkeypatch, kind):
    """Noise of the transformation of batches and of the posterior included."""

    def noisy(x):
        return x + 0.1 * torch.randn_like(x)

    def rows():
        if kind == "npy":
            return streamed(tmp_path / "rows", batch_transform=noisy)
        own = TensorDataset(*map(torch.from_numpy, arrays()))
        return data.stream(own, val=100, test=100, workers=0, batch_transform=noisy)

    first = rows()
    whole = inference.fit(*depth_pair(first), first, out=tmp_path / "whole", **SHORT)
    original, steps = Trainer._step, itertools.count()

    def step(self, batch):
        original(self, batch)
        if next(steps) == 16:
            raise KeyboardInterrupt

    original_run = Trainer.run

    def run(self, bar, stop):
        try:
            original_run(self, bar, stop)
        except KeyboardInterrupt as error:  # in the middle of the second epoch
            self.position += 1
            self._save()
            raise Interrupted from error

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", step)
        patched.setattr(Trainer, "run", run)
        with pytest.raises(Interrupted):
            inference.fit(*depth_pair(first), rows(), out=tmp_path / "half", **SHORT)
    again = rows()
    found = inference.fit(*depth_pair(again), again, out=tmp_path / "half", resume=True, **SHORT)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name
    other = data.stream(
        TensorDataset(*map(torch.from_numpy, arrays())), val=100, test=100, workers=0, seed=1
    )
    with pytest.raises(inference.CheckpointError):
        inference.fit(*depth_pair(other), other, out=tmp_path / "half", resume=True, **SHORT)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_what_goes_through_all_rows_gives_what_rows_in_memory_give(tmp_path, task):
    rows = streamed(tmp_path, task)
    memory = rows.sample(rows.N)
    fit = inference.fit(*depth_pair(rows), rows, **SHORT)
    close = {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(
        exact_depth_posterior(fit.model, rows), exact_depth_posterior(fit.model, memory), **close
    )
    other = replace(fit, data=memory)
    expected = other.evaluate("train")
    found = fit.evaluate("train")
    assert {*found} == {*expected} - {"ece"}
    assert found == pytest.approx({n: v for n, v in expected.items() if n != "ece"}, rel=1e-5)
    assert fit.evaluate("val") == other.evaluate("val")
    assert fit.warnings == other.warnings
    length, same = (inference.description_length(one) for one in (fit, other))
    assert length.targets == pytest.approx(same.targets, rel=1e-5)


def test_the_bound_of_random_weights_is_of_all_rows(tmp_path):
    rows = streamed(tmp_path)
    fit = inference.fit(*random_pair(rows), rows, **SHORT)
    found = evidence(fit.model, fit.guide, rows, passes=10)
    expected = evidence(fit.model, fit.guide, rows.sample(rows.N), passes=10, seed=1)
    assert found.rows == expected.rows == rows.N
    assert found.kl == pytest.approx(expected.kl, rel=1e-5)
    # five standard errors of a difference of two independent estimates
    assert abs(found.elbo - expected.elbo) < 5 * (found.error**2 + expected.error**2) ** 0.5
    assert evidence(fit.model, fit.guide, rows, rows=300).rows == 300


def test_what_comes_after_a_fit_goes_with_streamed_rows(tmp_path):
    rows = streamed(tmp_path)
    fit = inference.fit(*random_pair(rows), rows, **SHORT)
    small = inference.shrink(fit)
    assert small.net(rows.x_test).shape == (100, 2)
    drawn = fit.to_arviz(draws=10, rows=50)
    places = torch.tensor(drawn["observed_data"]["row"].values)
    shown = torch.tensor(drawn["observed_data"]["y"].values)
    assert torch.equal(rows.take("train", places)[1], shown)
    with pytest.raises(data.DataError, match=r"data\.sample"):
        inference.evidence(fit, by="prequential")
    taught = inference.shrink(fit, cut=inference.Search(2))  # from labels: there is no teacher
    assert taught.report.retrained is not None
    depth = inference.fit(*depth_pair(rows), rows, **SHORT)
    assert inference.shrink(depth).net(rows.x_test).shape[0] == 100


@pytest.mark.parametrize("curvature", ["full", "kronecker", "diagonal"])
def test_laplaces_method_adds_up_the_parts_of_a_stream(tmp_path, curvature, monkeypatch):
    """Gradient and curvature are sums over rows: those of all rows at once, to rounding."""
    monkeypatch.setattr("pyroccam.data.streaming.streamed.PART", 90)
    rows = streamed(tmp_path, "regression")
    fit = inference.fit(*random_pair(rows), rows, **SHORT)
    by = Laplace(curvature=curvature, climb=3, draws=100)
    found = inference.evidence(fit, by=by)
    expected = inference.evidence(replace(fit, data=rows.sample(rows.N)), by=by)
    assert found.rows == expected.rows == rows.N
    assert found.passes == pytest.approx(expected.passes, rel=1e-2)
    assert found.value == pytest.approx(expected.value, rel=1e-6)
    assert found.details["log det"] == pytest.approx(expected.details["log det"], rel=1e-6)
    seen = []
    for one in (fit, replace(fit, data=rows.sample(rows.N))):
        with joint(one, "laplace") as density:
            at = density.centre()
            seen.append((*density.gradient(at[None]), CURVATURES["hessian"](density, at).matrix))
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-4)


def test_densities_of_draws_pass_over_a_stream_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("pyroccam.data.streaming.streamed.PART", 90)
    rows = streamed(tmp_path)
    fit = inference.fit(*random_pair(rows), rows, **SHORT)
    memory = replace(fit, data=rows.sample(rows.N))
    for how in ({}, {"rows": 300}):
        for one, other in zip(
            *(diagnostics.khat(each, draws=150, **how).blocks for each in (fit, memory)),
            strict=True,
        ):
            assert one.khat == pytest.approx(other.khat, rel=1e-4, abs=1e-4)
            assert one.noise == pytest.approx(other.noise, rel=1e-3)
    found, expected = (inference.evidence(each, by=Importance(draws=200)) for each in (fit, memory))
    assert found.value == pytest.approx(expected.value, rel=1e-6)


def test_two_levels_take_batches_of_a_stream(tmp_path):
    """Each row once in a pass, in whole batches; the search runs to its end."""
    rows = streamed(tmp_path)
    batches = Rows(rows, "train", 128, seed=3)
    x, _ = zip(*(batches.batch() for _ in range(rows.N // 128)), strict=True)
    assert {len(part) for part in x} == {128}
    assert len(torch.cat(x).unique(dim=0)) == 128 * (rows.N // 128)
    other, _ = batches.batch()
    assert not torch.equal(other, x[0])
    model = models.BayesianNetwork(
        nn.Linear(3, 2), rows, prior=models.priors.Normal(1.0, learn="scale")
    )
    found = inference.select(
        model, guides.MeanField(model), rows, outer_steps=3, inner_steps=2, batch_size=64,
        progress=False,
    )  # fmt: skip
    assert len(found.fit.history) == 3


def test_weighted_rows_of_a_stream_train_as_in_memory(tmp_path, monkeypatch):
    """The same batches with the same weights give the same weights of the network."""
    rows = streamed(tmp_path).with_class_weights([1, 3])
    memory = rows.sample(rows.N)
    assert rows.weighted
    assert memory.weighted

    def order(self, seed, epoch):
        return torch.cat([b[0] for b in rows.batches(seed, epoch, [(0, rows.N)])])

    monkeypatch.setattr(data.Dataset, "order", order)
    fits = [inference.fit(*random_pair(one), one, **SHORT) for one in (rows, memory)]
    states = [one.guide.state_dict() for one in fits]
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="weights"):
        inference.fit(*random_pair(rows), streamed(tmp_path), **SHORT)
    assert fits[0].val_nll == pytest.approx(fits[1].val_nll, rel=1e-4)
    small = inference.shrink(fits[0], cut=inference.Search(1))  # by weighted labels
    assert small.report.retrained is not None
    depth = inference.fit(*depth_pair(rows), rows, **SHORT)
    torch.testing.assert_close(
        exact_depth_posterior(depth.model, rows), exact_depth_posterior(depth.model, memory),
        rtol=1e-5, atol=1e-7,
    )  # fmt: skip


def test_noise_of_validation_rows_beside_a_closed_form(tmp_path):
    """The fixed point of σ and q(d), of rows that pass for each σ anew."""
    rows = streamed(tmp_path, "regression")
    fit = inference.fit(*depth_pair(rows), rows, **SHORT)
    memory = replace(fit, data=rows.sample(rows.N))
    from pyroccam.inference.posterior.posteriors import posterior_of
    from pyroccam.inference.training.validated_noise import validate_noise

    found = []
    for one in (fit, memory):
        with torch.no_grad():
            fit.model.likelihood.log_scale.fill_(0.0)
        validate_noise(posterior_of(fit.model, fit.guide), one.data)
        found.append(fit.model.likelihood.scale.detach().clone())
    torch.testing.assert_close(*found, rtol=1e-5, atol=0)


# -- sums of blocks in place of a table of rows ----------------------------------------------------

D, ROWS = 3, 60


def updates(edges, rate=1.0):
    prior = torch.full((1, D + 1), -np.log(D + 1.0), dtype=torch.float64)
    of_rows = IncrementalPosterior(torch.zeros(1, D + 1).double(), prior, ROWS, rate)
    of_blocks = BlockPosterior(torch.zeros(1, D + 1).double(), prior, torch.tensor(edges), rate)
    return of_rows, of_blocks


def test_blocks_of_one_row_are_the_table_of_all_rows():
    torch.manual_seed(0)
    of_rows, of_blocks = updates(range(ROWS + 1))
    for k in range(3):
        for rows in torch.randperm(ROWS).split(7):
            now = torch.randn(1, D + 1, len(rows), dtype=torch.float64)
            for one in (of_rows, of_blocks):
                one.observe(rows[None], now)
                one.step(k > 0)
            # the share of the rows that have been seen is a float32 in one of them
            close = {"rtol": 1e-12, "atol": 1e-12} if k else {"rtol": 1e-5, "atol": 1e-5}
            torch.testing.assert_close(of_rows.logits, of_blocks.logits, **close)
        of_blocks.logits.copy_(of_rows.logits)


def test_whole_blocks_are_exact_and_those_on_their_way_are_extrapolated():
    torch.manual_seed(1)
    edges = [0, 25, 40, ROWS]
    _, update = updates(edges)
    old, new = torch.randn(2, 1, D + 1, ROWS, dtype=torch.float64)
    update.observe(torch.arange(ROWS)[None], old)
    torch.testing.assert_close(update.total, old.sum(-1))
    # all of the first block, in two batches, and four rows of the last
    for rows in (
        torch.arange(10, 25),
        torch.cat([torch.arange(10), torch.tensor([59, 41, 50, 45])]),
    ):
        update.observe(rows[None], new[..., rows])
    coming = new[..., [59, 41, 50, 45]].sum(-1)
    expected = (
        new[..., :25].sum(-1) + old[..., 25:40].sum(-1) + coming + (16 / 20) * old[..., 40:].sum(-1)
    )
    torch.testing.assert_close(update.total, expected)


def test_an_incomplete_pass_of_blocks_is_scaled_to_all_rows():
    _, update = updates([0, 25, 40, ROWS])
    rows = torch.tensor([[3, 30, 44]])
    now = torch.arange(12.0, dtype=torch.float64).view(1, D + 1, 3)
    update.observe(rows, now)
    update.step(complete=False)
    torch.testing.assert_close(update.logits, (now.sum(-1) * ROWS / 3).log_softmax(-1))
