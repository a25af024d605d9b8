"""The last layer in closed form, against dense multivariate t distributions and repeated rows."""

import math

import numpy as np
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference import diagnostics
from pyroccam.inference.posterior import evaluate_outputs, posterior_of
from pyroccam.inference.training.replicate import validation_nll
from pyroccam.inference.training.validated_noise import condition_head
from pyroccam.models.networks import ClosedFormLinear, closed_form_of, with_closed_form
from scipy.stats import multivariate_t
from targets import made
from torch import nn

K, T, DEPTHS = 4, 2, 3
RATIOS = np.logspace(-3, 5, 25)
NOISE = torch.tensor([0.3, 2.0], dtype=torch.float64)


def layer(rows, weights=None, seed=0):
    """A layer that knows rows, and these: features ``(DEPTHS, rows, K)`` and targets."""
    torch.manual_seed(seed)
    made = ClosedFormLinear(nn.Linear(K, 2 * T), T, DEPTHS).double().eval()
    x = torch.randn(DEPTHS, rows, K, dtype=torch.float64)
    y = x[1] @ torch.randn(K, T, dtype=torch.float64) + 0.5 * torch.randn(rows, T).double()
    made.condition(x, y, NOISE, weights)
    return made, x, y


def density(made, x, y, a, target):
    """``log p(y)`` of one target, by its joint distribution: all weights and the noise are out."""
    rows = np.c_[x, np.ones(len(x))]
    shape = NOISE[target].item() ** 2 * (np.eye(len(x)) + rows @ rows.T / a)
    centre = x @ made.weight[target].detach().numpy() + made.bias[target].item()
    return multivariate_t.logpdf(y, centre, shape, df=1.0)


@pytest.mark.parametrize("rows", [3, 12])
def test_evidence_and_predictions_are_those_of_the_joint_distribution(rows):
    made, x, y = layer(rows)
    new, at = torch.randn(K, dtype=torch.float64), torch.tensor([0.4, -1.0]).double()
    likelihood = models.ClosedForm(T).double().eval()
    likelihood.df.fill_(1.0 + rows)
    with torch.no_grad():
        found = made(new.expand(DEPTHS, K)).unflatten(0, (DEPTHS, 1))
        predicted = likelihood(found).base_dist.log_prob(at)[:, 0]
    for depth in range(DEPTHS):
        phi, t = x[depth].numpy(), y.numpy()
        full = np.c_[phi, np.ones(rows)]
        values = RATIOS * np.trace(full.T @ full) / (K + 1)
        each = [sum(density(made, phi, t[:, j], a, j) for j in range(T)) for a in values]
        assert float(made.evidence[depth]) == pytest.approx(max(each), abs=1e-8)
        a, more = values[int(np.argmax(each))], np.r_[phi, new[None].numpy()]
        for j in range(T):
            joint = density(made, more, np.r_[t[:, j], at[j].item()], a, j)
            alone = joint - density(made, phi, t[:, j], a, j)
            assert float(predicted[depth, j]) == pytest.approx(alone, abs=1e-7)


def test_a_row_that_is_left_out_is_a_new_one():
    """At the same prior, where others alone are known: with weights, those are repeated."""
    weights = torch.tensor([2.0, 1.0, 1.0, 2.0, 1.0, 1.0])
    made, x, y = layer(6, weights)
    likelihood = models.ClosedForm(T).double().eval()
    likelihood.df.fill_(1.0 + weights.sum())
    with torch.no_grad():
        outputs = made(x.flatten(0, 1)).unflatten(0, (DEPTHS, -1))
    mean, log_scale = likelihood.left_out(made, outputs, y, weights).chunk(2, -1)
    often = weights.long()
    for depth, row in ((0, 0), (2, 1)):
        phi, t = (part.repeat_interleave(often, 0).numpy() for part in (x[depth], y))
        full = np.c_[phi, np.ones(len(phi))]
        values = RATIOS * np.trace(full.T @ full) / (K + 1)
        a = max(values, key=lambda a: sum(density(made, phi, t[:, j], a, j) for j in range(T)))
        others = [k for k in range(6) for _ in range(often[k]) if k != row]
        for j in range(T):
            joint = density(made, x[depth][[*others, row]].numpy(), y[[*others, row], j], a, j)
            alone = density(made, x[depth][others].numpy(), y[others, j], a, j)
            at = mean[depth, row, j], (0.5 * log_scale[depth, row, j]).exp()
            new = torch.distributions.StudentT(1.0 + len(others), *at).log_prob(y[row, j])
            assert float(new) == pytest.approx(joint - alone, abs=1e-7)


def test_a_row_of_weight_two_is_two_rows():
    weights = torch.tensor([2.0, 1.0, 1.0, 2.0, 1.0])
    made, x, y = layer(5, weights)
    twice, _, _ = layer(5)
    again = [0, 1, 2, 3, 4, 0, 3]
    twice.condition(x[:, again], y[again], NOISE)
    for name, value in made.state_dict().items():
        if name != "spread":  # of which a rotation is the same
            torch.testing.assert_close(value, twice.state_dict()[name], msg=name)
    spreads = (one.spread @ one.spread.mT for one in (made, twice))
    torch.testing.assert_close(*spreads)


