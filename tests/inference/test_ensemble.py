import pyro.distributions as dist
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import EnsembleNetwork, members
from pyroccam.inference.posterior.ensemble import components
from pyroccam.models import priors, seeded
from random_weights import small_net, table
from torch import nn

SETTINGS = {"epochs": 2, "batch_size": 32, "lr": 0.02, "compile": False, "progress": False}
DATA = table()
X = DATA.x_test
DROPOUT = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))


def fitted(net=None, guide=guides.MeanField, data=DATA, likelihood=None, **options):
    net, given = net or small_net(seed=0), {"prior": priors.Normal(1.0), "likelihood": likelihood}
    model = models.BayesianNetwork(net, data, **given)
    return inference.fit(model, guide(model, **options), data, seed=0, device="cpu", **SETTINGS)


@pytest.fixture(scope="module")
def normal():
    fit = fitted(scale=0.5)
    with torch.no_grad():  # far from certain, so that the draws differ
        for name, p in fit.guide.named_parameters():
            if name.endswith("log_scale"):
                p.fill_(-0.5)
    return fit


@pytest.fixture(scope="module")
def dropout():
    return fitted(DROPOUT, guides.Delta)


@pytest.fixture(scope="module")
def points():
    def make(seed):
        model = models.BayesianNetwork(small_net(seed=seed), DATA, prior=priors.Normal(1.0))
        return model, guides.Delta(model), DATA

    return inference.fit_repeats(make, (0, 1, 2), together=False, device="cpu", **SETTINGS)


def averaged(logits):
    """Probabilities of each draw by hand, and their mean."""
    return logits.double().exp().div(logits.double().exp().sum(-1, keepdim=True)).mean(0)


def drawn(fit, count, seed):
    """Weights of each draw, by hand."""
    for one in torch.randint(2**62, (count,), generator=torch.Generator().manual_seed(seed)):
        with seeded(one.item(), X.device), torch.no_grad():
            yield {site: fit.guide.posterior(site).sample() for site in fit.guide.sites}


def test_drawn_weights_are_averaged_by_their_probabilities(normal):
    logits = torch.stack([
        torch.tanh(X @ w["0.weight"].T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"]
        for w in drawn(normal, 7, seed=3)
    ])  # fmt: skip
    found = EnsembleNetwork(normal, draws=7, seed=3)(X)
    assert found.dtype == torch.float64
    assert logits.std(0).mean() > 0.1  # they do differ
    torch.testing.assert_close(found.exp(), averaged(logits), atol=1e-6, rtol=1e-5)


def test_a_deep_ensemble_averages_its_members(normal, points):
    logits = torch.stack([f.posterior.mean_network()(X) for f in points.fits])
    for fits in (points, points.fits):
        probs = EnsembleNetwork(fits)(X).exp()
        torch.testing.assert_close(probs, averaged(logits), atol=1e-6, rtol=1e-5)
    outputs, weights = components(points, X)
    torch.testing.assert_close(outputs, logits)  # one pass each, not twenty
    torch.testing.assert_close(weights, torch.full((3,), 1 / 3))
    both = EnsembleNetwork([normal, points.fits[0]], draws=4, seed=1)
    assert both._shares == pytest.approx([0.125] * 4 + [0.5])


@pytest.mark.parametrize("kind", ["activations", "dropout", "ensemble"])
def test_gradients_in_the_inputs_by_finite_differences(kind, request, monkeypatch):
    monkeypatch.setattr("pyroccam.inference.posterior.ensemble.AT_ONCE", 2)
    noise = "activations" if kind == "activations" else "weights"
    name = {"activations": "normal", "ensemble": "points"}.get(kind, kind)
    fits = request.getfixturevalue(name)
    ensemble = EnsembleNetwork(fits, draws=5, noise=noise, seed=0).double()
    x = X[:3].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ensemble(x).exp(), x)
    assert float(torch.autograd.grad(ensemble(x)[:, 0].sum(), x)[0].abs().max()) > 1e-3
    assert all(p.grad is None for fit in members(fits) for p in fit.guide.parameters())


def test_fresh_draws_by_default_and_the_same_with_a_seed(normal, dropout):
    for fit in (normal, dropout):
        fresh = EnsembleNetwork(fit, draws=2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            one, other = fresh(X), fresh(X)
            torch.manual_seed(0)
            torch.testing.assert_close(fresh(X), one)  # from torch's generator
        assert not torch.allclose(one, other)
        fixed = EnsembleNetwork(fit, draws=2, seed=0)
        state = torch.get_rng_state()
        assert torch.equal(fixed(X), fixed(X))
        assert torch.equal(torch.get_rng_state(), state)
    fixed = EnsembleNetwork(normal, draws=2, seed=0)  # a draw is a network, whatever the batch
    torch.testing.assert_close(fixed(X)[5:7], fixed(X[5:7]))


class Tempered(models.Classification):
    def __init__(self, temperature):
        super().__init__(2)
        self.temperature = temperature

    def forward(self, outputs):
        return dist.Categorical(logits=outputs / self.temperature)


def test_probabilities_are_those_of_the_likelihood_of_each_member():
    fits, expected = [], 0.0
    for seed, temperature in enumerate((0.3, 4.0)):
        fits.append(fitted(small_net(seed=seed), guides.Delta, likelihood=Tempered(temperature)))
        logits = fits[-1].posterior.mean_network()(X)
        expected = expected + (logits.double() / temperature).softmax(-1) / 2
    torch.testing.assert_close(EnsembleNetwork(fits)(X).exp(), expected, rtol=1e-5, atol=0)


def test_what_cannot_be_averaged(dropout):
    regression = fitted(small_net(outputs=1), data=table("regression"))
    for fits, options in ((dropout, {"noise": "activations"}), (regression, {})):
        with pytest.raises(PyroccamError):
            EnsembleNetwork(fits, **options)
