"""Relaxed structure in log space: shapes, what is refused, vertices, and use in torch and Pyro."""

import math

import pyro
import pytest
import torch
import torch.distributions as td
from pyro.infer import SVI, TraceMeanField_ELBO
from pyroccam.data.errors import PyroccamError
from pyroccam.models.distributions.relaxed import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    straight_through,
)
from pyroccam.models.distributions.relaxed_kl import relaxed_bernoulli_kl, relaxed_categorical_kl
from relaxed_laws import F64, laws, t
from torch.distributions import kl_divergence
from torch.fx.experimental.proxy_tensor import make_fx


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gate", "dirichlet"])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_shapes_and_wrappers(kind, dtype):
    torch.manual_seed(12)
    law = laws(dtype)[kind]
    event = () if kind in ("bernoulli", "gate") else (3,)
    assert (law.batch_shape, law.event_shape) == ((2,), event)
    wide = law.expand((5, 2))
    value = wide((4,))
    assert value.shape == (4, 5, 2, *event)
    assert value.dtype is dtype
    assert type(wide) is type(law)
    torch.testing.assert_close(wide.log_prob(value), law.log_prob(value))
    assert wide.to_event(1).log_prob(value).shape == (4, 5)
    masked = law.mask(torch.tensor([True, False])).log_prob(value)
    assert torch.equal(masked[..., 0], law.log_prob(value)[..., 0])
    assert not masked[..., 1].any()
    with pytest.raises(ValueError, match="support"):
        wide.log_prob(torch.full_like(value, math.nan))
    assert laws(dtype, validate_args=False)[kind].expand((5, 2))._validate_args is False


def test_values_off_the_simplex():
    for law in (laws()["categorical"], laws()["dirichlet"]):
        for value in (t([0.2, 0.3, 0.5]), t([0.0, -math.inf, -math.inf])):  # γ; a vertex
            with pytest.raises(ValueError, match="support"):
                law.log_prob(value)
        with pytest.raises(NotImplementedError):
            td.biject_to(law.support)


@pytest.mark.parametrize("law", [ExpRelaxedCategorical, LogitRelaxedBernoulli])
def test_what_is_refused(law):
    for wrong in (0.0, -1.0, math.inf, math.nan):
        for temperature in (wrong, torch.tensor(wrong)):
            with pytest.raises(PyroccamError):
                law(temperature, logits=torch.zeros(3))
    with pytest.raises(PyroccamError):
        law(torch.ones(1), logits=torch.zeros(3))
    with pytest.raises(PyroccamError):
        law(1.0)
    with pytest.raises(PyroccamError):
        law(1.0, torch.ones(3) / 2, torch.zeros(3))
    for wrong in (0.0, -0.1):
        with pytest.raises(PyroccamError):
            law(1.0, torch.tensor([0.5, wrong]))
    with pytest.raises(PyroccamError):
        law(1.0, logits=torch.tensor([0.5, math.nan]))


def test_what_dirichlet_refuses():
    with pytest.raises(ValueError, match="concentration"):
        ExpDirichlet(torch.tensor([1.0, 0.0]))
    for wrong in (torch.ones(()), torch.ones(4, 1)):
        for law in (ExpDirichlet, lambda w: ExpRelaxedCategorical(1.0, w)):
            with pytest.raises(PyroccamError):
                law(wrong)


def test_straight_through():
    log_gamma = torch.log_softmax(torch.randn(1000, 3, generator=torch.manual_seed(13)), -1)
    log_gamma.requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5])
    hard = straight_through(log_gamma)
    assert torch.equal(hard.argmax(-1), log_gamma.argmax(-1))
    assert set(hard.flatten().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.sum(-1), torch.ones(1000))
    both = hard, log_gamma.exp()
    found, soft = (torch.autograd.grad((f * weights).sum(), log_gamma)[0] for f in both)
    assert torch.equal(found, soft)


