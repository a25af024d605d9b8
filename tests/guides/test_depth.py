"""Guides of depth, against sums over depths."""

import math

import pytest
import torch
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from torch import nn

pytestmark = pytest.mark.usefixtures("clean")


class Data:
    def __init__(self, N, task="classification", outputs=3):
        self.N, self.task, self.outputs, self.input_shape = N, task, outputs, (2,)


def pair(D=3, N=12, task="classification", dtype=torch.float64, **options):
    torch.manual_seed(5)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(D)]
    model = models.LearntDepth(nn.Linear(2, 4), blocks, nn.Linear(4, 3), data=Data(N, task))
    model = model.to(dtype)
    model.log_prior = model.log_prior.log_softmax(0)  # made in float32: normalise in float64
    guide = guides.CategoricalDepth(model, **options).to(dtype)
    with torch.no_grad():
        guide.logits.copy_(torch.randn(D + 1))
    x = torch.randn(N, 2, dtype=dtype)
    y = torch.arange(N) % 3 if task == "classification" else torch.randn(N, 3, dtype=dtype)
    return model, guide, x, y


def brute_force(model, guide, x, y, beta=1.0):
    """``Σ_d q_d (N / B Σ_n log p(y_n | x_n, d)) - β Σ_d q_d log(q_d / p_d)``, depth by depth."""
    q = torch.exp(guide.logits) / torch.exp(guide.logits).sum()
    total = 0.0
    for d in range(len(q)):
        a = model.stack.stem(x)
        for block in list(model.stack.blocks)[:d]:
            a = block(a)
        out = model.stack.head(a)
        if model.likelihood.task == "classification":
            ll = -nn.functional.cross_entropy(out, y, reduction="sum")
        else:
            ll = torch.distributions.Normal(out, model.likelihood.scale).log_prob(y).sum()
        kl = q[d].log() - model.log_prior[d]
        total = total + q[d] * (ll * model.size / len(x) - beta * kl)
    return total


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(("rows", "beta"), [(12, 1.0), (5, 1.0), (4, 0.25), (12, 0.0)])
def test_elbo_equals_the_sum_over_depths(task, rows, beta):
    """So do its gradients."""
    model, guide, x, y = pair(task=task)
    x, y = x[:rows], y[:rows]
    ours = inference.elbo.bound(model, guide)
    ours.kl_weight.fill_(beta)
    expected = brute_force(model, guide, x, y, beta)
    torch.testing.assert_close(-ours(x, y), expected, rtol=1e-10, atol=1e-10)
    if beta == 1.0:
        for more in ({}, {"num_particles": 2, "vectorize_particles": True}):
            plain = TraceEnum_ELBO(max_plate_nesting=1, **more).loss(model, guide, x, y)
            assert -plain == pytest.approx(float(expected.detach()), rel=1e-10)
    weights = list(model.parameters())
    found = torch.autograd.grad(-ours(x, y), [guide.logits, *weights])
    q = guide.probs  # with f_d = N/B Σ log p + β (log p_d - log q_d)
    f = model.log_likelihood(x, y).sum(1).detach() * 12 / rows + beta * (model.log_prior - q.log())
    slopes = [q * (f - (q * f).sum()), *torch.autograd.grad(expected, weights)]
    torch.testing.assert_close([*found], slopes, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_marginal_loss_is_the_evidence(task):
    model, _, x, y = pair(task=task, N=6)
    guide = guides.Marginal(model)
    total = 0.0  # products of probabilities, not sums of logarithms
    table = model.log_likelihood(x, y).detach().exp()
    for d in range(4):
        total += math.exp(float(model.log_prior[d])) * math.prod(table[d].tolist())
    loss = inference.elbo.bound(model, guide)(x, y)
    assert loss.item() == pytest.approx(-math.log(total), rel=1e-9)
    plain = TraceEnum_ELBO(max_plate_nesting=1).loss(config_enumerate(model), guide, x, y)
    assert plain == pytest.approx(-math.log(total), rel=1e-9)
    log_joint = model.log_likelihood(x, y).sum(1) + model.log_prior
    weights = list(model.parameters())
    found = torch.autograd.grad(-loss, weights)
    expected = torch.autograd.grad(torch.logsumexp(log_joint, 0), weights)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-8, atol=1e-10)


def test_a_marginal_refuses_minibatches_and_a_weight_of_the_kl():
    model, _, x, y = pair()
    bound = inference.elbo.bound(model, guides.Marginal(model))
    with pytest.raises(PyroccamError):
        bound(x[:5], y[:5])
    bound.kl_weight.fill_(0.5)
    with pytest.raises(PyroccamError):
        bound(x, y)


def test_the_running_estimate_has_ten_time_constants_before_the_depth_is_settled():
    """exp(-10) of where it began is left; no step is beyond half the way."""
    guide = pair(hold=0.4)[1]
    assert guide.schedule.settled == pytest.approx(0.7)
    assert guide.schedule.step(1000) == pytest.approx(10 / 300)
    assert guide.schedule.step(10) == 0.5
    assert pair(rate=0.2)[1].schedule.step(1000) == 0.2


@pytest.mark.parametrize("held", ["uniform", "prior"])
def test_q_is_held_at_what_was_asked_for(held):
    model = pair()[0]
    guide = guides.CategoricalDepth(model, hold=0.9, held=held)
    begin = model.log_prior.exp() if held == "prior" else torch.full((4,), 0.25).double()
    torch.testing.assert_close(guide.probs, begin)
    assert guide.rebuild(model).arguments() == guide.arguments()
