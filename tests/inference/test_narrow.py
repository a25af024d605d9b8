"""Going on with less: the same posterior over a smaller network."""

import copy

import pytest
import torch
from fitting import blobs, images
from fitting import run as fit_depth
from pyroccam import guides, inference, models
from pyroccam.inference.cutting import cut
from pyroccam.inference.posterior import mean_network, moments
from pyroccam.inference.relevance import irrelevance
from pyroccam.inference.thresholds import with_zeros
from pyroccam.models import priors
from torch import nn

QUICK = {"epochs": 2, "batch_size": 18, "lr": 0.01, "progress": False, "device": "cpu"}


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.MaxPool2d(2), nn.Conv2d(5, 4, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 2),
    )  # fmt: skip


def fitted(build=perceptron, prior=None, guide=guides.MeanField, seed=0, **options):
    rows = images() if build is convolutional else blobs()
    torch.manual_seed(seed)
    prior = priors.GroupNormalJeffreys() if prior is None else prior
    model = models.BayesianNetwork(build(), rows, prior=prior)
    return inference.fit(model, guide(model, **options), rows, **QUICK)


def cut_here(result, share=0.6):
    """Thresholds that cut a share of every layer but the first, and the cut mean network."""
    found = irrelevance(result.model, result.guide)
    thresholds = {
        name: float(one.values.quantile(share)) if len(one.values) > 2 else float("inf")
        for name, one in found.items()
    }
    whole = mean_network(result.model, result.guide)
    zeros = with_zeros(whole, found, thresholds, result.model)
    return thresholds, cut(zeros, result.data.x_train[:2])


@pytest.mark.parametrize("build", [perceptron, convolutional])
@pytest.mark.parametrize(
    ("prior", "guide"),
    [
        (priors.GroupNormalJeffreys(), guides.MeanField),
        (priors.GroupHorseshoe(0.01), guides.MeanField),
        (priors.GroupHalfCauchy(0.1), guides.MeanField),
        (priors.SpikeSlab(0.3), guides.MeanField),
        (priors.GroupNormalJeffreys(), guides.VariationalDropout),
    ],
)
def test_the_mean_of_the_narrow_pair_is_the_cut_mean(build, prior, guide):
    result = fitted(build, prior, guide)
    thresholds, (small, report) = cut_here(result)
    model, own = inference.narrow(result, threshold=thresholds)
    assert report.weights_after < report.weights_before
    x = result.data.x_test
    torch.testing.assert_close(mean_network(model, own)(x), small(x), rtol=1e-4, atol=1e-5)
    before, after = moments(result.model, result.guide), list(moments(model, own).values())
    for (name, part), new in zip(report.layers.items(), after, strict=True):
        old = before[name].variance[part.outputs][:, part.inputs]
        torch.testing.assert_close(new.variance, old)


def test_units_that_became_constant_move_into_biases():
    result = fitted()
    with torch.no_grad():
        factors = result.guide.factors
        factors["1/weight"].loc[3] = 0.0
        factors["1/bias"].loc[3] = 2.0
    thresholds = {"1": float("inf"), "3": float("inf"), "5": float("inf")}
    model, own = inference.narrow(result, threshold=thresholds)
    assert next(iter(model.layers.values())).affine.shape.weight == (8, 2)
    x = result.data.x_test
    mean = mean_network(result.model, result.guide)
    torch.testing.assert_close(mean_network(model, own)(x), mean(x), rtol=1e-4, atol=1e-5)


def test_what_is_outside_of_the_random_layers_is_cut_too():
    rows = images()
    torch.manual_seed(0)
    model = models.BayesianNetwork(
        convolutional(), rows, prior={"3": priors.GroupNormalJeffreys(), "8": priors.Normal(1.0)}
    )
    result = inference.fit(model, guides.MeanField(model), rows, **QUICK)
    values = irrelevance(model, result.guide)["3"].values
    smaller, own = inference.narrow(result, threshold={"3": float(values.median())})
    count = sum(p.numel() for p in smaller.parameters())
    assert count < sum(p.numel() for p in model.parameters())
    assert len(smaller.layers["3"].start["weight"]) == 2
    inference.fit(smaller, own, rows, **QUICK)


def test_training_goes_on_and_may_be_narrowed_again():
    result = fitted(max_scale={"3": 0.5})
    before = copy.deepcopy(result.guide.state_dict())
    thresholds, _ = cut_here(result)
    pair = inference.narrow(result, threshold=thresholds)
    again = inference.fit(*pair, result.data, **QUICK)
    assert all(torch.equal(before[k], t) for k, t in result.guide.state_dict().items())
    limits = {name: f.max_log_scale for name, f in again.guide.factors.items() if "weight" in name}
    assert sum(limit < float("inf") for limit in limits.values()) == 1
    thresholds, (small, _) = cut_here(again, 0.7)
    model, own = inference.narrow(again, threshold=thresholds)
    x = result.data.x_test
    torch.testing.assert_close(mean_network(model, own)(x), small(x), rtol=1e-4, atol=1e-5)
    # The rates count from the first network.
    last = inference.fit(model, own, result.data, **QUICK)
    rates = inference.compress(last, threshold=50.0).rates
    assert rates.total == 2 * 9 + 9 * 8 + 8 * 3
    assert rates.kept < rates.total / 2


def test_learnt_priors_and_noise_come_along():
    rows = blobs()
    torch.manual_seed(0)
    model = models.BayesianNetwork(perceptron(), rows, prior=priors.Normal(learn="layer"))
    result = inference.fit(model, guides.MeanField(model), rows, **QUICK)
    with torch.no_grad():
        result.guide.factors["3/weight"].loc[2] = 0.0  # a unit that is constant
    smaller, _ = inference.narrow(result, threshold=50.0)
    old = [p for layer in model.layers.values() for p in layer.prior.parameters()]
    new = [p for layer in smaller.layers.values() for p in layer.prior.parameters()]
    assert old
    assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
    assert not any(a is b for a, b in zip(old, new, strict=True))


def test_without_random_weights_there_is_nothing_to_narrow():
    with pytest.raises(TypeError, match=r"narrow needs a fit of models\.BayesianNetwork.*prune"):
        inference.narrow(fit_depth())
