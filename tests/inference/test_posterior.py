"""Moments and networks of a posterior over weights; fits of Bayesian networks, whole."""

import copy
import math
import os
import signal

import pyro.distributions as dist
import pytest
import torch
from fitting import assert_same, spy
from pyroccam import guides, inference, models
from pyroccam.inference.draws import draw_outputs, draw_weights, outputs_of
from pyroccam.inference.elbo import bound
from pyroccam.inference.posterior import (
    mean_network,
    moments,
    power_moments,
)
from pyroccam.inference.run_directory import CheckpointError
from pyroccam.inference.settings import parameter_groups
from pyroccam.models import priors
from pyroccam.models.bayesian import BayesianNetwork
from random_weights import FourScales, assert_same_means, pair, small_net, table
from stepping import assert_close, stacked, step_of, walk
from torch import nn
from torch.func import functional_call

QUICK = {"epochs": 6, "batch_size": 18, "lr": 0.02, "seed": 3, "progress": False, "device": "cpu"}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# -- moments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "power"),
    [
        (dist.Normal(torch.tensor([0.5, -2.0]), torch.tensor([0.3, 1.0])), 1.0),
        (dist.LogNormal(torch.tensor([0.5, -2.0]), torch.tensor([0.3, 0.6])), 1.0),
        (dist.LogNormal(torch.tensor([0.5, -2.0]), torch.tensor([0.3, 0.8])), 0.5),
        (dist.Delta(torch.tensor([0.25, 4.0])), 0.5),
    ],
)
def test_moments_of_a_power(q, power):
    sample = q.sample((200_000,)) ** power
    first, second = power_moments(q.to_event(1), power)
    together = torch.stack([sample, sample**2], 1).double()
    assert_same_means(together, torch.stack([first, second])[None].double().expand(2, -1, -1))


def test_a_relaxed_gate_counts_as_the_gate():
    probs = torch.tensor([0.2, 0.9])
    q = dist.RelaxedBernoulli(torch.tensor(0.5), probs=probs).to_event(1)
    for value in power_moments(q, 1.0):
        torch.testing.assert_close(value, probs)


@pytest.mark.parametrize(
    ("q", "power"), [(dist.Normal(0.0, 1.0), 0.5), (dist.Gamma(1.0, 1.0), 1.0)]
)
def test_moments_that_are_not_known(q, power):
    with pytest.raises(ValueError, match=rf"No moments of {type(q).__name__} to the power {power}"):
        power_moments(q, power)