def one_loss(logits, concentration, temperature):
    """Of every law, draw and KL."""
    options = {"temperature": temperature, "validate_args": False}
    q = ExpRelaxedCategorical(logits=logits, **options)
    p = ExpRelaxedCategorical(logits=torch.zeros_like(logits), **options)
    gate, other = (LogitRelaxedBernoulli(logits=w, **options) for w in (logits, 1.0 - logits))
    d = ExpDirichlet(concentration, validate_args=False)
    choice, simplex, bit = q.rsample((2,)), d.expand((2,)).rsample(), gate.rsample()
    loss = (q.log_prob(simplex) - d.log_prob(choice)).mean() + other.log_prob(bit).sum()
    loss = loss + (straight_through(choice) * choice).sum() + bit.sigmoid().sum()
    return loss + kl_divergence(q, p) + kl_divergence(gate, other).sum()


def with_gradients(f):
    def call(*args):
        loss = f(*args)
        return loss, *torch.autograd.grad(loss, args)

    return call


def test_traces_to_a_graph():
    """The loss alone, then differentiated; and both together."""
    args = [t([0.1, 0.7, -1.0]), t([0.3, 1.0, 2.0]), t(0.7)]
    others = [t([1.0, 0.0, 2.0]), t([1.0, 0.1, 0.2]), t(0.2)]
    args, others = ([a.requires_grad_() for a in some] for some in (args, others))
    forward = make_fx(one_loss, pre_dispatch=True)(*args)
    together = make_fx(with_gradients(one_loss))(*args)
    found = []
    for f in (with_gradients(one_loss), with_gradients(forward), together):
        torch.manual_seed(14)
        found.append([value.detach() for value in f(*others)])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_vectorises_with_different_noise_in_each():
    def draws(logits):
        q = ExpRelaxedCategorical(0.5, logits=logits, validate_args=False)
        d = ExpDirichlet(logits.exp(), validate_args=False)
        g = LogitRelaxedBernoulli(0.5, logits=logits, validate_args=False)
        kl = relaxed_categorical_kl(logits, torch.zeros_like(logits))
        return q.rsample(), d.rsample(), g.rsample(), kl

    rows = torch.vmap(draws, randomness="different")(torch.zeros(4, 3))
    for value in rows[:3]:
        assert len(value[:, 0].unique()) == 4
    assert torch.equal(rows[3], torch.zeros(4))


@pytest.mark.parametrize("shared", [True, False])
def test_in_a_model_and_its_guide(shared):
    """Pyro's own ELBO takes the KL where the temperature is one tensor, else a draw's ratio."""
    temperature = torch.tensor(0.5)
    other = temperature if shared else temperature.clone()
    features, y = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0]]), torch.tensor([2.0, 2.0])

    def model(observed):
        with pyro.plate("edges", 2):
            prior = ExpRelaxedCategorical(temperature, probs=torch.ones(3))
            log_gamma = pyro.sample("edge.structure", prior)
        gate = pyro.sample("gate", LogitRelaxedBernoulli(temperature, probs=torch.tensor(0.5)))
        if observed:
            mean = (log_gamma.exp() * features).sum(-1) * gate.sigmoid()
            pyro.sample("y", pyro.distributions.Normal(mean, 0.1).to_event(1), obs=y)

    def guide(observed):
        logits = pyro.param("logits", lambda: torch.tensor([0.5, 0.0, -1.0]))
        odds = pyro.param("odds", lambda: torch.tensor(1.0))
        with pyro.plate("edges", 2):
            pyro.sample("edge.structure", ExpRelaxedCategorical(other, logits=logits))
        pyro.sample("gate", LogitRelaxedBernoulli(other, logits=odds))

    torch.manual_seed(15)
    with pyro.get_param_store().scope(), pyro.validation_enabled():
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), TraceMeanField_ELBO())
        losses = [svi.evaluate_loss(False) for _ in range(3)]
        logits, odds = pyro.param("logits").detach(), pyro.param("odds").detach()
        kl = 2 * relaxed_categorical_kl(logits, torch.zeros(3))
        kl = float(kl + relaxed_bernoulli_kl(odds, torch.zeros(())))
        assert (losses == pytest.approx([kl] * 3)) is shared
        losses = [svi.step(True) for _ in range(60)]
        assert all(map(math.isfinite, losses))
        assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
        assert int(pyro.param("logits").argmax()) == 2
