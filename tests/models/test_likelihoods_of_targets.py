"""Densities against scipy, gradients against differences, predictions against moments."""

import numpy as np
import pytest
import torch
from pyroccam import data, models
from pyroccam.data.errors import PyroccamError
from pyroccam.models.likelihoods import checked, for_data, parse, words
from scipy import stats
from targets import WORDS, made
from torch import nn

ROWS = 6


class Spec:
    """The facts of a data set with three targets, labels or classes."""

    N, outputs, input_shape = ROWS, 3, (2,)

    def __init__(self, task):
        self.task = task


def of(word):
    """A likelihood in double precision, of numbers that it does not begin with."""
    likelihood = parse(word, Spec(words()[word].task)).double()
    torch.manual_seed(1)
    with torch.no_grad():
        for number in (*likelihood.parameters(), *likelihood.buffers()):
            number += 0.3 * torch.randn(number.shape)
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
    elif word == "heteroscedastic":
        sd = np.sqrt(1e-4 + np.exp(f[..., 3:]))
        found = stats.norm.logpdf(t, f[..., :3], sd)
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
def test_gradients_are_those_of_differences(word):
    likelihood = of(word)
    outputs, y = rows(likelihood)
    numbers = [*likelihood.parameters()]

    def density(outputs, *values):
        named = zip([n for n, _ in likelihood.named_parameters()], values, strict=True)
        made_of = torch.func.functional_call(likelihood, dict(named), (outputs,))
        return made_of.log_prob(y).sum()

    given = [outputs.requires_grad_(), *(n.detach().clone().requires_grad_() for n in numbers)]
    assert torch.autograd.gradcheck(density, given)


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


@pytest.mark.parametrize("word", ["heteroscedastic", "student-t"])
def test_what_is_below_a_target_by_scipy(word):
    likelihood = of(word)
    outputs, y = rows(likelihood)
    got = likelihood.below(outputs, y).detach().numpy()
    f = outputs.numpy()
    if word == "student-t":
        scale, df = likelihood.scale.detach().numpy(), likelihood.df.detach().numpy()
        expected = stats.t.cdf(y.numpy(), df, f, scale)
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


def test_a_dispersed_count_has_its_variance():
    likelihood = models.NegativeBinomial(1, rate=[7.0], dispersion=0.5)
    variance = likelihood(torch.zeros(1, 1)).variance
    torch.testing.assert_close(variance, torch.tensor([[7.0 + 0.5 * 49.0]]))


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


def test_words_and_the_outputs_of_networks():
    counts, plain, labels = made("poisson"), made("normal"), made("multi-label")
    assert checked("negative-binomial", counts).outputs == 1
    assert checked("heteroscedastic", plain).outputs == 2
    assert checked("ordinal", made("ordinal")).outputs == 1
    assert for_data(labels).outputs == 3
    model = models.LearntDepth.mlp(plain, width=4, max_depth=1, likelihood="heteroscedastic")
    assert model.components(plain.x_test).shape == (2, 200, 2)
    net = models.BayesianNetwork(
        nn.Linear(2, 1), plain, prior=models.priors.Normal(), likelihood="student-t"
    )
    assert type(net.likelihood) is models.StudentT
    assert net.likelihood.df.tolist() == pytest.approx([8.0])


def test_errors():
    plain = made("normal")
    with pytest.raises(PyroccamError):
        checked("studentt", plain)
    with pytest.raises(PyroccamError):
        checked("poisson", plain)
    for rate in ([0.0], [1.0, 2.0], [float("inf")]):
        with pytest.raises(PyroccamError):
            models.Poisson(1, rate=rate)


@pytest.mark.parametrize(
    ("task", "y", "match"),
    [
        ("counts", [0.0, 1.5, 2.0, 3.0], r"y_train holds 1.5 in row 1 \(1 such"),
        ("counts", [0.0, -1.0, 2.0, 3.0], "y_train holds -1 in row 1"),
        ("multi-label", [0.0, 1.0, 2.0, 1.0], "y_train holds 2 in row 2.*0 or 1 for each label"),
    ],
)
def test_targets_of_another_kind_are_refused(task, y, match):
    x = torch.randn(4, 2)
    with pytest.raises(data.DataError, match=match):
        data.Dataset.from_tensors(x, y, x, y, task=task)


def test_counts_and_labels_stay_as_they_are():
    for word in ("poisson", "multi-label"):
        found = made(word)
        assert found.classes is None
        assert bool((found.y_train == found.y_train.round()).all())
        assert torch.equal(found.y_mean, torch.zeros(found.outputs))
        assert torch.equal(found.y_std, torch.ones(found.outputs))
        other = found.standardised_as(made(word, seed=1))
        assert torch.equal(other.y_test, found.y_test)
    x, y = torch.randn(4, 2), torch.eye(4)
    with pytest.raises(data.DataError):
        data.Dataset.from_tensors(x, y, x, y, task="classification")