def test_some_depths_of_it_compute_what_they_did():
    made, x, _ = layer(6)
    with torch.no_grad():
        whole = made(x.flatten(0, 1)).unflatten(0, (DEPTHS, -1))
        assert torch.equal(made.select([2])(x[2]), whole[2])
        assert torch.equal(made.select([0, 1])(x[:2].flatten(0, 1)), whole[:2].flatten(0, 1))
    assert torch.equal(made.select([2]).evidence, made.evidence[2:])
    made.requires_grad_(False)
    before = torch.get_rng_state()
    one = made.select([2])
    assert not one.weight.requires_grad
    assert not one.bias.requires_grad
    assert torch.equal(before, torch.get_rng_state())


def test_where_it_goes():
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Identity())
    before = net(torch.ones(2, 3))
    put = with_closed_form(net, 2)
    assert closed_form_of(put) is put[2]
    assert with_closed_form(put, 2) is put
    torch.testing.assert_close(put(torch.ones(2, 3))[:, :2], before[:, :2])
    rows = made("closed-form")
    several = with_closed_form(nn.Linear(5, 4), 2, depths=3)
    for refused in (
        lambda: with_closed_form(several, 2),
        lambda: with_closed_form(several, 1, depths=3),
        lambda: with_closed_form(nn.Linear(3, 5), 2),
        lambda: models.BayesianNetwork(
            nn.Linear(2, 2), rows, prior=models.priors.Normal(1.0), likelihood="closed-form"
        ),
    ):
        with pytest.raises(PyroccamError):
            refused()


def test_a_plain_network_predicts_by_the_validation_rows_alone(tmp_path):
    data = made("closed-form", n=60, test=500)
    torch.manual_seed(0)
    model = models.PlainNetwork(
        nn.Sequential(nn.Linear(2, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2)),
        data, likelihood="closed-form",
    )  # fmt: skip
    settings = {"epochs": 5, "lr": 0.01, "weight_decay": 0.0, "progress": False, "seed": 0}
    fit = inference.fit(model, guides.Deterministic(model), data, checkpoint="last", **settings)
    head = closed_form_of(fit.model)
    assert fit.val_nll == pytest.approx(-float(head.evidence) / len(data.x_val))
    small = inference.Small(fit.model.net)
    small.save(tmp_path / "small.pocc")
    again = inference.load(tmp_path / "small.pocc")
    torch.testing.assert_close(again(data.x_test), small.net(data.x_test), rtol=1e-3, atol=1e-3)
    with pytest.raises(PyroccamError):
        inference.fit(model, guides.Deterministic(model), made("closed-form", val_fraction=0.0))


class Backwards(nn.Module):
    """A network whose last linear layer, as registered, is not the one it ends in."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


@pytest.mark.parametrize("net", [nn.Sequential(nn.Linear(2, 2), nn.Tanh()), Backwards()], ids=type)
def test_a_network_that_does_not_end_in_it_is_refused(net):
    data = made("closed-form")
    model = models.PlainNetwork(net, data, likelihood="closed-form")
    with pytest.raises(PyroccamError, match="not those of its last linear layer"):
        condition_head(model, data)


def depth(data, guide=guides.CategoricalDepth):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(data, width=6, max_depth=2, likelihood="closed-form")
    return model, guide(model)


def test_a_description_is_of_the_training_rows_at_every_depth():
    data = made("closed-form", n=120)
    pair = depth(data, guides.Marginal)
    fit = inference.fit(*pair, data, epochs=5, lr=0.01, progress=False, seed=0)
    found, q = inference.description_length(fit), fit.weights.double()
    with torch.no_grad():
        log_p = fit.model.likelihood(fit.outputs(data.x_train)).log_prob(data.y_train).sum(1)
    assert found.targets == pytest.approx(-float(q @ log_p) / math.log(2.0), rel=1e-4)
    head = closed_form_of(fit.model)
    known = (fit.model.log_prior.double() + head.evidence.double()).softmax(0)
    torch.testing.assert_close(q, known, atol=1e-4, rtol=1e-3)


def test_rows_that_it_knows_are_left_out_one_by_one():
    data = made("closed-form", n=120)
    fit = inference.fit(*depth(data), data, epochs=5, lr=0.01, progress=False)
    x, y = data.split("val")
    known = evaluate_outputs(fit.outputs(x), fit.weights, fit.model.likelihood, y, data.y_std)
    found = fit.evaluate("val")
    assert found["nll"] > known["nll"]
    assert found["rmse"] > known["rmse"]
    said = -diagnostics.elpd(fit, split="val").mean
    assert said == pytest.approx(found["nll"], abs=1e-5)
    with pytest.raises(PyroccamError, match="a last layer in closed form, which knows"):
        diagnostics.vsbc(lambda seed: (*depth(data), data), simulations=20)


def test_a_score_is_by_weight():
    """That of rows that are repeated, whatever the scale of weights."""
    weighted = made("closed-form")
    count = torch.arange(len(weighted.x_val)) % 3 + 1
    rows = torch.arange(len(count)).repeat_interleave(count)
    twice = weighted.but(x_val=weighted.x_val[rows], y_val=weighted.y_val[rows])
    weights = {"weights": torch.ones(weighted.N), "val_weights": count.float()}
    found = []
    for data in (weighted.but(**weights), twice):
        model, guide = depth(weighted)
        condition_head(model, data)
        found.append(validation_nll(posterior_of(model, guide, data), data))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    with pytest.raises(PyroccamError):
        condition_head(model, weighted.but(weights=None, val_weights=torch.zeros(len(count))))
