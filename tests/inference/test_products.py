"""Products in bfloat16: what they round, what they leave, and steps that are made of them."""

import pyro
import pytest
import torch
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference import Settings
from pyroccam.inference.compilation import products
from pyroccam.inference.training import TrainingStep
from random_weights import Rows
from torch import nn
from torch.nn.functional import conv2d

UNIT = 2.0**-8
"""The largest relative error of rounding to bfloat16."""


def rounded(t):
    return t.bfloat16().double()


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


OPERATIONS = {
    "mm": (lambda x, w, b: x @ w, (128, 96), (96, 96)),
    "addmm": (lambda x, w, b: torch.addmm(b[: w.shape[1]], x, w), (128, 96), (96, 96)),
    "bmm": (lambda x, w, b: x @ w, (4, 128, 64), (4, 64, 64)),
    "conv": (lambda x, w, b: conv2d(x, w, b[: len(w)], padding=1), (8, 6, 14, 14), (16, 6, 3, 3)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_large_products_are_those_of_rounded_factors(name):
    """Of results and gradients, against double precision with factors rounded by hand."""
    f, *shapes = OPERATIONS[name]
    torch.manual_seed(0)
    x, w, b, g = drawn(*shapes[0]), drawn(*shapes[1]), drawn(200), None
    for t in (x, w, b):
        t.requires_grad_()
    with products("bf16"):
        out = f(x, w, b)
        g = drawn(*out.shape)
        out.backward(g)
    low = [rounded(t.detach()).requires_grad_() for t in (x, w)]
    bias = b.detach().double().requires_grad_()
    exact = f(*low, bias)
    exact.backward(rounded(g))
    assert out.dtype == x.grad.dtype == w.grad.dtype == torch.float32
    for found, right in ((out, exact), (x.grad, low[0].grad), (w.grad, low[1].grad)):
        # Some processors round parts of a convolution's gradients, too.
        units = 4 if name == "conv" and found is not out else 1
        assert 0 < (found - right).abs().max() <= units * UNIT * right.abs().max()
    if b.grad is not None:  # a sum, of what is not rounded
        bias.grad = None
        f(*low, bias).backward(g.double())
        torch.testing.assert_close(b.grad, bias.grad.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPERATIONS)
def test_small_products_and_other_precisions_are_left(name):
    f, *shapes = OPERATIONS[name]
    torch.manual_seed(0)
    many = [drawn(*shape, dtype=torch.float64) for shape in (*shapes, [200])]
    few = [many[0][:1].float(), many[1][: 1 if name == "bmm" else None].float(), many[2].float()]
    for given in (many, few):
        with products("bf16"):
            found = f(*given)
        assert torch.equal(found, f(*given))


DATA = Rows(64, outputs=3, N=1000, task="classification")


def steps(precision, compile, dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 3)).to(dtype)
    model = models.BayesianNetwork(net, DATA, prior=models.priors.GroupNormalJeffreys()).to(dtype)
    guide = guides.MeanField(model).to(dtype)
    step = TrainingStep([(model, guide)], Settings(lr=1e-3, precision=precision), compile=compile)
    x, y = drawn(128, 64, dtype=dtype), torch.randint(3, (128,))
    with pyro.validation_enabled(False):
        torch.manual_seed(1)
        losses = torch.stack([step(x, y) for _ in range(5)])
    assert step.kind == (compile or "eager")
    row = torch.cat([flat.grad.flatten() for flat in step.flats.values()])
    return losses, row


@pytest.mark.usefixtures("clean")
def test_steps_round_alike_however_they_run():
    """Traced as eager ones do: nearer to them than to full precision."""
    losses, grads = steps("bf16", False)
    exact, exact_grads = steps(None, False)
    apart = (grads - exact_grads).norm() / exact_grads.norm()
    assert 1e-4 < apart < 0.05
    torch.testing.assert_close(losses, exact, rtol=5e-3, atol=0)
    ours, our_grads = steps("bf16", "graph")
    assert ours.dtype == our_grads.dtype == torch.float32
    assert (our_grads - grads).norm() / exact_grads.norm() < 0.2 * apart
    torch.testing.assert_close(ours, losses, rtol=1e-4, atol=0)


@pytest.mark.usefixtures("clean")
def test_a_network_in_double_precision_has_no_products_to_round():
    with pytest.raises(PyroccamError):
        steps("bf16", False, dtype=torch.float64)
