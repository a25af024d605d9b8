"""Relaxed structure in log space: shapes, what is refused, vertices, and use in torch and Pyro."""

import math

import pytest
import torch
import torch.distributions as td
from pyroccam.data.errors import PyroccamError
from pyroccam.models.distributions.relaxed import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    straight_through,
)
from pyroccam.models.distributions.relaxed_kl import relaxed_categorical_kl
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
    wrong = (0.0, -1.0, math.inf, math.nan)
    zeros, half = torch.zeros(3), torch.full((3,), 0.5)
    given = [((t,), {"logits": zeros}) for one in wrong for t in (one, torch.tensor(one))]
    given += [((torch.ones(1),), {"logits": zeros}), ((1.0,), {}), ((1.0, half, zeros), {})]
    given += [((1.0, torch.tensor([0.5, w])), {}) for w in (0.0, -0.1)]
    for args, named in [*given, ((1.0,), {"logits": torch.tensor([0.5, math.nan])})]:
        with pytest.raises(PyroccamError):
            law(*args, **named)


def test_what_dirichlet_refuses():
    with pytest.raises(ValueError, match="concentration"):
        ExpDirichlet(torch.tensor([1.0, 0.0]))
    for wrong in (torch.ones(()), torch.ones(4, 1)):
        for law in (ExpDirichlet, lambda w: ExpRelaxedCategorical(1.0, w)):
            with pytest.raises(PyroccamError):
                law(wrong)
    with pytest.raises(PyroccamError):
        relaxed_categorical_kl(torch.zeros(3), torch.zeros(2, 4))


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
