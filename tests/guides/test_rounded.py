"""Whole numbers of a learnt step: what they cost, how they learn, what is left in a file."""

import math

import pytest
import torch
from fitting import blobs
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.elbo import bound
from pyroccam.models import priors
from pyroccam.models.distributions import BlurredLogistics, RoundedPoint
from scipy import stats
from scipy.integrate import quad
from torch import nn
from torch.distributions import kl_divergence

pytestmark = pytest.mark.usefixtures("clean")


def t64(value):
    return torch.tensor(value, dtype=torch.float64)


MIXING, SCALE = (0.7, 0.3), (0.2, 1.7)


def masses(width=1.0):
    """Two components, in double precision."""
    return BlurredLogistics(t64(MIXING).log(), t64(SCALE).log(), t64(width))


def mass(x):
    """The probability by scipy's distribution function; of its upper tail, where that is exact."""
    x = abs(x)
    return sum(
        m * (stats.logistic.sf((x - 0.5) / s) - stats.logistic.sf((x + 0.5) / s))
        for m, s in zip(MIXING, SCALE, strict=True)
    )


# -- what a whole number costs ----------------------------------------------------------------


def test_masses_are_those_of_the_distribution_function_and_sum_to_one():
    fn = masses()
    x = torch.linspace(-60, 60, 481, dtype=torch.float64)
    expected = t64([math.log(mass(float(v))) for v in x])
    torch.testing.assert_close(fn.log_mass(x), expected, rtol=1e-9, atol=1e-9)
    k = torch.arange(-200.0, 201.0, dtype=torch.float64)
    assert float(fn.log_mass(k).exp().sum()) == pytest.approx(1.0, abs=1e-12)
    shifted = fn.log_mass(k + 0.3).exp().sum()  # a convolution with a uniform: on any grid of ones
    assert float(shifted) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("log_scale", [-6.0, 8.0])
def test_masses_of_narrow_and_wide_components_are_finite(log_scale):
    scale = torch.tensor([log_scale], requires_grad=True)
    fn = BlurredLogistics(torch.zeros(1), scale, torch.ones(()))
    at = torch.tensor([0.0, 0.3, 1.0, 40.0], requires_grad=True)
    log_mass = fn.log_mass(at)
    log_mass.sum().backward()
    assert log_mass.isfinite().all()
    assert at.grad.isfinite().all()
    assert scale.grad.isfinite().all()
    if log_scale > 0:  # the density of the logistic, 1 / 4s
        assert log_mass[0].exp().item() == pytest.approx(math.exp(-log_scale) / 4, rel=1e-3)
    else:
        assert log_mass[0].item() == pytest.approx(0.0, abs=1e-6)


def test_draws_round_to_whole_numbers_as_often_as_the_masses_say():
    """By a chi-square test, with a false alarm in 10,000."""
    torch.manual_seed(0)
    fn, n = masses(0.25), 40_000
    drawn = fn.expand([n]).sample() / 0.25
    # A draw lies in (k - ½, k + ½) with the mean of P there.
    cells = [*range(-3, 4)]
    share = [quad(mass, k - 0.5, k + 0.5)[0] for k in cells]
    found = [int(((drawn >= k - 0.5) & (drawn < k + 0.5)).sum()) for k in cells]
    expected = [n * p for p in [*share, 1 - sum(share)]]
    assert stats.chisquare([*found, n - sum(found)], expected).pvalue > 1e-4


def test_the_cost_of_a_rounded_point():
    """With noise its mean is an integral; without, it is that of the whole number, exactly."""
    torch.manual_seed(0)
    p, centre = masses(0.5), t64([0.0, 0.4, 0.6, -3.2])
    exact = kl_divergence(RoundedPoint(centre, t64(0.5), noise=False), p)
    torch.testing.assert_close(exact, t64([-math.log(mass(k)) for k in (0, 0, 1, 3)]))
    n = 20_000
    noisy = kl_divergence(RoundedPoint(centre.expand(n, 4), t64(0.5)), p)
    for column, c in zip(noisy.unbind(1), centre.tolist(), strict=True):
        mean = quad(lambda x: -math.log(mass(x)), c - 0.5, c + 0.5, points=[0.0, 0.5, -0.5])[0]
        error = float(column.std()) / n**0.5
        assert abs(float(column.mean()) - mean) < 4.0 * error + 1e-9


def test_gradients_of_the_cost_are_those_of_differences():
    def cost(log_mixing, log_scale, at):
        torch.manual_seed(1)  # the same noise in every call
        q, p = RoundedPoint(at, t64(1.0)), BlurredLogistics(log_mixing, log_scale, t64(1.0))
        return kl_divergence(q, p).sum()

    parts = (t64(MIXING).log(), t64(SCALE).log(), t64([0.3, -1.2, 5.1]))
    assert torch.autograd.gradcheck(cost, [p.requires_grad_() for p in parts])


