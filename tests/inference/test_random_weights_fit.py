"""Fits of Bayesian networks: how they step, what they keep, how they predict, what they bound."""

import pytest
import torch
from bayesian import QUICK, bayesian, noisy_net
from pyroccam import data, guides, inference, models
from pyroccam.models import priors
from random_weights import table


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_the_mean_network_predicts_and_judges_a_checkpoint():
    rows = table()
    fit = inference.fit(*bayesian(rows, priors.LogUniform(), net=noisy_net()), rows, **QUICK)
    x, _ = rows.split("test")
    mean = fit.posterior.mean_network()(x).log_softmax(-1)
    torch.testing.assert_close(fit.predict(x, "deterministic"), mean, check_layout=False)
    x, y = rows.split("val")
    log_p = fit.posterior.mean_network()(x).log_softmax(-1).detach()
    assert fit.val_nll == pytest.approx(-float(log_p[torch.arange(len(y)), y].mean()), rel=1e-5)
    assert fit.val_nll != pytest.approx(fit.evaluate("val")["nll"], rel=1e-5)


def test_the_last_checkpoint_of_random_weights_and_the_best_on_request():
    """Where the best is an early one: at this learning rate the loss goes up and down."""
    rows = table()

    def fit(**more):
        settings = {**QUICK, "epochs": 12, "lr": 0.3, "schedule": "constant", **more}
        return inference.fit(*bayesian(rows, priors.Normal()), rows, **settings)

    last, best = fit(), fit(checkpoint="best")
    values = [row["val_nll"] for row in last.history]
    assert last.best_epoch == len(values) == 12
    assert last.val_nll == pytest.approx(values[-1])
    assert best.best_epoch == 1 + values.index(min(values)) < 12
    assert best.val_nll == pytest.approx(min(values))
    impatient = fit(patience=2)  # counted from the lowest value, though the last is kept
    lows = [min(values[: i + 1]) for i in range(len(values))]
    stop = next(i + 1 for i in range(2, 12) if lows[i] == lows[i - 2])
    assert len(impatient.history) == impatient.best_epoch == stop


def test_what_is_tracked_stands_in_the_history(tmp_path):
    rows = table()
    seen = []

    def track(model, guide, data):
        assert not model.training
        seen.append(float(torch.rand(())))
        return {"noise": seen[-1]}

    options = {**QUICK, "epochs": 3, "evaluations": 3}
    plain = inference.fit(*bayesian(rows), rows, **options)
    fit = inference.fit(*bayesian(rows), rows, track=track, out=tmp_path, **options)
    assert [row["noise"] for row in fit.history] == seen
    assert [row["loss"] for row in fit.history] == [row["loss"] for row in plain.history]
    assert (tmp_path / "history.csv").read_text().startswith("epoch,loss,val_nll,noise")


def test_the_bound_of_a_depth_that_is_summed_out():
    """Any number of rows, and any part of them, against the sum over depths by brute force."""
    x = torch.randn(1500, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    rows = data.Dataset.from_tensors(x, y, x[:9], y[:9])
    model = models.LearntDepth.mlp(rows, width=4, max_depth=3, prior=priors.Geometric(0.7))
    for _ in range(20):
        model.stack.outputs(x)  # statistics
    model.eval()
    with torch.no_grad():  # depths that are not far apart, so that several count
        model.stack.head.weight.mul_(0.02)
    for split, count in (("train", None), ("train", 1100), ("train", 7), ("test", None)):
        inputs, targets = (part[:count] for part in rows.split(split))
        with torch.no_grad():
            terms = model.likelihood(model.stack.outputs(inputs)).log_prob(targets).double()
        expected = float((model.log_prior + terms.sum(1)).logsumexp(0))
        guide = guides.Marginal(model)
        found = inference.elbo.evidence(model, guide, rows, split=split, rows=count)
        assert found.elbo == pytest.approx(expected, rel=1e-6)
        assert (found.error, found.kl, found.rows) == (0.0, 0.0, len(inputs))