class Mixed(nn.Module):
    """A convolution, one without a bias, a linear layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 2, 2), nn.Tanh(), nn.ConvTranspose1d(2, 2, 2, bias=False)
        )
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def drawn(model, guide, draws):
    """Samples of the weights and biases of every layer, ``(draws, *)``."""
    found = {}
    for name, layer in model.layers.items():
        latents = layer.latents()
        rows = []
        for _ in range(draws):
            values = {n: guide.distribution(f"{name}.{n}").sample() for n in latents}
            rows.append(layer.effective(values, latents))
        weights, biases = zip(*rows, strict=True)
        found[name] = torch.stack(weights), None if biases[0] is None else torch.stack(biases)
    return found


@torch.no_grad()
@pytest.mark.parametrize(
    ("prior", "kind"),
    [
        (FourScales(), guides.MeanField),
        (priors.GroupNormalJeffreys(), guides.VariationalDropout),
    ],
)
def test_moments_of_the_weights(prior, kind):
    """Also of biases, which the scales of a convolution cover and those of a linear layer do
    not."""
    model, guide = pair(Mixed(), (1, 3), prior, guide=kind)
    samples = drawn(model, guide, 1000)
    for name, found in moments(model, guide).items():
        weight, bias = samples[name]
        pairs = [(weight, found.mean, found.variance)]
        if bias is None:
            assert found.bias is None
            assert found.bias_variance is None
        else:
            pairs.append((bias, found.bias, found.bias_variance))
        for sample, mean, variance in pairs:
            together = torch.stack([sample - mean, (sample - mean) ** 2], 1)
            expected = torch.stack([torch.zeros_like(mean), variance])
            assert_same_means(together, expected[None].expand(2, *expected.shape))
            assert variance.max() > 1e-3


@torch.no_grad()
def test_moments_of_points():
    model, guide = pair(Mixed(), (1, 3), FourScales(), guide=guides.Delta)
    for name, found in moments(model, guide).items():
        ((weight,), bias) = drawn(model, guide, 1)[name]
        torch.testing.assert_close(found.mean, weight)
        assert float(found.variance.max()) < 1e-6
        if bias is not None:
            torch.testing.assert_close(found.bias, bias[0])


# -- networks ---------------------------------------------------------------------------------


def test_the_mean_network():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    net[1].running_mean.normal_()
    model, guide = pair(net, (3,), priors.GroupNormalJeffreys())
    plain = mean_network(model, guide)
    found = moments(model, guide)
    weights = {}
    for name, m in found.items():
        z = guide.distribution(f"{name}.scale").base_dist.loc
        expected = guide.distribution(f"{name}.weight").base_dist.loc * z
        torch.testing.assert_close(m.mean, expected)
        weights |= {f"{name}.weight": m.mean, f"{name}.bias": m.bias}
    x = torch.randn(5, 3)
    torch.testing.assert_close(plain(x), functional_call(net.eval(), weights, (x,)))
    assert not plain.training
    assert not any(isinstance(m, models.BayesianLayer) for m in plain.modules())


def test_drawn_networks():
    """Each draw is one network for all inputs, in whatever batches; seeded."""
    model, guide = pair(small_net(), (3,), FourScales())
    model.train()
    x = torch.randn(3, 3)[[0, 1, 2, 0, 1, 2, 0]]
    state = torch.get_rng_state()
    out = draw_outputs(model, guide, x, 4, seed=1, batch_size=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert out.shape == (4, 7, 2)
    assert not out.requires_grad
    torch.testing.assert_close(out[:, :3], out[:, 3:6])
    assert len(out[:, 0, 0].unique()) == 4
    torch.rand(3)
    torch.testing.assert_close(out, draw_outputs(model, guide, x, 4, seed=1))
    assert not torch.allclose(out, draw_outputs(model, guide, x, 4, seed=2))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        draw_outputs(model, guide, x, 0)


@torch.no_grad()
def test_drawn_networks_have_the_posterior():
    """Two inputs of a linear network: means and covariances are known."""
    model, guide = pair(nn.Linear(3, 2), (3,), priors.Normal())
    x = torch.randn(2, 3)
    out = draw_outputs(model, guide, x, 3000)
    q = {n: guide.distribution(f".{n}").base_dist for n in ("weight", "bias")}
    mean = x @ q["weight"].loc.T + q["bias"].loc
    a, b = ((out - mean)[:, i] for i in (0, 1))
    one = torch.cat([a, b, a * b, a**2, b**2], 1)
    v, c = q["weight"].variance.T, q["bias"].variance
    known = [torch.zeros(4), x.prod(0) @ v + c, x[0] ** 2 @ v + c, x[1] ** 2 @ v + c]
    assert_same_means(one, torch.cat(known)[None].expand(2, -1))


# -- fits -------------------------------------------------------------------------------------


def bayesian(rows, prior=None, guide=guides.MeanField, net=None, seed=0, **options):
    """A pair with the same initial weights for the same seed."""
    outputs = rows.outputs
    prior = priors.GroupNormalJeffreys() if prior is None else prior
    model = BayesianNetwork(net or small_net(outputs, seed=seed), rows, prior=prior)
    return model, guide(model, **options)


def noisy_net():
    """Batch normalisation and dropout, for which the state of the generator matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2)
        )


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_fit_predicts(task):
    rows = table(task)
    fit = inference.fit(*bayesian(rows), rows, **{**QUICK, "epochs": 25})
    found = fit.evaluate()
    x, y = rows.split("test")
    out = draw_outputs(fit.model, fit.guide, x, 20, seed=3)
    torch.testing.assert_close(fit.outputs(x), out)
    torch.testing.assert_close(fit.weights, torch.full((20,), 0.05))
    if task == "classification":
        log_p = out.log_softmax(-1).exp().mean(0).log()
        torch.testing.assert_close(fit.predict(x), log_p)
        nll = -log_p[torch.arange(len(y)), y].mean()
        assert found["accuracy"] > 0.8
    else:
        scale = fit.model.likelihood.scale.detach()
        torch.testing.assert_close(fit.predict(x), out.mean(0))
        log_p = torch.distributions.Normal(out, scale).log_prob(y)[..., 0]
        nll = -(log_p.logsumexp(0) - math.log(20)).mean() + rows.y_std.log()
        assert found["rmse"] < 0.8 * float(rows.y_std)
    assert found["nll"] == pytest.approx(float(nll), rel=1e-4)
    assert fit.structure is None