def test_a_gradient_passes_the_rounding():
    centre = torch.tensor([0.4, 1.6, -2.5], requires_grad=True)
    q = RoundedPoint(centre, torch.tensor(0.25))
    assert q.rsample().tolist() == [0.0, 0.5, -0.5]
    (q.rsample() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert centre.grad.tolist() == [0.25, 0.5, 0.75]
    assert q.log_prob(torch.tensor([0.0, 0.5, -0.25])).tolist() == [0.0, 0.0, -math.inf]


# -- a pair -----------------------------------------------------------------------------------


def pair(**options):
    torch.manual_seed(0)
    rows = blobs()
    net = nn.Sequential(nn.Linear(2, 40), nn.ReLU(), nn.Linear(40, 3))
    model = models.BayesianNetwork(net, rows, prior=priors.Integers(step=0.1))
    return model, guides.Points(model, by=guides.WholeSteps(**options)), rows


def test_the_bound_is_likelihood_and_length():
    """Without noise: -log p(y | w), the bits of all whole numbers, and the prior of the steps."""
    model, guide, rows = pair(noise=False)
    with torch.no_grad():
        terms = bound(model, guide).terms(*rows.split("train"))
        net = inference.posterior.layers.mean_network(model, guide)
        nll = nn.functional.cross_entropy(net(rows.x_train), rows.y_train, reduction="sum")
        length = 0.0
        for site, (layer, name) in model.sites.items():
            prior, q = layer.latents()[name].prior, guide.posterior(site)
            if name == "step":
                length -= float(prior.log_prob(q.v))
                continue
            length -= float(prior.base_dist.log_mass(q.base_dist.v / prior.base_dist.width).sum())
    assert float(terms.kl) == pytest.approx(length, rel=1e-5)
    assert float(-terms.log_likelihood) == pytest.approx(float(nll), rel=1e-5)


@pytest.fixture(scope="module")
def result():
    model, guide, rows = pair()
    return inference.fit(
        model, guide, rows, epochs=150, lr=0.01, kl_weight=0.05, weight_decay=0.0,
        progress=False, device="cpu", checkpoint="last",
    )  # fmt: skip


def test_the_file_is_the_network_and_as_long_as_was_said(result, tmp_path):
    small = inference.shrink(result)
    again = inference.load(small.save(tmp_path / "small.pocc"))
    x = result.data.x_test
    with torch.no_grad():
        assert torch.equal(again(x), small.net(x))
        mean = result.posterior.mean_network()
        torch.testing.assert_close(again(x), mean(x), rtol=1e-4, atol=1e-5)
    weights = [p for p in again.parameters() if p.dim() == 2]
    for weight, step in zip(weights, result.guide.steps.values(), strict=True):
        whole = weight.double() / torch.tensor(step).double()
        assert (whole - whole.round()).abs().max() < 1e-5
        assert weight.unique().numel() > 2
    assert [t.writing for t in small.size.tensors if "weight" in t.name] == ["multiples"] * 2
    largest = [
        int(w.abs().max().div(s).round())
        for w, s in zip(weights, result.guide.steps.values(), strict=True)
    ]
    assert [b.total for b in small.report.bits.values()] == [n.bit_length() + 1 for n in largest]


def test_a_file_of_what_the_masses_say_is_as_long_as_they_say():
    """Whole numbers drawn from P: -log2 P of them, and 3 % more at most for what is not known of P,
    and for the bytes around them."""
    torch.manual_seed(0)
    fn = masses()
    k = torch.arange(-40, 41)
    drawn = k[torch.multinomial(fn.log_mass(k.double()).exp(), 200 * 300, replacement=True)]
    net = nn.Linear(300, 200, bias=False)
    with torch.no_grad():
        net.weight.copy_(drawn.reshape(200, 300) * torch.tensor(0.0371))
    bits = -float(fn.log_mass(drawn.double()).sum()) / math.log(2)
    size = inference.Small(net).size
    assert size.tensors[0].writing == "multiples"
    assert 0.995 * bits < 8 * size.total < 1.03 * bits


def test_what_does_not_go_together(result):
    other = models.BayesianNetwork(nn.Linear(2, 3), result.data, prior=priors.Normal())
    for ask in (
        lambda: guides.Points(other, by=guides.WholeSteps()),
        lambda: guides.Points(result.model, by=guides.WholeSteps(), begin=result.guide),
        lambda: inference.shrink(result, cut=inference.Search(1)),
        lambda: inference.shrink(result, cut=inference.Thresholds(1.0)),
        lambda: inference.shrink(result, code=inference.Digits("deviation")),
    ):
        with pytest.raises(PyroccamError):
            ask()
