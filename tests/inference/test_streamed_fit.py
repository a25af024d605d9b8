"""Fits of streamed rows: what they find is what rows in memory give."""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from fitting import stopped
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference import diagnostics
from pyroccam.inference.elbo import evidence
from pyroccam.inference.marginal_likelihood import Importance, Laplace
from pyroccam.inference.marginal_likelihood.curvature import CURVATURES
from pyroccam.inference.marginal_likelihood.joint import joint
from pyroccam.inference.posterior import exact_depth_posterior, posterior_of
from pyroccam.inference.selection.search import batches
from pyroccam.inference.training.depth_update import BlockPosterior, IncrementalPosterior
from pyroccam.inference.training.validated_noise import validate_noise
from torch import nn
from torch.utils.data import TensorDataset

N = 900


def arrays(task="classification"):
    rng = np.random.default_rng(0)
    x = rng.normal(2, 3, (N, 3)).astype(np.float32)
    mean = np.sin(x[:, 0]) + x[:, 1]
    y = (mean > 2).astype(np.int64)
    return x, y if task == "classification" else (mean + 0.3 * rng.normal(size=N))[:, None]


def streamed(folder, task="classification", **options):
    folder.mkdir(exist_ok=True)
    for name, part in zip("xy", arrays(task), strict=True):
        np.save(folder / f"{name}.npy", part)
    return data.stream(folder, **{"held": 128, "val": 100, "test": 100, **options})


def depth_pair(rows):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(rows, width=8, max_depth=3)
    return model, guides.CategoricalDepth(model)


def random_pair(rows):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, rows.outputs))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model)


