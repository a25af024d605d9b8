import numpy as np
import pytest
import torch
from conjugate import NOISE, model_of, posterior, rows
from pyroccam import data, guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.diagnostics import outputs_at, vsbc
from pyroccam.inference.diagnostics.simulation import _fitted
from pyroccam.models import priors
from scipy import stats
from torch import nn

QUICK = {"epochs": 120, "lr": 0.08, "weight_decay": 0.0, "device": "cpu"}


class Sharpened(guides.CategoricalDepth):
    """Surer of the depth than it should be."""

    @property
    def probs(self):
        return (4.0 * self.logits.detach()).softmax(-1)


def regression(prior=None, net=None):
    """Orthogonal inputs: the posterior is normal and its dimensions independent."""
    table = rows(20, 2, orthogonal=True)

    def build(seed):
        model = model_of(table, prior=prior)
        if net is not None:
            model = models.BayesianNetwork(net, table, prior=priors.Normal())
        return model, guides.MeanField(model, scale=0.1), table

    return build


def depths(guide=guides.CategoricalDepth, norm=nn.Identity, **options):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 2, generator=generator), torch.arange(12) % 2
    table = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)

    def build(seed):
        torch.randn(3)  # as a network that is made here would
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), norm()) for _ in range(3)]
            head = nn.Linear(4, 2)
            with torch.no_grad():
                head.weight.mul_(8.0)
            stack = nn.Linear(2, 4), blocks, head
            model = models.LearntDepth(*stack, data=table, prior=priors.Uniform())
        return model, guide(model, **options), table

    return build


def test_the_probabilities_of_a_conjugate_model_are_those_of_its_posterior():
    """Each simulation beside the closed form; its targets have the moments of the model."""
    how = {"epochs": 200, "lr": 0.08, "weight_decay": 0.0, "progress": False, "particles": 8}
    found = _fitted(regression(), range(12), "cpu", how)
    residuals = []
    for one in found:
        mean, precision = posterior(one.data)
        theta = one.truth["0.weight"][0].double()
        names, p = one.probabilities(None, {}, np.random.default_rng(0))
        exact = stats.norm.cdf(((theta - mean) * precision.diagonal().sqrt()).numpy())
        assert names == ["0.weight[0,0]", "0.weight[0,1]"]
        assert p == pytest.approx(exact, abs=0.04)
        x, y = one.data.split("train")
        residuals.append(y - x @ one.truth["0.weight"].T)
        # what the model holds as numbers was held
        assert float(one.model.likelihood.scale) == pytest.approx(NOISE)
    errors = torch.cat(residuals).numpy()[:, 0] / NOISE
    assert stats.kstest(errors, "norm").pvalue > 1e-4


def test_an_exact_family_is_calibrated():
    x = torch.tensor([[1.0, -1.0]])
    found = vsbc(regression(), 50, quantities={"f": outputs_at(x)}, **QUICK)
    assert found.names == ("0.weight[0,0]", "0.weight[0,1]", "f[0,0]")
    assert found.verdict == "good"
    # the output is the difference of the weights: a check of the ranks against the closed forms
    z = stats.norm.ppf(np.clip(found.p, 1e-3, 1 - 1e-3))
    assert np.corrcoef(z[:, 2], z[:, 0] - z[:, 1])[0, 1] > 0.98


def test_a_depth_in_closed_form_is_calibrated_and_a_sharper_one_is_not():
    state = torch.get_rng_state()
    exact = vsbc(depths(), 60, device="cpu")
    assert (exact.names, exact.verdict) == (("depth",), "good")
    f = {"f": outputs_at(torch.tensor([[0.5, -0.5]]))}
    sharp = vsbc(depths(Sharpened), 60, quantities=f, device="cpu")
    assert (sharp.names, sharp.verdict) == (("depth", "f[0,0]", "f[0,1]"), "poor")
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (regression(prior=priors.GroupNormalJeffreys()), QUICK),
        (regression(net=nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1))), QUICK),
        (depths(norm=lambda: nn.BatchNorm1d(4), update="gradient"), QUICK),
        (depths(), {"sites": ["0.weight"]}),
    ],
)
def test_what_cannot_be_simulated_is_refused(build, options):
    with pytest.raises(PyroccamError):
        vsbc(build, 20, **options)
