"""Operations that a graph has in another form: the same values, and noise that can be mapped."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyroccam.inference.compilation import fusion as written_out
from scipy.stats import norm as normal
from torch.fx.experimental.proxy_tensor import make_fx

FALSE_ALARM = 1e-6  # of every statistical test here, were it run with another seed


@pytest.mark.parametrize("shape", [(7, 3), (5, 3, 4), (5, 3, 2, 4)], ids=len)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("training", "tracked"), [(True, True), (True, False), (False, True)])
def test_batch_normalisation_written_out(shape, affine, training, tracked):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(shape, dtype=torch.float64)
    found = []
    for f in (written_out._batch_norm, torch.batch_norm):
        torch.manual_seed(1)
        weight = torch.randn(3, dtype=torch.float64, requires_grad=True) if affine else None
        bias = torch.randn(3, dtype=torch.float64, requires_grad=True) if affine else None
        mean = torch.randn(3, dtype=torch.float64) if tracked else None
        var = torch.rand(3, dtype=torch.float64) if tracked else None
        out = f(x, weight, bias, mean, var, training, 0.3, 1e-3, False)
        inputs = [x, weight, bias] if affine else [x]
        found.append([out, mean, var, *torch.autograd.grad((out * upstream).sum(), inputs)])
    for mine, theirs in zip(*found, strict=True):
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


N = 40_000
NOISE = {  # drawn, mean, variance
    "normal_": (lambda: torch.empty(N).normal_(2.0, 3.0), 2.0, 9.0),
    "randn": (lambda: torch.randn(N), 0.0, 1.0),
    "uniform_": (lambda: torch.empty(N).uniform_(-1.0, 3.0), 1.0, 16 / 12),
    "exponential_": (lambda: torch.empty(N).exponential_(0.5), 2.0, 4.0),
    "bernoulli_": (lambda: torch.empty(N).bernoulli_(0.3), 0.3, 0.21),
    "through a view": (lambda: torch.empty(2, N // 2).view(-1).normal_(), 0.0, 1.0),
    "dropout": (lambda: F.dropout(torch.ones(N), 0.2), 1.0, 0.25),
    "pyro": (lambda: dist.LogNormal(torch.zeros(N), 0.25).rsample().log(), 0.0, 0.0625),
}


@pytest.mark.parametrize("name", NOISE)
def test_noise_has_its_distribution_in_every_replicate(name):
    """Mean, and mean square deviation from it, of N draws: normal for an N this large. Replicates
    are independent: the correlation of two is normal with variance 1 / N."""
    draw, mean, variance = NOISE[name]
    torch.manual_seed(0)
    with pyro.validation_enabled(False):
        graph = written_out.differentiable(make_fx(draw, pre_dispatch=True)(), True)
    found = torch.vmap(lambda _: graph(), randomness="different")(torch.zeros(3)).double()
    threshold = float(normal.isf(FALSE_ALARM / 18))  # 9 two-sided tests
    centred = found - mean
    fourth = float(centred.pow(4).mean())
    for k in range(3):
        assert abs(float(centred[k].mean())) < threshold * (variance / N) ** 0.5
        spread = ((fourth - variance**2) / N) ** 0.5
        assert abs(float(centred[k].square().mean()) - variance) < threshold * spread + 1e-12
    correlation = (centred @ centred.T) / N / variance
    assert float((correlation - torch.diag(correlation.diag())).abs().max()) < threshold / N**0.5


def test_an_exponential_is_never_zero(monkeypatch):
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    assert float(written_out._exponential_(torch.empty(3)).log().min()) > -100


def test_noise_in_a_part_of_a_tensor_stays_there():
    def draw(x):
        out = torch.zeros_like(x)
        out[0].normal_()
        return x + out

    x = torch.zeros(2, 50)
    graph = make_fx(draw, pre_dispatch=True)(x)
    out = written_out.differentiable(graph, True)(x)
    assert bool((out[0] != 0).all())
    assert not bool(out[1].any())


def test_edges_of_dropout():
    x = torch.ones(5)
    assert torch.equal(written_out._dropout(x, 0.0, True), x)
    assert torch.equal(written_out._dropout(x, 0.4, False), x)
    assert not written_out._dropout(x, 1.0, True).any()