def fitted(pair, rows, **more):
    return inference.fit(*pair(rows), rows, epochs=3, batch_size=64, progress=False, **more)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A fit of a stream, by pair and task, and the same with the rows in memory."""

    @functools.cache
    def find(pair, task="classification"):
        rows = streamed(tmp_path_factory.mktemp(task), task)
        fit = fitted(pair, rows)
        return fit, replace(fit, data=rows.sample(rows.N))

    return find


def states(fit):
    return {**fit.model.state_dict(), **fit.guide.state_dict()}


@pytest.mark.parametrize("weights", [None, [1, 3]])
@pytest.mark.parametrize("pair", [depth_pair, random_pair])
def test_the_same_batches_give_the_same_fit(tmp_path, monkeypatch, pair, weights):
    """Rows in memory, in the order in which the streamed ones come, with the same weights."""
    rows = streamed(tmp_path)
    if weights is not None:
        with pytest.raises(PyroccamError):
            inference.fit(*pair(rows), rows.with_class_weights(weights), epochs=1)
        rows = rows.with_class_weights(weights)
    fit, memory = fitted(pair, rows), rows.sample(rows.N)
    assert memory.weighted == (weights is not None)

    def order(self, seed, epoch):
        return torch.cat([b[0] for b in rows.batches(seed, epoch, [(0, rows.N)])])

    monkeypatch.setattr(data.Dataset, "order", order)
    # the blocks of what is streamed, for the closed form of q(d)
    monkeypatch.setattr(data.Dataset, "edges", rows.edges)
    other = fitted(pair, memory)
    exact = {"rtol": 0, "atol": 0} if weights is None else {"rtol": 1e-4, "atol": 1e-5}
    for name, value in states(fit).items():
        torch.testing.assert_close(value, states(other)[name], **exact, msg=name)
    if weights is None:
        assert fit.history == other.history
    elif pair is random_pair:
        small = inference.shrink(fit, cut=inference.Search(1))  # by weighted labels
        assert small.report.retrained is not None


@pytest.mark.parametrize("kind", ["npy", "items"])
def test_a_streamed_epoch_goes_on_where_it_stood(tmp_path, monkeypatch, kind):
    """Noise of the transformation of batches and of the posterior included."""

    def noisy(x):
        return x + 0.1 * torch.randn_like(x)

    def rows(**more):
        if kind == "npy":
            return streamed(tmp_path / "rows", batch_transform=noisy)
        own = TensorDataset(*map(torch.from_numpy, arrays()))
        return data.stream(own, val=100, test=100, workers=0, batch_transform=noisy, **more)

    whole, out = fitted(depth_pair, rows()), tmp_path / "half"
    begin = functools.partial(fitted, depth_pair, rows(), out=out)
    stopped(monkeypatch, begin, step=17)  # in the middle of the second epoch
    found = fitted(depth_pair, rows(), out=out, resume=True)
    assert all(torch.equal(value, states(found)[name]) for name, value in states(whole).items())
    if kind == "items":
        with pytest.raises(inference.CheckpointError):
            fitted(depth_pair, rows(seed=1), out=out, resume=True)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_what_goes_through_all_rows_gives_what_rows_in_memory_give(known, task):
    fit, memory = known(depth_pair, task)
    exact = [exact_depth_posterior(fit.model, one.data) for one in (fit, memory)]
    torch.testing.assert_close(*exact, rtol=1e-5, atol=1e-7)
    expected, found = memory.evaluate("train"), fit.evaluate("train")
    assert {*found} == {*expected} - {"ece"}
    assert found == pytest.approx({n: v for n, v in expected.items() if n != "ece"}, rel=1e-5)
    assert fit.evaluate("val") == memory.evaluate("val")
    assert fit.warnings == memory.warnings
    length, same = (inference.description_length(one) for one in (fit, memory))
    assert length.targets == pytest.approx(same.targets, rel=1e-5)
    if task == "classification":
        return
    noise = []  # the fixed point of σ and q(d), of rows that pass for each σ anew
    for one in (fit, memory):
        model, guide = copy.deepcopy((fit.model, fit.guide))
        with torch.no_grad():
            model.likelihood.log_scale.fill_(0.0)
        validate_noise(posterior_of(model, guide), one.data)
        noise.append(model.likelihood.scale.detach().clone())
    torch.testing.assert_close(*noise, rtol=1e-5, atol=0)


def test_the_bound_of_random_weights_is_of_all_rows(known):
    fit, memory = known(random_pair)
    found = evidence(fit.model, fit.guide, fit.data, passes=10)
    expected = evidence(fit.model, fit.guide, memory.data, passes=10, seed=1)
    assert found.rows == expected.rows == fit.data.N
    assert found.kl == pytest.approx(expected.kl, rel=1e-5)
    # five standard errors of a difference of two independent estimates
    assert abs(found.elbo - expected.elbo) < 5 * (found.error**2 + expected.error**2) ** 0.5
    assert evidence(fit.model, fit.guide, fit.data, rows=300).rows == 300


def test_what_comes_after_a_fit_goes_with_streamed_rows(known):
    fit, _ = known(random_pair)
    rows = fit.data
    assert inference.shrink(fit).net(rows.x_test).shape == (100, 2)
    drawn = fit.to_arviz(draws=10, rows=50)
    places = torch.tensor(drawn["observed_data"]["row"].values)
    shown = torch.tensor(drawn["observed_data"]["y"].values)
    assert torch.equal(rows.take("train", places)[1], shown)
    with pytest.raises(data.DataError, match=r"data\.sample"):
        inference.evidence(fit, by="prequential")
    taught = inference.shrink(fit, cut=inference.Search(2))  # from labels: there is no teacher
    assert taught.report.retrained is not None
    assert inference.shrink(known(depth_pair)[0]).net(rows.x_test).shape[0] == 100
    found = inference.fit_repeats(lambda seed: (*random_pair(rows), rows), [0, 1], epochs=1)
    assert found.fits[0].engine["replicates"] == 1


@pytest.mark.parametrize("curvature", ["full", "kronecker", "diagonal"])
def test_laplaces_method_adds_up_the_parts_of_a_stream(known, curvature, monkeypatch):
    """Gradient and curvature are sums over rows: those of all rows at once, to rounding."""
    monkeypatch.setattr("pyroccam.data.streaming.streamed.PART", 90)
    both = known(random_pair, "regression")
    by = Laplace(curvature=curvature, climb=3, draws=100)
    found, expected = (inference.evidence(one, by=by) for one in both)
    assert found.rows == expected.rows == both[0].data.N
    assert found.passes == pytest.approx(expected.passes, rel=1e-2)
    assert found.value == pytest.approx(expected.value, rel=1e-6)
    assert found.details["log det"] == pytest.approx(expected.details["log det"], rel=1e-6)
    seen = []
    for one in both:
        with joint(one, "laplace") as density:
            at = density.centre()
            seen.append((*density.gradient(at[None]), CURVATURES["hessian"](density, at).matrix))
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-4)


def test_densities_of_draws_pass_over_a_stream_in_parts(known, monkeypatch):
    monkeypatch.setattr("pyroccam.data.streaming.streamed.PART", 90)
    both = known(random_pair)
    for how in ({}, {"rows": 300}):
        blocks = [diagnostics.khat(each, draws=150, **how).blocks for each in both]
        for one, other in zip(*blocks, strict=True):
            assert one.khat == pytest.approx(other.khat, rel=1e-4, abs=1e-4)
            assert one.noise == pytest.approx(other.noise, rel=1e-3)
    found, expected = (inference.evidence(each, by=Importance(draws=200)) for each in both)
    assert found.value == pytest.approx(expected.value, rel=1e-6)


def test_two_levels_take_batches_of_a_stream(known):
    """Each row once in a pass, in whole batches; the search runs to its end."""
    rows = known(random_pair)[0].data
    left = batches(rows, "train", 128, seed=3)
    x, _ = zip(*(next(left) for _ in range(rows.N // 128)), strict=True)
    assert {len(part) for part in x} == {128}
    assert len(torch.cat(x).unique(dim=0)) == 128 * (rows.N // 128)
    assert not torch.equal(next(left)[0], x[0])
    prior = models.priors.Normal(1.0, learn="scale")
    model = models.BayesianNetwork(nn.Linear(3, 2), rows, prior=prior)
    found = inference.select(
        model, guides.MeanField(model), rows, outer_steps=3, inner_steps=2, batch_size=64,
        progress=False,
    )  # fmt: skip
    assert len(found.fit.history) == 3


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
