"""Fits of Bayesian networks: how they step, what they keep, how they predict, what they bound."""

import copy
from functools import partial

import pytest
import torch
from bayesian import QUICK, bayesian, noisy_net
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.elbo import bound
from pyroccam.models import priors
from random_weights import FourScales, assert_same_means, table
from stepping import assert_close, stacked, step_of, walk
from torch import nn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_ways_to_predict():
    rows = table()
    fit = inference.fit(*bayesian(rows, priors.LogUniform(), net=noisy_net()), rows, **QUICK)
    x, y = rows.split("test")
    one = fit.evaluate("test", "stochastic", draws=30)
    out = fit.outputs(x, draws=30)
    log_p = out.log_softmax(-1)[:, torch.arange(len(y)), y]
    assert one["nll"] == pytest.approx(-float(log_p.mean()), rel=1e-5)
    assert one["accuracy"] == pytest.approx(float((out.argmax(-1) == y).double().mean()))
    assert fit.predict(x, "stochastic").shape == (len(x), 2)
    mean = fit.posterior.mean_network()(x).log_softmax(-1)
    torch.testing.assert_close(fit.predict(x, "deterministic"), mean, check_layout=False)
    ways = fit.evaluate_ways(draws=30)
    assert list(ways) == ["stochastic", "deterministic", "ensemble"]
    for how, found in ways.items():
        assert found == pytest.approx(fit.evaluate("test", how, draws=30))
    with pytest.raises(PyroccamError):
        fit.outputs(x, "mean")
    x, y = rows.split("val")  # by the mean network a checkpoint is judged
    log_p = fit.posterior.mean_network()(x).log_softmax(-1).detach()
    assert fit.val_nll == pytest.approx(-float(log_p[torch.arange(len(y)), y].mean()), rel=1e-5)
    assert fit.val_nll != pytest.approx(fit.evaluate("val")["nll"], rel=1e-5)


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


def double_pair(prior, guide=guides.MeanField, **options):
    """Of one layer, which is traced faster: priors and guides are of each layer by itself."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Linear(3, 2)
    model, guide = bayesian(table(), prior, guide, net, **options)
    return model.double(), guide.double()


def double_batches(seed, count=3, size=18):
    x, y = table().split("train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [(x[i].double(), y[i]) for i in order[: count * size].split(size)]


@pytest.mark.filterwarnings("error::pyroccam.inference.training.step.CompileFallback")
@pytest.mark.parametrize(
    ("prior", "options"),
    [
        (priors.GroupNormalJeffreys(), {"scales": "batch"}),
        (priors.GroupHorseshoe(), {}),
        (priors.SpikeSlab(), {}),
        (priors.SharedNormal(), {}),
        (priors.Normal(learn="layer"), {"guide": guides.VariationalDropout}),
        (priors.Integers(0.1), {"guide": partial(guides.Points, by=guides.WholeSteps())}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_a_traced_step_is_the_eager_step(prior, options):
    """Under one seed, the same noise: losses, likelihoods, parameters."""
    found = []
    for compile in (False, "graph"):
        torch.manual_seed(5)
        (one,) = walk([double_pair(prior, **options)], double_batches(0), compile)
        found.append(one)
    assert_close(*found)
    assert found[0]["losses"].std() > 1e-3


def test_a_step_together_has_the_gradients_of_steps_apart():
    """In distribution: common steps draw from one stream, each replicate its own noise."""
    draws = 40
    pairs = [double_pair(FourScales()) for _ in range(2)]
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
    assert abs((one @ other) / (one.norm() * other.norm())) < 0.3  # not the same noise


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_bound_of_a_depth_that_is_summed_out(task):
    """Any number of rows, and any part of them, against the sum over depths by brute force."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 2, generator=generator)
    y = (x[:, 0] > 0).long() if task == "classification" else x.sum(1, keepdim=True) + 1
    rows = data.Dataset.from_tensors(x, y, x[:9], y[:9])
    model = models.LearntDepth.mlp(rows, width=4, max_depth=3, prior=priors.Geometric(0.7))
    for _ in range(20):
        model.stack.outputs(x)  # statistics
    model.eval()
    with torch.no_grad():  # depths that are not far apart, so that several count
        model.stack.head.weight.mul_(0.02)
    for split, count in (("train", None), ("train", 1100), ("train", 7), ("test", None)):
        inputs, targets = (part[:count] for part in rows.split(split))
        with torch.no_grad():
            terms = model.likelihood(model.stack.outputs(inputs)).log_prob(targets).double()
        expected = float((model.log_prior + terms.sum(1)).logsumexp(0))
        guide = guides.Marginal(model)
        found = inference.elbo.evidence(model, guide, rows, split=split, rows=count)
        assert found.elbo == pytest.approx(expected, rel=1e-6)
        assert (found.error, found.kl, found.rows) == (0.0, 0.0, len(inputs))
        bound = inference.elbo.evidence(model, guides.CategoricalDepth(model), rows, split=split)
        assert bound.elbo <= found.elbo or count is not None