def test_validation_is_by_the_mean_network():
    rows = table()
    fit = inference.fit(*bayesian(rows, net=noisy_net()), rows, **QUICK)
    x, y = rows.split("val")
    log_p = mean_network(fit.model, fit.guide)(x).log_softmax(-1).detach()
    expected = -float(log_p[torch.arange(len(y)), y].mean())
    assert fit.val_nll == pytest.approx(expected, rel=1e-5)
    drawn_nll = fit.evaluate("val")["nll"]
    assert fit.val_nll != pytest.approx(drawn_nll, rel=1e-5)


@pytest.mark.parametrize("guide", [guides.MeanField, guides.Delta])
def test_the_last_checkpoint_of_random_weights_and_the_best_on_request(guide):
    """Where the best is an early one: at this learning rate the loss goes up and down."""
    rows = table()
    prior = priors.Normal()

    def fit(**more):
        settings = {**QUICK, "epochs": 12, "lr": 0.3, "schedule": "constant", **more}
        return inference.fit(*bayesian(rows, prior, guide), rows, **settings)

    last, best = fit(), fit(checkpoint="best")
    values = [row["val_nll"] for row in last.history]
    assert last.best_epoch == len(values) == 12
    assert last.val_nll == pytest.approx(values[-1])
    assert best.best_epoch == 1 + values.index(min(values)) < 12
    assert best.val_nll == pytest.approx(min(values))
    impatient = fit(patience=2)  # counted from the lowest value, though the last is kept
    lows = [min(values[: i + 1]) for i in range(len(values))]
    stop = next(i + 1 for i in range(2, 12) if lows[i] == lows[i - 2])
    assert len(impatient.history) == impatient.best_epoch == stop


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, monkeypatch):
    rows = table()

    def attempt(**more):
        return inference.fit(*bayesian(rows, net=noisy_net()), rows, **{**QUICK, **more})

    def kill(trainer):
        if trainer.step_number == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = attempt()
    with monkeypatch.context() as patch:
        spy(patch, "_step", before=kill)
        with pytest.raises(inference.Interrupted, match="after step 8 of 18"):
            attempt(out=tmp_path)
    torch.rand(5)
    assert_same(whole, attempt(out=tmp_path, resume=True))


def test_another_prior_or_guide_does_not_go_on(tmp_path, monkeypatch):
    rows = table()

    def stop(trainer):
        if trainer.step_number == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        spy(patch, "_step", before=stop)
        with pytest.raises(inference.Interrupted):
            inference.fit(*bayesian(rows, priors.Normal(1.0)), rows, out=tmp_path, **QUICK)
    again = {"out": tmp_path, "resume": True, **QUICK}
    with pytest.raises(CheckpointError, match="another prior"):
        inference.fit(*bayesian(rows, priors.Normal(0.5)), rows, **again)
    with pytest.raises(CheckpointError, match="another guide"):
        inference.fit(*bayesian(rows, priors.Normal(1.0), local=False), rows, **again)
    inference.fit(*bayesian(rows, priors.Normal(1.0)), rows, **again)


def test_what_is_decayed():
    """Weights that are numbers; not the posterior, nor what a prior learns."""
    rows = table("regression")
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model = BayesianNetwork(net, rows, prior=priors.Normal(learn="layer"), layers=["1"])
    guide = guides.MeanField(model)
    groups = {g.name: g for g in parameter_groups(inference.Settings(), model, guide)}
    assert {n: len(g.parameters) for n, g in groups.items()} == {
        "weights": 2,
        "noise": 1,
        "prior": 2,
        "posterior": 4,
    }
    decayed = [name for name, g in groups.items() if g.options["weight_decay"]]
    assert decayed == ["weights"]
    assert all(g.options["scheduled"] for g in groups.values())


