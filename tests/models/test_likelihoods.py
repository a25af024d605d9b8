import math
from types import SimpleNamespace

import pyro.distributions as dist
import pytest
import torch
from pyroccam import models
from pyroccam.data.errors import PyroccamError
from pyroccam.models import Classification, Likelihood, Regression
from pyroccam.models.likelihoods import checked, for_data


def test_classification_log_predictive_by_hand_and_its_sum_over_classes():
    torch.manual_seed(0)
    outputs = torch.randn(3, 5, 4, dtype=torch.float64)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    total = 0.0
    for c in range(4):
        y = torch.full((5,), c)
        got = Classification(4).log_predictive(outputs, weights.log(), y)
        p = [outputs[s, :, c].exp() / outputs[s].exp().sum(-1) for s in range(3)]
        expected = sum(w * one for w, one in zip(weights, p, strict=True)).log()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        total = total + got.exp()
    torch.testing.assert_close(total, torch.ones(5, dtype=torch.float64))


def test_regression_log_predictive_by_hand():
    torch.manual_seed(0)
    likelihood = Regression(2, scale=0.3).double()
    with torch.no_grad():
        likelihood.log_scale += torch.tensor([0.2, -0.4])
    s = likelihood.scale.tolist()
    means = torch.randn(3, 4, 2, dtype=torch.float64)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    y = torch.randn(4, 2, dtype=torch.float64)
    got = likelihood.log_predictive(means, weights.log(), y)
    for n in range(4):
        p = 0.0
        for d in range(3):
            density = float(weights[d])
            for t in range(2):
                z = (float(y[n, t]) - float(means[d, n, t])) / s[t]
                density *= math.exp(-0.5 * z * z) / (s[t] * math.sqrt(2 * math.pi))
            p += density
        assert got[n].item() == pytest.approx(math.log(p), abs=1e-10)


def test_regression_predictive_density_integrates_to_one():
    likelihood = Regression(1, scale=0.2).double()
    means = torch.tensor([-1.0, 0.4, 2.0], dtype=torch.float64).view(3, 1, 1)
    log_weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    grid = torch.linspace(-4, 5, 9001, dtype=torch.float64)
    density = likelihood.log_predictive(means.expand(3, 9001, 1), log_weights, grid[:, None])
    density = density.detach().exp()
    area = torch.trapezoid(density, grid)
    assert float(area) == pytest.approx(1.0, abs=1e-9)
    mean = torch.trapezoid(density * grid, grid)
    assert float(mean) == pytest.approx(-0.2 + 0.2 + 0.6, abs=1e-9)


def test_weights_of_zero_drop_out():
    outputs = torch.randn(2, 3, 4)
    y = torch.tensor([0, 1, 2])
    log_weights = torch.tensor([1.0, 0.0]).log().clamp_min(-1e4)
    got = Classification(4).log_predictive(outputs, log_weights, y)
    torch.testing.assert_close(got, outputs[0].log_softmax(-1)[range(3), y])


def test_regression_scale_starts_where_asked_and_never_falls_below_the_floor():
    likelihood = Regression(2, scale=0.5, floor=1e-2)
    assert likelihood.scale.tolist() == pytest.approx([0.5, 0.5], rel=1e-6)
    with torch.no_grad():
        likelihood.log_scale.fill_(-200.0)
    assert likelihood.scale.tolist() == pytest.approx([1e-2] * 2)
    assert torch.isfinite(likelihood(torch.zeros(1, 2)).log_prob(torch.zeros(1, 2))).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Classification(1),
        lambda: Regression(0),
        lambda: Regression(1, scale=0.1, floor=0.5),
    ],
)
def test_errors(make):
    with pytest.raises(PyroccamError):
        make()


def test_for_data():
    def of(task):
        return for_data(SimpleNamespace(N=5, outputs=3, input_shape=(2,), task=task))

    assert isinstance(of("classification"), Classification)
    assert isinstance(of("regression"), Regression)
    assert of("regression").outputs == 3
    with pytest.raises(PyroccamError):
        of("ranking")


