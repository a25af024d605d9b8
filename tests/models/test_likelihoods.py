"""Densities against scipy, predictions against moments."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyroccam import models
from pyroccam.data import PyroccamError
from pyroccam.models import Classification, Likelihood, Regression
from pyroccam.models.likelihoods import Embedding, checked, for_data, parse, words
from scipy import stats
from targets import WORDS, made
from torch import nn

ROWS = 6


class Spec:
    """The facts of a data set with three targets, labels or classes."""

    N, outputs, input_shape = ROWS, 3, (2,)

    def __init__(self, task):
        self.task = task


class Scaled(Likelihood):
    """A deviation of its own for each row: two outputs for one target."""

    task, outputs = "regression", 2

    def forward(self, outputs):
        return dist.Normal(outputs[..., :1], outputs[..., 1:].exp()).to_event(1)


class Odd(Scaled):
    task = "classification"


class Cold(Classification):
    def forward(self, outputs):
        return dist.Categorical(logits=3.0 * outputs)


class Squares(Regression):
    def forward(self, outputs):
        return super().forward(outputs.square())


class Coin(Likelihood):
    """One logit for each row: not those of the classes."""

    task, outputs = "classification", 1

    def forward(self, outputs):
        return dist.Bernoulli(logits=outputs[..., 0])


def of(word):
    """A likelihood in double precision, of numbers that it does not begin with."""
    likelihood = parse(word, Spec(words()[word].task)).double().eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for number in (*likelihood.parameters(), *likelihood.buffers()):
            number += 0.3 * torch.randn(number.shape)
        if word == "closed-form":  # of no rows yet, of which there is no mean
            likelihood.df.fill_(7.5)
    return likelihood


def rows(likelihood, seed=0):
    """Outputs ``(2, ROWS, outputs)``, and targets that are drawn."""
    torch.manual_seed(seed)
    outputs = torch.randn(2, ROWS, likelihood.outputs, dtype=torch.float64)
    with torch.no_grad():
        return outputs, likelihood(outputs[0]).sample()


def by_scipy(word, likelihood, outputs, y):
    """Log density of each row, ``(2, ROWS)``."""
    f, t = outputs.numpy(), y.numpy()
    own = {n: p.detach().numpy() for n, p in likelihood.named_parameters()}
    if word == "normal":
        found = stats.norm.logpdf(t, f, 1e-3 + np.exp(own["log_scale"]))
    elif word == "student-t":
        nu = 2 + 98 / (1 + np.exp(-own["logit_df"]))
        found = stats.t.logpdf(t, nu, f, 1e-3 + np.exp(own["log_scale"]))
    elif word == "closed-form":
        found = stats.t.logpdf(t, 7.5, f[..., :3], np.exp(0.5 * f[..., 3:]))
    elif word == "heteroscedastic":
        sd = np.sqrt(1e-4 + np.exp(f[..., 3:]))
        found = stats.norm.logpdf(t, f[..., :3], sd)
    elif word == "embedding":
        found = stats.norm.logpdf(t, f / np.sqrt((f**2).sum(-1, keepdims=True)), 1)
    elif word == "poisson":
        found = stats.poisson.logpmf(t, np.exp(f) * np.exp(likelihood.log_rate.numpy()))
    elif word == "negative-binomial":
        mean = np.exp(f) * np.exp(likelihood.log_rate.numpy())
        r = 1 / (1e-3 + np.exp(own["log_dispersion"]))
        found = stats.nbinom.logpmf(t, r, r / (r + mean))
    elif word == "multi-label":
        found = stats.bernoulli.logpmf(t, 1 / (1 + np.exp(-f)))
    elif word == "ordinal":
        cuts = np.cumsum([own["first"], *np.exp(own["log_gaps"])])
        edges = np.array([-np.inf, *cuts, np.inf])
        p = stats.logistic.cdf(edges[t + 1] - f[..., 0]) - stats.logistic.cdf(edges[t] - f[..., 0])
        return np.log(p)
    else:
        p = np.exp(f) / np.exp(f).sum(-1, keepdims=True)
        return np.log(np.take_along_axis(p, t[None, :, None].repeat(2, 0), -1)[..., 0])
    return found.sum(-1)


def test_every_likelihood_with_a_word_is_looked_at_here():
    assert {*WORDS} == {*words()}


@pytest.mark.parametrize("word", WORDS)
def test_densities_are_those_of_scipy(word):
    likelihood = of(word)
    outputs, y = rows(likelihood)
    got = likelihood(outputs).log_prob(y).detach().numpy()
    np.testing.assert_allclose(got, by_scipy(word, likelihood, outputs, y), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("word", WORDS)
def test_what_is_predicted_is_the_mean_of_draws(word):
    likelihood = of(word)
    outputs, _ = rows(likelihood)
    torch.manual_seed(2)
    with torch.no_grad():
        drawn = likelihood(outputs[0]).sample((20_000,))
        predicted = likelihood.predicted(outputs[0])
        if likelihood.task == "classification":
            drawn, predicted = nn.functional.one_hot(drawn, 3), predicted.exp()
    error = drawn.double().std(0) / len(drawn) ** 0.5
    assert float(((drawn.double().mean(0) - predicted).abs() / (error + 1e-9)).max()) < 5


@pytest.mark.parametrize("word", ["heteroscedastic", "student-t", "closed-form"])
def test_what_is_below_a_target_by_scipy(word):
    likelihood = of(word)
    outputs, y = rows(likelihood)
    got = likelihood.below(outputs, y).detach().numpy()
    f = outputs.numpy()
    if word == "student-t":
        scale, df = likelihood.scale.detach().numpy(), likelihood.df.detach().numpy()
        expected = stats.t.cdf(y.numpy(), df, f, scale)
    elif word == "closed-form":
        expected = stats.t.cdf(y.numpy(), 7.5, f[..., :3], np.exp(0.5 * f[..., 3:]))
    else:
        expected = stats.norm.cdf(y.numpy(), f[..., :3], np.sqrt(1e-4 + np.exp(f[..., 3:])))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-12)


def test_ordinal_keeps_small_probabilities_and_the_order_of_its_cuts():
    likelihood = models.Ordinal(4)
    with torch.no_grad():
        equal = likelihood.predicted(torch.zeros(1, 1)).exp()
        torch.testing.assert_close(equal, torch.full((1, 4), 0.25))
        likelihood.log_gaps.copy_(torch.tensor([-9.0, 1.0]))
        assert bool((likelihood.cuts.diff() > 0).all())
        far = likelihood.predicted(torch.tensor([[80.0], [-80.0]]))
        assert bool(far.isfinite().all())
        # Near the cuts by hand; a difference of single-precision sigmoids is off by a tenth there.
        a, b = likelihood.cuts[:2].double()
        near = likelihood.predicted(torch.tensor([[3.0]]))[0, 1].double()
        gap = torch.tensor(-9.0).double().exp()
        p = torch.sigmoid(a - 3.0) * torch.sigmoid(3.0 - a) * gap
        assert b > a
        assert float(near) == pytest.approx(float(p.log()), abs=1e-3)


def test_counts_begin_at_the_mean_of_the_training_targets():
    counts = made("poisson")
    likelihood = for_data(counts)
    assert type(likelihood) is models.Poisson
    mean = likelihood.predicted(torch.zeros(5, 1))
    torch.testing.assert_close(mean, counts.y_train.mean(0).expand(5, 1), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("word", ["student-t", "negative-binomial"])
def test_single_precision_holds_where_a_limit_is_near(word):
    """Gamma functions of large numbers, which cancel: all but normal errors, all but Poisson."""
    likelihood = parse(word, Spec(words()[word].task))
    with torch.no_grad():
        getattr(likelihood, likelihood.noise[-1]).fill_(20.0 if word == "student-t" else -20.0)
    torch.manual_seed(0)
    outputs = torch.randn(ROWS, 3)
    with torch.no_grad():
        y = likelihood(outputs).sample()
        found = likelihood(outputs).log_prob(y).double()
        exact = likelihood.double()(outputs.double()).log_prob(y.double())
        limit = "normal" if word == "student-t" else "poisson"
        other = parse(limit, Spec(words()[limit].task)).double()(outputs.double())
    torch.testing.assert_close(found, exact, atol=1e-2, rtol=0.0)
    torch.testing.assert_close(exact, other.log_prob(y.double()), atol=0.2, rtol=0.0)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: Regression(1, scale=0.1, floor=0.5),
        lambda: for_data(Spec("ranking")),
        lambda: checked("studentt", Spec("regression")),
        lambda: checked("poisson", Spec("regression")),
        lambda: checked(Classification(2), Spec("regression")),
        *(lambda r=r: models.Poisson(1, rate=r) for r in ([0.0], [1.0, 2.0], [float("inf")])),
        # Outputs that would be broadcast, or fit by chance.
        lambda: Regression(1)(torch.zeros(5)),
        lambda: Classification(3)(torch.zeros(5, 4)),
        # Predictions that it lacks, or of another shape.
        lambda: Odd().predicted(torch.zeros(2, 2)),
        *(lambda n=n: Coin().predicted(torch.zeros(n, 1)) for n in (1, 2, 3)),
    ],
)
def test_what_is_refused(refused):
    with pytest.raises(PyroccamError):
        refused()


def test_mixtures_and_weights_of_zero():
    outputs, y = torch.randn(3, 5, 4), torch.arange(5) % 4
    weights = torch.tensor([0.2, 0.8, 0.0])
    got = Classification(4).log_predictive(outputs, weights.log().clamp_min(-1e4), y)
    p = sum(w * one.softmax(-1) for w, one in zip(weights, outputs, strict=True))
    torch.testing.assert_close(got, p[torch.arange(5), y].log())


def test_regression_scale_starts_where_asked_and_never_falls_below_the_floor():
    likelihood = Regression(2, scale=0.5, floor=1e-2)
    assert likelihood.scale.tolist() == pytest.approx([0.5, 0.5], rel=1e-6)
    with torch.no_grad():
        likelihood.log_scale.fill_(-200.0)
    assert likelihood.scale.tolist() == pytest.approx([1e-2] * 2)
    assert torch.isfinite(likelihood(torch.zeros(1, 2)).log_prob(torch.zeros(1, 2))).all()


@pytest.mark.parametrize(
    ("like", "logits", "teaches"),
    [
        (Classification(3), True, True),
        (Cold(3), False, False),
        (Regression(2), False, True),
        (Squares(2), False, False),
        (models.StudentT(2), False, False),
        (models.Ordinal(3), False, False),
        (Embedding(2), False, True),
    ],
)
def test_only_what_a_likelihood_makes_of_outputs_itself_can_be_taught(like, logits, teaches):
    assert (like.takes_logits, like.teaches) == (logits, teaches)


def test_the_mean_of_predictions_and_what_it_costs_another():
    """Against expected losses of labels that are drawn, and of targets written out."""
    torch.manual_seed(0)
    outputs, own = torch.randn(4, 5, 3), torch.randn(5, 3)
    classes, amounts = Classification(3), Regression(3)
    mean = classes.mean_prediction(outputs)
    each = torch.stack([torch.distributions.Categorical(logits=o).probs for o in outputs])
    torch.testing.assert_close(mean, each.sum(0) / 4)
    loss = sum(-mean[:, k] * classes(own).log_prob(torch.full((5,), k)) for k in range(3))
    torch.testing.assert_close(classes.losses_of(own, mean), loss)
    mean = amounts.mean_prediction(outputs)
    torch.testing.assert_close(mean, outputs.sum(0) / 4)
    sd = float(amounts.scale.detach()[0])
    loss = (0.5 * ((own - mean) / sd) ** 2 + math.log(sd) + 0.5 * math.log(2 * math.pi)).sum(-1)
    torch.testing.assert_close(amounts.losses_of(own, mean).detach(), loss)
    turned = torch.tensor([0.1, 0.3, 1.1])  # whose mean is 0.5, but not that of their directions
    mean = Embedding(2).mean_prediction(torch.stack([turned.cos(), turned.sin()], -1)[:, None] * 7)
    x, y = turned.cos().sum(), turned.sin().sum()
    torch.testing.assert_close(mean, torch.stack([x, y])[None] / torch.hypot(x, y))
    losses = Embedding(2).losses_of(torch.tensor([[3.0, 0.0]]), mean)  # a nat is 1 less a cosine
    torch.testing.assert_close(losses, 1 - mean[:, 0] + math.log(2 * math.pi))