# -- steps ------------------------------------------------------------------------------------


def double_pair(seed=0, prior=None, guide=guides.MeanField, **options):
    rows = table()
    model, guide = bayesian(rows, prior, guide, seed=seed, **options)
    return model.double(), guide.double()


def double_batches(seed, count=3, size=18):
    x, y = table().split("train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [(x[i].double(), y[i]) for i in order[: count * size].split(size)]


@pytest.mark.filterwarnings("error::pyroccam.inference.step.CompileFallback")
@pytest.mark.parametrize(
    ("prior", "options"),
    [
        (priors.GroupNormalJeffreys(), {"scales": "batch"}),
        (priors.GroupHorseshoe(), {}),
        (priors.SpikeSlab(), {}),
        (priors.Normal(learn="layer"), {"guide": guides.VariationalDropout}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_a_traced_step_is_the_eager_step(prior, options):
    """Under one seed, the same noise: losses, likelihoods, parameters."""
    found = []
    for compile in (False, "graph"):
        torch.manual_seed(5)
        (one,) = walk([double_pair(prior=prior, **options)], double_batches(0), compile)
        found.append(one)
    assert_close(*found)
    assert found[0]["losses"].std() > 1e-3


def test_points_together_are_points_apart():
    """Without noise, replicates in common steps are the same fits."""

    def make(seed):
        rows = table(seed=seed)
        return *bayesian(rows, priors.Normal(), guides.Delta, seed=seed), rows

    common = {k: v for k, v in QUICK.items() if k != "seed"}
    found = [
        inference.fit_repeats(make, [0, 1], together=together, **common).fits
        for together in (True, False)
    ]
    assert [fit.engine["replicates"] for fit in found[0]] == [2, 2]
    for mine, theirs in zip(*found, strict=True):
        assert mine.val_nll == pytest.approx(theirs.val_nll, rel=1e-4)
        for name, t in mine.guide.state_dict().items():
            torch.testing.assert_close(t, theirs.guide.state_dict()[name], rtol=1e-3, atol=1e-4)
    assert found[0][0].val_nll != pytest.approx(found[0][1].val_nll, rel=1e-3)


def test_a_step_together_has_the_gradients_of_steps_apart():
    """In distribution: common steps draw from one stream, each replicate its own noise."""
    draws = 40
    pairs = [double_pair(seed, FourScales()) for seed in (0, 0)]
    with torch.no_grad():
        for p in pairs[1][1].parameters():
            p.add_(0.2)
    apart = [copy.deepcopy(one) for one in pairs]
    batches = [double_batches(seed, 1)[0] for seed in (0, 0)]
    x, y = stacked(*[[batch] for batch in batches])[0]
    step = step_of(*pairs)
    step.prepare(x[0], y[0])
    found = []
    for _ in range(draws):
        step.evaluate(x, y)
        found.append(torch.cat([flat.grad for flat in step.flats.values()], 1).clone())
    found = torch.stack(found)
    assert step.fallback is None
    trained = [name.removeprefix("guide.") for name in step.trained]
    for k, (model, guide) in enumerate(apart):
        b = bound(model, guide, max_plate_nesting=1)
        parameters = [dict(guide.named_parameters())[name] for name in trained]
        rows = []
        for _ in range(draws):
            grads = torch.autograd.grad(b(*batches[k]) / step.rows, parameters)
            rows.append(torch.cat([g.flatten() for g in grads]))
        expected = torch.stack(rows)
        assert_same_means(found[:, k], expected)
        assert_same_means(found[:, k] ** 2, expected**2)
    noise = found - found.mean(0)
    one, other = noise[:, 0].flatten(), noise[:, 1].flatten()
    correlation = (one @ other) / (one.norm() * other.norm())
    assert abs(correlation) < 0.3  # not the same noise
    assert noise.std() > 0


def test_repeats_together_learn_what_repeats_apart_learn():
    def make(seed):
        rows = table()
        return *bayesian(rows, priors.Normal(), seed=seed), rows

    common = {k: v for k, v in QUICK.items() if k != "seed"} | {"epochs": 20}
    nll = {}
    for together in (True, False):
        fits = inference.fit_repeats(make, [0, 1], together=together, **common).fits
        nll[together] = torch.tensor([fit.evaluate()["nll"] for fit in fits])
    difference = nll[True].mean() - nll[False].mean()
    assert abs(difference) < 0.1


def test_dropout_is_noise_of_draws_and_not_of_means():
    """Networks with dropout and a point estimate: Monte Carlo dropout."""
    rows = table()
    model, guide = bayesian(rows, priors.Normal(), guides.Delta, noisy_net())
    fit = inference.fit(model, guide, rows, **QUICK)
    x, _ = rows.split("test")
    for noise in ("weights", "activations") if guide.handler else ("weights",):
        drawn = fit.outputs(x, draws=300, noise=noise)
        assert float(drawn.std(0).min()) > 0
    net = inference.mean_network(model, guide)
    with torch.no_grad():
        torch.testing.assert_close(fit.outputs(x, "deterministic")[0], net(x))
        dropout = net[3].train()
        by_hand = torch.stack([net[4](dropout(net[:3](x))) for _ in range(300)])
    assert_same_means(drawn, by_hand)
    assert not any(part.training for part in model.modules())


def test_a_point_is_one_draw_many_times():
    rows = table()
    model, guide = bayesian(rows, priors.Normal(), guides.Delta)
    x, _ = rows.split("test")
    out = draw_outputs(model, guide, x, 3)
    weights = draw_weights(model, guide, 1)
    expected = outputs_of(inference.mean_network(model, guide), weights, x)
    torch.testing.assert_close(out, expected.expand(3, -1, -1))


def test_ways_to_predict():
    rows = table()
    fit = inference.fit(*bayesian(rows, priors.LogUniform()), rows, **QUICK)
    x, y = rows.split("test")
    one = fit.evaluate("test", "stochastic", draws=30)
    out = fit.outputs(x, draws=30)
    log_p = out.log_softmax(-1)[:, torch.arange(len(y)), y]
    assert one["nll"] == pytest.approx(-float(log_p.mean()), rel=1e-5)
    assert one["accuracy"] == pytest.approx(float((out.argmax(-1) == y).double().mean()))
    assert fit.predict(x, "stochastic").shape == (len(x), 2)
    mean = inference.mean_network(fit.model, fit.guide)(x).log_softmax(-1)
    torch.testing.assert_close(fit.predict(x, "deterministic"), mean, check_layout=False)
    with pytest.raises(
        ValueError, match=r"how.*'ensemble', 'stochastic', 'deterministic'; got 'me"
    ):
        fit.outputs(x, "mean")


def test_repeats_together_are_a_deep_ensemble():
    rows = table()
    found = inference.fit_repeats(
        lambda seed: (*bayesian(rows, priors.Normal(), guides.Delta, seed=seed), rows),
        [0, 1, 2],
        **{k: v for k, v in QUICK.items() if k != "seed"},
    )
    x, y = rows.split("test")
    mixed = torch.stack([one.predict(x).exp() for one in found.fits]).mean(0)
    nll = -float(mixed[torch.arange(len(y)), y].log().mean())
    assert found.evaluate()["nll"] == pytest.approx(nll, rel=1e-5)
    assert found.evaluate()["nll"] <= found.spread()["nll"]["mean"] + 1e-9
    elsewhere = table(seed=5)
    odd = inference.fit(*bayesian(elsewhere, priors.Normal(), guides.Delta), elsewhere, **QUICK)
    other = inference.Repeats([found.fits[0], odd], 0.0)
    with pytest.raises(ValueError, match="differ, so their predictions cannot be averaged"):
        other.evaluate()


def test_what_is_tracked_stands_in_the_history(tmp_path):
    rows = table()
    seen = []

    def track(model, guide, data):
        assert not model.training
        seen.append(float(torch.rand(())))
        return {"noise": seen[-1]}

    options = {**QUICK, "epochs": 3, "evaluations": 3}
    plain = inference.fit(*bayesian(rows), rows, **options)
    fit = inference.fit(*bayesian(rows), rows, track=track, out=tmp_path, **options)
    assert [row["noise"] for row in fit.history] == seen
    assert [row["loss"] for row in fit.history] == [row["loss"] for row in plain.history]
    assert (tmp_path / "history.csv").read_text().startswith("epoch,loss,val_nll,noise")
