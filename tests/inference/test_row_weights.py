"""Rows that count more than others: against rows that are repeated, and in closed form."""

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import DataError, Dataset, PyroccamError
from pyroccam.inference import diagnostics, selection
from pyroccam.inference.posterior import exact_depth_posterior
from targets import made
from torch import nn

QUICK = {"progress": False, "device": "cpu", "seed": 0}


def repeated(word, seed=0):
    """Data with weights 1, 2 and 3, and the same data with its rows so many times."""
    from dataclasses import replace

    whole = made(word, n=60, test=40, val_fraction=0.0, seed=seed)
    count = torch.arange(60) % 3 + 1
    weighted = replace(whole, weights=count / count.float().mean(), val_weights=torch.zeros(0))
    rows = torch.arange(60).repeat_interleave(count)
    return weighted, replace(whole, x_train=whole.x_train[rows], y_train=whole.y_train[rows])


def depth(data, word, like=None, **more):
    torch.manual_seed(0)
    likelihood = models.likelihoods.parse(word, like or data)
    model = models.LearntDepth.mlp(data, width=6, max_depth=2, likelihood=likelihood)
    model.eval()  # statistics of batches would count repeated rows
    return model, guides.CategoricalDepth(model, **more)


@pytest.mark.parametrize("word", ["categorical", "normal", "multi-label"])
def test_a_weight_of_two_is_a_row_twice(word):
    """The likelihood term, and its gradient, by rows that are repeated; scaled to N of them."""
    weighted, twice = repeated(word)
    losses, grads = [], []
    for data in (weighted, twice):
        model, guide = depth(data, word, like=weighted)
        terms = inference.elbo.estimator.bound(model, guide).terms(data.x_train, data.targets)
        loss = terms.log_likelihood / data.N
        loss.backward()
        losses.append(float(loss.detach()))
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert terms.by_site["y"].shape == (3, data.N)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_the_exact_posterior_of_depth_weighs_rows():
    weighted, _ = repeated("categorical")
    model, _ = depth(weighted, "categorical")
    log_p = model.likelihood(model.components(weighted.x_train)).log_prob(weighted.y_train)
    by_hand = (model.log_prior + (weighted.weights * log_p).sum(1)).softmax(0)
    found = exact_depth_posterior(model, weighted)
    torch.testing.assert_close(found.float(), by_hand, rtol=1e-4, atol=1e-6)
    fit = inference.fit(*depth(weighted, "categorical"), weighted, epochs=3, **QUICK)
    exact = exact_depth_posterior(fit.model, weighted)
    torch.testing.assert_close(fit.weights.double(), exact, atol=1e-4, rtol=1e-3)
    x, y = weighted.split("train")
    nll = -float(fit.predict(x).gather(1, y[:, None]).mean())
    assert fit.evaluate("train")["nll"] == pytest.approx(
        nll, rel=1e-4
    )  # metrics weigh rows equally


def test_weights_of_classes_and_of_rows_have_the_mean_one():
    torch.manual_seed(0)
    x, y = torch.randn(40, 2), torch.arange(40) % 4 // 3
    given = torch.rand(40)
    data = Dataset.from_tensors(x, y, x, y, weights=given, seed=0)
    assert float(data.weights.mean()) == pytest.approx(1.0)
    ratio = torch.cat([data.weights, data.val_weights]).sort()[0] / given.sort()[0]
    torch.testing.assert_close(ratio, ratio[:1].expand(40))  # those of its rows, carved alike
    both = data.with_class_weights("balanced")
    for label in (0, 1):
        share = both.weights[both.y_train == label].sum() / both.N
        assert float(share) == pytest.approx(0.5, rel=1e-4)
    three = data.with_class_weights([1.0, 3.0])
    ratio = three.weights / data.weights
    assert float(ratio[data.y_train == 1][0] / ratio[data.y_train == 0][0]) == pytest.approx(3.0)
    assert float(both.all_rows().weights.mean()) == pytest.approx(1.0)
    assert len(both.all_rows().weights) == 40
    assert both.to(dtype=torch.float64).targets.dtype == torch.float64
    assert data.digest != Dataset.from_tensors(x, y, x, y, seed=0).digest


def test_what_means_nothing_with_weights_is_refused():
    weighted, _ = repeated("normal")
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    model = models.BayesianNetwork(net, weighted, prior=models.priors.Normal(1.0))
    fit = inference.fit(model, guides.MeanField(model), weighted, epochs=2, **QUICK)
    for ask in (diagnostics.loo, diagnostics.khat):
        with pytest.raises(DataError, match="of rows with weights"):
            ask(fit, draws=100)
    verdicts = {one.name: one.verdict for one in diagnostics.diagnose(fit, draws=100)}
    assert verdicts["LOO"] == verdicts["k-hat"] == "refused"
    assert "log_p" not in fit.to_arviz(4).sample_stats
    L = selection.Level()
    pair = model, guides.MeanField(model)
    with pytest.raises(DataError):
        inference.select(*pair, weighted, L, L, method=selection.OneLevel(), progress=False)
    plain = made("normal", n=60, test=40, val_fraction=0.0)
    with pytest.raises(PyroccamError):
        inference.fit(*pair, plain, epochs=1, **QUICK)