@pytest.mark.parametrize(
    ("likelihood", "shape"),
    [
        (Regression(1), (5,)),  # squeezed: would be broadcast to (5, 5) against targets (5, 1)
        (Regression(3), (5, 1)),
        (Regression(5), (5,)),  # the number fits by chance
        (Classification(3), (5, 4)),
    ],
)
def test_outputs_of_another_shape_are_refused(likelihood, shape):
    with pytest.raises(PyroccamError):
        likelihood(torch.zeros(shape))


class Scaled(Likelihood):
    """A deviation of its own for each row: two outputs for one target."""

    task, outputs = "regression", 2

    def forward(self, outputs):
        return dist.Normal(outputs[..., :1], outputs[..., 1:].exp()).to_event(1)


class Cold(Classification):
    def forward(self, outputs):
        return dist.Categorical(logits=3.0 * outputs)


class Shifted(Regression):
    def forward(self, outputs):
        return dist.Normal(outputs + 1.0, self.scale).to_event(1)


class Coin(Likelihood):
    """One logit for each row: not those of the classes."""

    task, outputs = "classification", 1

    def forward(self, outputs):
        return dist.Bernoulli(logits=outputs[..., 0])


class Ordered(Likelihood):
    task, outputs = "classification", 1

    def forward(self, outputs):
        return dist.Categorical(torch.cat([outputs.sigmoid(), (-outputs).sigmoid()], -1))


def test_what_is_predicted():
    x = torch.randn(4, 3)
    assert torch.equal(Regression(3).predicted(x), x)
    assert torch.equal(Classification(3).predicted(x), x.log_softmax(-1))
    assert torch.equal(Scaled().predicted(x[:, :2]), x[:, :1])
    torch.testing.assert_close(Cold(3).predicted(x), (3.0 * x).log_softmax(-1))
    torch.testing.assert_close(Shifted(3).predicted(x), x + 1.0)
    p = x[:, :1].sigmoid()
    torch.testing.assert_close(Ordered().predicted(x[:, :1]).exp(), torch.cat([p, 1 - p], -1))


def test_a_likelihood_without_a_prediction_says_what_it_lacks():
    class Odd(Scaled):
        task = "classification"

    with pytest.raises(PyroccamError):
        Odd().predicted(torch.zeros(2, 2))
    for rows in (1, 2, 3):
        with pytest.raises(PyroccamError):
            Coin().predicted(torch.zeros(rows, 1))


def test_a_likelihood_of_another_task_is_refused():
    rows = SimpleNamespace(task="regression", outputs=2, N=5, input_shape=(3,))

    class Nameless(Likelihood):
        outputs = 2

    own = Scaled()
    assert checked(own, rows) is own
    assert isinstance(checked(None, rows), Regression)
    for other in (Classification(2), Nameless()):
        with pytest.raises(PyroccamError):
            checked(other, rows)


class _OfSquares(models.likelihoods.Regression):
    def forward(self, outputs):
        return super().forward(outputs.square())


class _OfSquaredLogits(models.likelihoods.Classification):
    def forward(self, outputs):
        return super().forward(outputs.square())


@pytest.mark.parametrize(("like", "logits", "teaches"), [
    (models.likelihoods.Classification(3), True, True), (_OfSquaredLogits(3), False, False),
    (models.likelihoods.Regression(2), False, True), (_OfSquares(2), False, False),
    (models.likelihoods.StudentT(2), False, False), (models.likelihoods.Ordinal(3), False, False),
])  # fmt: skip
def test_only_what_a_likelihood_makes_of_outputs_itself_can_be_taught(like, logits, teaches):
    assert (like.takes_logits, like.teaches) == (logits, teaches)


def test_the_mean_of_predictions_and_what_it_costs_another():
    """Against expected losses of labels that are drawn, and of targets written out."""
    torch.manual_seed(0)
    outputs, own = torch.randn(4, 5, 3), torch.randn(5, 3)
    classes, amounts = models.likelihoods.Classification(3), models.likelihoods.Regression(3)
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
