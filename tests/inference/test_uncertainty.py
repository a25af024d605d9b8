import itertools
import math

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior.uncertainties import (
    Uncertainty,
    auroc,
    out_of_domain,
    uncertainty,
)
from pyroccam.models import priors
from random_weights import small_net, table
from torch import nn


def logits(*shape, seed=0, scale=3.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(outputs, weights):
    """Sums over components, rows and classes, one number at a time."""
    rows = []
    for n in range(outputs.shape[1]):
        p = []
        for one in outputs[:, n].tolist():
            total = sum(math.exp(v) for v in one)
            p.append([math.exp(v) / total for v in one])
        mean = [sum(w * q[c] for w, q in zip(weights, p, strict=True)) for c in range(len(p[0]))]
        total = -sum(v * math.log(v) for v in mean)
        drawn = [(w, v) for w, q in zip(weights, p, strict=True) for v in q if v > 0]
        expected = -sum(w * v * math.log(v) for w, v in drawn)
        rows.append((total, expected, total - expected))
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.0, 0.4]])
def test_entropies_by_hand(weights):
    outputs = logits(5, 7, 4)
    found = uncertainty(outputs, None if weights is None else torch.tensor(weights))
    for one, expected in zip(found, by_hand(outputs, weights or [0.2] * 5), strict=True):
        assert one.dtype == torch.float64
        assert one.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_closed_forms():
    # components that are sure of one class each: all is mutual information
    sure = (1e4 * torch.eye(4))[:, None]
    found = uncertainty(sure)
    assert found.predictive_entropy.item() == pytest.approx(math.log(4))
    assert found.expected_entropy.item() == 0.0
    assert found.mutual_information.item() == pytest.approx(math.log(4))
    # a symmetric binary channel: log 2 less the entropy of its noise
    p = 0.11
    flip = torch.tensor([[[p, 1 - p]], [[1 - p, p]]]).log()
    noise = -p * math.log(p) - (1 - p) * math.log(1 - p)
    found = uncertainty(flip)
    assert found.expected_entropy.item() == pytest.approx(noise, rel=1e-6)
    assert found.mutual_information.item() == pytest.approx(math.log(2) - noise, rel=1e-6)
    # classes that cannot be
    barred = torch.tensor([[[0.0, -math.inf, 0.0]], [[0.0, 0.0, -math.inf]]])
    found = uncertainty(barred)
    assert found.predictive_entropy.item() == pytest.approx(1.5 * math.log(2))
    assert found.mutual_information.item() == pytest.approx(0.5 * math.log(2))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0, 1e4, 1e30])
def test_information_is_never_negative_and_none_in_equal_components(scale):
    outputs = logits(6, 50, 10, scale=scale)
    found = uncertainty(outputs)
    assert all(bool(torch.isfinite(one).all()) for one in found)
    assert bool((found.mutual_information >= 0.0).all())
    assert bool((found.mutual_information <= math.log(6) + 1e-12).all())
    equal = uncertainty(outputs[:1].expand(6, 50, 10))
    assert float(equal.mutual_information.max()) < 1e-14
    torch.testing.assert_close(equal.predictive_entropy, equal.expected_entropy)
    assert float(uncertainty(outputs[:1]).mutual_information.abs().max()) == 0.0


def test_small_information_is_not_lost():
    """Two components that differ by ±d: about d² / 2 · p(1-p) nats, 1e-13 beside 0.69."""
    d = 1e-6
    outputs = torch.tensor([[[d, 0.0]], [[-d, 0.0]]], dtype=torch.float64)
    expected = 0.5 * 0.25 * d**2
    assert uncertainty(outputs).mutual_information.item() == pytest.approx(expected, rel=1e-3)


def test_what_is_no_distribution_is_named():
    with pytest.raises(PyroccamError):
        uncertainty(logits(5, 3))
    broken = logits(2, 3, 4)
    broken[1, 2, 0] = math.nan
    with pytest.raises(PyroccamError):
        uncertainty(broken)
    with pytest.raises(PyroccamError):
        uncertainty(logits(2, 3, 4), torch.ones(3) / 3)
    with pytest.raises(PyroccamError):
        uncertainty(logits(2, 3, 4), torch.ones(2))


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e3])
def test_auroc_is_a_count_of_pairs(unit):
    """Also for scores beyond one, and so large that a sigmoid would make them equal."""
    generator = torch.Generator().manual_seed(0)
    inside = unit * torch.randint(0, 12, (40,), generator=generator).double()  # with ties
    outside = unit * torch.randint(3, 20, (60,), generator=generator).double()
    pairs = [
        1.0 if b > a else 0.5 if a == b else 0.0
        for a, b in itertools.product(inside.tolist(), outside.tolist())
    ]
    assert auroc(inside, outside) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert auroc(inside, inside) == pytest.approx(0.5)
    assert auroc(-torch.ones(3), torch.zeros(2)) == 1.0


SETTINGS = {"batch_size": 32, "lr": 0.02, "compile": False, "progress": False, "device": "cpu"}


def build(seed, data):
    model = models.BayesianNetwork(small_net(width=20, seed=seed), data, prior=priors.Normal(1.0))
    return model, guides.Delta(model), data


def test_out_of_domain_of_each_kind_of_fit():
    data = table(n=200)
    far = data.x_test * 0.02  # near the boundary, where every class is likely
    one = inference.fit(*build(0, data), epochs=30, **SETTINGS)
    found = out_of_domain(one, data.x_test, far)
    assert list(found) == list(Uncertainty._fields)
    assert found["predictive_entropy"] == found["expected_entropy"] > 0.8
    assert found["mutual_information"] == 0.5  # a single network has none
    asked = {"seeds": (0, 1, 2), "together": False, "epochs": 30, **SETTINGS}
    three = inference.fit_repeats(lambda seed: build(seed, data), **asked)
    found = out_of_domain(three, data.x_test, far)
    outputs = [torch.stack([one.outputs(x)[0] for one in three.fits]) for x in (data.x_test, far)]
    by_hand = [uncertainty(one) for one in outputs]
    for name in Uncertainty._fields:
        scores = [getattr(one, name) for one in by_hand]
        assert found[name] == pytest.approx(auroc(*scores), abs=1e-6)
    with pytest.raises(PyroccamError):
        out_of_domain(three, data.x_test, far[:, :2])


def test_dropout_and_variances_give_information():
    data = table(n=100)
    net = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 2))
    model = models.BayesianNetwork(net, data, prior=priors.Normal(1.0))
    dropped = inference.fit(model, guides.Delta(model), data, epochs=10, **SETTINGS)
    options = {"prior": priors.LogUniform(), "layers": ["0"], "random_biases": False}
    model = models.BayesianNetwork(small_net(width=20), data, **options)
    guide = guides.ZeroMean(model)
    variances = inference.fit(model, guide, data, epochs=10, **SETTINGS)
    for fit, noise in ((dropped, "weights"), (variances, "activations")):
        x = data.x_test
        found = uncertainty(fit.outputs(x, draws=50, noise=noise))
        assert float(found.mutual_information.min()) > 0.0
        mean = fit.outputs(x, draws=50, noise=noise).double().softmax(-1).mean(0)
        entropy = -(mean * mean.log()).sum(-1)
        torch.testing.assert_close(found.predictive_entropy, entropy)
        assert 0.0 <= out_of_domain(fit, x, x + 9, noise=noise)["mutual_information"] <= 1.0
