"""What a posterior predicts, as a teacher of smaller networks."""

import dataclasses
import math

import pytest
import torch
from fitting import blobs, fit_weights
from pyroccam.data import Dataset
from pyroccam.inference.posterior.draws import draw_weights
from pyroccam.inference.posterior.predict import validated
from pyroccam.inference.training.ordinary import retrain, row_losses, temperature_of_rows
from pyroccam.inference.training.teacher import FEW, Teacher, may_teach, teacher_of
from pyroccam.models import priors
from torch import nn
from torch.func import functional_call


@pytest.fixture(scope="module")
def fitted():
    return fit_weights(priors.GroupNormalJeffreys(), rows=blobs(n=400), epochs=20)


class Says(nn.Module):
    """The same logits for the same rows, whatever they are."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        assert len(x) == len(self.logits)
        return self.logits


def by_hand(fit, x, draws=400):
    """Probabilities averaged over networks that are drawn one by one, and their standard error."""
    torch.manual_seed(5)
    net, weights = fit.posterior.mean_network(), draw_weights(fit.model, fit.guide, draws)
    each = torch.stack(
        [
            functional_call(net, {n: w[i] for n, w in weights.items()}, (x,)).softmax(-1)
            for i in range(draws)
        ]
    )
    return each.mean(0).detach(), each.std(0).detach()


def test_a_teacher_says_what_draws_say_on_average(fitted):
    teacher = teacher_of(fitted)
    assert teacher is not None
    for found, x in ((teacher.train, fitted.data.x_train), (teacher.val, fitted.data.x_val)):
        torch.testing.assert_close(found.sum(-1), torch.ones(len(x)))
        mean, spread = by_hand(fitted, x)
        # All rows share their 20 and 400 draws: errors of 3 to 4 standard errors are those of all.
        assert ((found - mean).abs() <= 4.5 * spread * (1 / 20 + 1 / 400) ** 0.5 + 1e-3).all()


@pytest.mark.parametrize(("more", "worth"), [(-1e-3, True), (1e-3, False)])
def test_a_rival_of_few_rows_may_be_ahead_by_luck(fitted, more, worth):
    """A rival whose loss on the validation rows lies at the limit, a little to either side."""
    data, k, rows = fitted.data, fitted.data.outputs, FEW - 1
    y = (data.y_train[:rows] + 1) % k  # wrong, so that there is some to lose
    held = dataclasses.replace(data, x_val=data.x_train[:rows], y_val=y)
    fit = dataclasses.replace(fitted, data=held)
    teacher = teacher_of(fit)
    assert not may_teach(teacher, fit, Says(torch.zeros(rows, k)))
    own = nn.functional.nll_loss(teacher.val.log(), y)
    ahead = float(own) - math.log(1000) / (rows + 1) - more
    assert ahead > 0.1
    right = torch.full((rows, k), (1 - math.exp(-ahead)) / (k - 1))
    right[torch.arange(rows), y] = math.exp(-ahead)
    assert (right.argmax(-1) != y).all()  # or else it would win by that
    assert may_teach(teacher, fit, Says(right.log())) == worth


def test_a_posterior_that_gets_rows_wrong_is_no_teacher(fitted):
    """A rival that is no better by its loss, but is right where the posterior is wrong."""
    data, k = fitted.data, fitted.data.outputs
    teacher = teacher_of(fitted)
    says = teacher.val.argmax(-1)
    for wrong, worth in ((2, True), (3, False), (20, False)):  # of 1 + sqrt(2) = 2.4 and so on
        y = says.clone()
        y[:wrong] = (y[:wrong] + 1) % k
        fit = dataclasses.replace(fitted, data=dataclasses.replace(data, y_val=y))
        rival = Says(0.2 * nn.functional.one_hot(y, k))  # right on all rows, not sure of one
        assert may_teach(teacher, fit, rival) == worth, wrong


def test_a_rival_is_judged_as_it_predicts_and_stays_as_it_is(fitted):
    """Sure of what is right, were it not for a dropout of almost everything in training mode."""
    data, k = fitted.data, fitted.data.outputs
    x, y = data.x_train[: FEW - 1], data.y_train[: FEW - 1].clone()
    y[:4] = (y[:4] + 1) % k  # which only the rival knows
    fit = dataclasses.replace(fitted, data=dataclasses.replace(data, x_val=x, y_val=y))
    net = nn.Sequential(Says(90.0 * nn.functional.one_hot(y, k)), nn.Dropout(0.999)).train()
    assert not may_teach(teacher_of(fit), fit, net)
    assert [module.training for module in net] == [True, True]


def a_regression():
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = x[:, :1] + 0.3 * torch.randn(200, 1)
    rows = Dataset.from_tensors(x[:150], y[:150], x[150:], y[150:], val_fraction=0.4)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    return fit_weights(priors.Normal(1.0), net, rows, epochs=40)


@pytest.mark.parametrize(("rows", "factor", "may"), [
    (49, 0.99, False), (49, 1.01, True), (60, 1.09**-0.5, True), (60, 1.11**-0.5, False),
])  # fmt: skip
def test_a_posterior_that_is_near_enough_to_targets_teaches_their_mean(rows, factor, may):
    """A rival with so much of the error of the mean of draws."""
    fit = a_regression()
    data = dataclasses.replace(fit.data, x_val=fit.data.x_val[:rows], y_val=fit.data.y_val[:rows])
    fit = dataclasses.replace(fit, data=data)
    torch.manual_seed(5)
    net, weights = fit.posterior.mean_network(), draw_weights(fit.model, fit.guide, 400)
    teacher = teacher_of(fit)
    for found, x in ((teacher.train, data.x_train), (teacher.val, data.x_val)):
        each = torch.stack(
            [functional_call(net, {n: w[i] for n, w in weights.items()}, (x,)) for i in range(400)]
        ).detach()
        error = 4.5 * each.std(0) * (1 / 20 + 1 / 400) ** 0.5
        assert ((found - each.mean(0)).abs() <= error + 1e-3).all()
    rival = Says(data.y_val + factor * (teacher.val - data.y_val))
    assert may_teach(teacher, fit, rival) == may


def test_many_rows_of_classes_are_asked_what_learning_from_a_posterior_does(fitted):
    data, k = fitted.data, fitted.data.outputs
    sure = 90.0 * nn.functional.one_hot(data.y_train, k)
    for rows, may in ((FEW - 1, False), (FEW, True)):
        y = (data.y_train[:rows] + 1) % k  # which the rival alone knows
        held = dataclasses.replace(data, x_val=data.x_train[:rows], y_val=y)
        fit = dataclasses.replace(fitted, data=held)
        assert may_teach(teacher_of(fit), fit, Says(sure[:rows].roll(1, -1))) == may


def test_other_likelihoods_have_no_teacher():
    torch.manual_seed(0)
    x = torch.randn(100, 2)
    y = x[:, :1].exp().round()
    rows = Dataset.from_tensors(x[:80], y[:80], x[80:], y[80:], val_fraction=0.2, task="counts")
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    fit = fit_weights(priors.Normal(1.0), net, rows, epochs=1)
    assert teacher_of(fit) is None


def test_a_constant_ends_halfway_between_targets_and_what_is_taught():
    fit = a_regression()
    data = fit.data
    teacher = Teacher(torch.full_like(data.y_train, 2.0), torch.full_like(data.y_val, 2.0))
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    found = retrain(net, fit, 200, (3e-2,), teacher)
    halfway = (float(data.y_train.mean()) + 2.0) / 2
    assert float(found.net.bias.detach()) == pytest.approx(halfway, abs=0.03)
    own = validated(fit.model.likelihood, found.net, data)
    says = own(found.net(data.x_val))
    expected = -0.5 * (says.log_prob(data.y_val) + says.log_prob(teacher.val)).detach()
    torch.testing.assert_close(row_losses(found.net, fit, teacher), expected.double())


def test_half_of_the_loss_is_the_teachers(fitted):
    """A network that only has biases ends halfway between the labels' shares and the teacher."""
    data, k = fitted.data, fitted.data.outputs
    says = torch.linspace(1, 3, k).softmax(0)
    teacher = Teacher(says.expand(len(data.x_train), k), says.expand(len(data.x_val), k))
    net = nn.Linear(data.x_train.shape[1], k)
    with torch.no_grad():
        net.weight.zero_()  # what is zero stays zero
        net.bias.zero_()
    found = retrain(net, fitted, 60, (3e-2,), teacher)
    shares = data.y_train.bincount(minlength=k) / len(data.y_train)
    halfway = (shares + says) / 2
    torch.testing.assert_close(found.net.bias.softmax(0).detach(), halfway, atol=0.02, rtol=0)
    logits = found.net(data.x_val).detach()
    log_p = (logits / max(1.0, temperature_of_rows(logits, data.y_val))).log_softmax(-1)
    labels = nn.functional.nll_loss(log_p, data.y_val, reduction="none")
    expected = 0.5 * labels - 0.5 * (says * log_p).sum(-1)
    torch.testing.assert_close(row_losses(found.net, fitted, teacher), expected.double())
    torch.testing.assert_close(found.losses, expected.double())
