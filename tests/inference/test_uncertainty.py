import itertools
import math

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import out_of_domain, uncertainty
from pyroccam.inference.posterior.uncertainties import Uncertainty, auroc
from pyroccam.models import priors
from random_weights import small_net, table


def logits(*shape, scale=3.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.0, 0.4]])
def test_entropies_are_those_of_torch(weights):
    outputs = logits(5, 7, 4)
    found = uncertainty(outputs, None if weights is None else torch.tensor(weights))
    w = torch.tensor(weights or [0.2] * 5).double()
    each = torch.distributions.Categorical(logits=outputs.double())
    mean = torch.distributions.Categorical(torch.einsum("s,snc->nc", w, each.probs))
    total, expected = mean.entropy(), w @ each.entropy()
    for one, known in zip(found, (total, expected, total - expected), strict=True):
        torch.testing.assert_close(one, known, rtol=1e-6, atol=1e-8)


def test_closed_forms():
    p = 0.11
    flip = torch.tensor([[[p, 1 - p]], [[1 - p, p]]]).log()
    noise = -p * math.log(p) - (1 - p) * math.log(1 - p)
    d = 1e-6
    near = torch.tensor([[[d, 0.0]], [[-d, 0.0]]], dtype=torch.float64)
    barred = torch.tensor([[[0.0, -math.inf, 0.0]], [[0.0, 0.0, -math.inf]]])
    for outputs, entropy, information in (
        ((1e4 * torch.eye(4))[:, None], math.log(4), math.log(4)),  # sure of one class each
        (flip, math.log(2), math.log(2) - noise),  # a symmetric binary channel
        (barred, 1.5 * math.log(2), 0.5 * math.log(2)),  # classes that cannot be
        (near, math.log(2), 0.125 * d**2),  # about d² / 2 · p (1 - p) nats, 1e-13 beside 0.69
    ):
        found = uncertainty(outputs)
        assert found.predictive_entropy.item() == pytest.approx(entropy)
        assert found.mutual_information.item() == pytest.approx(information, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e30])
def test_information_is_never_negative_and_none_in_equal_components(scale):
    outputs = logits(6, 50, 10, scale=scale)
    found = uncertainty(outputs)
    assert all(bool(torch.isfinite(one).all()) for one in found)
    assert bool((found.mutual_information >= 0.0).all())
    assert bool((found.mutual_information <= math.log(6) + 1e-12).all())
    equal = uncertainty(outputs[:1].expand(6, 50, 10))
    assert float(equal.mutual_information.max()) < 1e-14
    with pytest.raises(PyroccamError):
        uncertainty(outputs, torch.ones(6))


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e3])
def test_auroc_is_a_count_of_pairs(unit):
    """Also for scores beyond one, and so large that a sigmoid would make them equal."""
    generator = torch.Generator().manual_seed(0)
    inside = unit * torch.randint(0, 12, (40,), generator=generator).double()  # with ties
    outside = unit * torch.randint(3, 20, (60,), generator=generator).double()
    pairs = itertools.product(inside.tolist(), outside.tolist())
    each = [1.0 if b > a else 0.5 if a == b else 0.0 for a, b in pairs]
    assert auroc(inside, outside) == pytest.approx(sum(each) / len(each), abs=1e-6)


SETTINGS = {"batch_size": 32, "lr": 0.02, "compile": False, "progress": False, "device": "cpu"}


def test_out_of_domain_of_one_fit_and_of_an_ensemble():
    data = table(n=200)
    far = data.x_test * 0.02  # near the boundary, where every class is likely

    def build(seed):
        net = small_net(width=20, seed=seed)
        model = models.BayesianNetwork(net, data, prior=priors.Normal(1.0))
        return model, guides.Delta(model), data

    three = inference.fit_repeats(build, (0, 1, 2), together=False, epochs=10, **SETTINGS)
    alone = out_of_domain(three.fits[0], data.x_test, far)
    assert alone["predictive_entropy"] == alone["expected_entropy"] > 0.8
    assert alone["mutual_information"] == 0.5  # a single network has none
    found = out_of_domain(three, data.x_test, far)
    outputs = [torch.stack([one.outputs(x)[0] for one in three.fits]) for x in (data.x_test, far)]
    for name in Uncertainty._fields:
        scores = [getattr(uncertainty(one), name) for one in outputs]
        assert found[name] == pytest.approx(auroc(*scores), abs=1e-6)
