"""Fits of every likelihood, and what comes after them."""

import math

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference import diagnostics
from pyroccam.inference.posterior import exact_depth_posterior, score_classes, score_targets
from pyroccam.inference.posterior.metrics import label_metrics
from pyroccam.inference.training import Settings
from scipy import optimize, stats
from sklearn import metrics
from targets import WORDS, made
from torch import nn

QUICK = {"progress": False, "device": "cpu"}
OTHERS = [word for word in WORDS if word not in ("normal", "categorical")]


def depth(data, word, seed=0, **more):
    torch.manual_seed(seed)
    model = models.LearntDepth.mlp(data, width=6, max_depth=2, likelihood=word)
    return model, guides.CategoricalDepth(model, **more)


def bayes(data, word):
    torch.manual_seed(0)
    outputs = models.likelihoods.checked(word, data).outputs
    net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, outputs))
    prior = models.priors.GroupNormalJeffreys()
    model = models.BayesianNetwork(net, data, prior=prior, likelihood=word)
    return model, guides.MeanField(model)


@pytest.mark.parametrize("word", ["student-t", "negative-binomial", "ordinal", "multi-label"])
def test_a_step_as_a_graph_is_the_eager_one(word):
    data = made(word)
    settings, losses = Settings.of({"lr": 0.01, "seed": 0}), []
    for compile in (False, "graph"):
        step = inference.TrainingStep([depth(data, word)], settings, compile=compile)
        torch.manual_seed(1)
        losses.append([float(step(data.x_train, data.y_train)) for _ in range(4)])
        assert step.describe()["kind"] == (compile or "eager")
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("word", OTHERS)
def test_depth_in_closed_form_and_everything_after_it(word, tmp_path):
    data = made(word)
    fit = inference.fit(
        *depth(data, word), data, epochs=10, batch_size=64, lr=0.01, seed=0, **QUICK
    )
    exact = exact_depth_posterior(fit.model, data)
    torch.testing.assert_close(fit.weights.double(), exact, atol=1e-4, rtol=1e-3)
    small = inference.shrink(fit).net
    inference.Small(small).save(tmp_path)
    again = inference.load(tmp_path)
    assert torch.equal(again(data.x_test), small(data.x_test))
    assert small.description["likelihood"] == type(fit.model.likelihood).__name__
    from pyroccam.inference.posterior.predict import evaluate_pruned

    scores = evaluate_pruned(again, *data.split("test"), data.y_std)
    assert scores["nll"] == pytest.approx(fit.evaluate()["nll"], abs=0.3)
    groups = fit.to_arviz(10)
    drawn = torch.as_tensor(groups.posterior_predictive["y"].values[0])
    assert drawn.shape[1:] == groups.observed_data["y"].shape
    assert data.task not in ("counts", "multi-label") or bool((drawn == drawn.round()).all())


@pytest.mark.parametrize("word", ["heteroscedastic", "ordinal"])
def test_random_weights_are_narrowed_and_compressed(word):
    data = made(word)
    fit = inference.fit(
        *bayes(data, word), data, epochs=10, batch_size=64, lr=0.01, seed=0, **QUICK
    )
    model, _ = inference.narrow(fit)
    assert type(model.likelihood) is type(fit.model.likelihood)
    small = inference.shrink(fit)
    assert small.net(data.x_test).shape == (200, model.likelihood.outputs)
    assert math.isfinite(diagnostics.loo(fit, draws=50).elpd)
    assert diagnostics.elpd(fit, draws=20).gain > 0  # more than the targets alone would say


@pytest.mark.parametrize("word", ["student-t", "negative-binomial"])
def test_noise_of_validation_rows_by_scipy(word):
    from pyroccam.models.likelihoods.noise import noise_of_rows

    likelihood = models.likelihoods.parse(word, made(word)).double()
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(1, 200, 1, generator=generator).double()
    torch.manual_seed(0)
    if word == "student-t":
        y = outputs[0] + 0.4 * torch.distributions.StudentT(4.0).sample((200, 1)).double()

        def loss(v):
            log_scale, nu = v[0], 2 + 98 / (1 + math.exp(-v[1]))
            sigma = 1e-3 + math.exp(log_scale)
            terms = stats.t.logpdf(y, nu, outputs[0], sigma)
            return -terms.sum() - 2 * math.log(sigma)
    else:
        mean = likelihood.predicted(outputs[0]).detach()
        y = torch.poisson(mean * torch.distributions.Gamma(2.0, 2.0).sample((200, 1)))

        def loss(v):
            r = 1 / (1e-3 + math.exp(v[0]))
            return -stats.nbinom.logpmf(y, r, r / (r + mean)).sum()

    start = [-1.0, -2.0] if word == "student-t" else [-1.0]
    best = optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-6})
    found = noise_of_rows(likelihood, outputs, torch.ones(1), y)
    assert [float(v) for v in found.values()] == pytest.approx(best.x.tolist(), abs=1e-3)


def test_label_metrics_are_those_of_scikit_learn():
    torch.manual_seed(0)
    p, y = torch.rand(40, 3), (torch.rand(40, 3) < 0.3).long()
    y[:, 2] = 0  # of which there is no row: no curve, and an F1 of nothing
    found = label_metrics(p, y)
    assert found["accuracy"] == pytest.approx(float(((p > 0.5).long() == y).double().mean()))
    auroc = [metrics.roc_auc_score(y[:, k], p[:, k]) for k in range(2)]
    assert found["auroc"] == pytest.approx(sum(auroc) / 2, abs=1e-6)
    f1 = metrics.f1_score(y, p > 0.5, average="macro", zero_division=0)
    assert found["f1"] == pytest.approx(f1, abs=1e-6)
    assert "auroc" not in label_metrics(p, torch.zeros_like(y))
    with pytest.raises(PyroccamError):
        label_metrics(p - 1.0 - p.min(), y)
    with pytest.raises(PyroccamError):
        label_metrics(p, y[:, :2])


def test_scores_of_counts_and_ranks_by_hand():
    mean, y = torch.tensor([[2.0], [5.0]]), torch.tensor([[0.0], [7.0]])
    found = score_targets(models.Poisson(1), mean, torch.tensor([-1.0, -3.0]), y)
    assert found["deviance"] == pytest.approx(
        metrics.mean_poisson_deviance(y[:, 0], mean[:, 0]), rel=1e-6
    )
    assert (found["mae"], found["nll"]) == (2.0, 2.0)
    p = torch.tensor([[0.4, 0.3, 0.3], [0.6, 0.2, 0.2]]).log()
    found = score_classes(models.Ordinal(3), p, torch.tensor([0, 2]))
    assert found["rank_mae"] == pytest.approx(1.5)  # medians 1 and 0
    assert found["accuracy"] == 0.5
