"""Scores of predictions and what they leave open, against other libraries and counts."""

import itertools
import math

import numpy as np
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import metrics, out_of_domain, uncertainty
from pyroccam.inference.posterior.uncertainties import Uncertainty, auroc
from pyroccam.models import priors
from random_weights import small_net, table
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error


def classifier(n, classes, seed=0):
    """Random log-probabilities and labels drawn from them: an honest classifier."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    log_probs = torch.log_softmax(logits, -1)
    return log_probs, torch.multinomial(log_probs.exp(), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("classes", [2, 10])
def test_classification_metrics_agree_with_others(classes):
    log_probs, y = classifier(400, classes)
    scores = metrics.classification_metrics(log_probs.requires_grad_(), y.to(torch.uint8))
    log_probs = log_probs.detach()
    probs, labels = log_probs.exp().numpy(), list(range(classes))
    assert scores["accuracy"] == accuracy_score(y.numpy(), probs.argmax(-1))
    assert scores["nll"] == pytest.approx(log_loss(y.numpy(), probs, labels=labels), rel=1e-12)
    brier = brier_score_loss(y.numpy(), probs, labels=labels, scale_by_half=False)
    assert scores["brier"] == pytest.approx(brier, rel=1e-12)
    # torchmetrics sums in single precision
    ece = multiclass_calibration_error(log_probs.exp(), y, num_classes=classes, n_bins=15)
    assert scores["ece"] == pytest.approx(float(ece), abs=2e-6)
    table = metrics.reliability(log_probs, y)
    assert table.ece == scores["ece"]
    right = (table.counts * table.accuracy).nansum() / 400
    assert float(right) == pytest.approx(scores["accuracy"])


def test_float32_certainty_is_not_mistaken_for_logits():
    """Rounding can lift a row's probability in single precision over one."""
    log_probs = torch.tensor([[2e-7, -30.0], [-30.0, 2e-7], [2e-7, -30.0]])
    scores = metrics.classification_metrics(log_probs, torch.tensor([0, 1, 1]))
    assert scores["nll"] == pytest.approx(10.0, abs=1e-4)
    assert scores["ece"] == pytest.approx(1 / 3, abs=1e-6)
    with pytest.raises(PyroccamError):  # but logits are
        metrics.classification_metrics(log_probs + 1.0, torch.tensor([0, 1, 1]))


def test_a_bin_holds_its_lower_edge_and_one_of_the_poster_its_upper_edge():
    """A confidence of 1 / 5 is in the bin above it; of ten equal probabilities as many are hits as
    the edge above them says."""
    equal, first = torch.zeros(3, 5) - math.log(5), torch.zeros(3).long()
    assert metrics.reliability(equal, first).counts.tolist() == [0] * 3 + [3] + [0] * 11
    equal = torch.zeros(3, 10) - math.log(10)
    assert metrics.poster_ece(equal, first) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("classes", [2, 10])
def test_poster_rule_row_by_row(classes):
    """The published evaluation written out, one prediction at a time."""
    log_probs, y = classifier(200, classes, seed=4)
    bins = 10
    probs = log_probs.exp().numpy()
    seen, hit = np.zeros(bins), np.zeros(bins)
    for row, label in zip(probs, y.numpy(), strict=True):
        for c, p in enumerate(row):
            b = min(max(math.ceil(p * bins) - 1, 0), bins - 1)
            seen[b] += 1
            hit[b] += c == label and c == row.argmax()
    gaps = np.abs(hit - seen * np.arange(1, bins + 1) / bins)
    assert metrics.poster_ece(log_probs, y) == pytest.approx(gaps.sum() / seen.sum())


def test_mean_spread():
    spread = metrics.mean_spread([{"nll": 1.0, "error": 0.1}, {"nll": 2.0}, {"nll": 6.0}])
    assert spread["nll"] == {"mean": 3.0, "sd": pytest.approx(np.std([1, 2, 6], ddof=1)), "n": 3}
    assert spread["error"] == {"mean": 0.1, "sd": None, "n": 1}
    assert metrics.mean_spread([{"x": 1e9 + 0.1}] * 3)["x"]["sd"] == 0.0
    for value in (math.nan, math.inf):
        with pytest.raises(PyroccamError):
            metrics.mean_spread([{"nll": 1.0}, {"nll": value}])


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
    none = uncertainty(logits(1, 50, 4).expand(5, 50, 4)).mutual_information
    assert bool((none >= 0.0).all())
    assert float(none.max()) < 1e-14


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

    three = inference.fit_repeats(build, (0, 1, 2), together=False, epochs=5, **SETTINGS)
    alone = out_of_domain(three.fits[0], data.x_test, far)
    assert alone["predictive_entropy"] == alone["expected_entropy"] > 0.8
    assert alone["mutual_information"] == 0.5  # a single network has none
    found = out_of_domain(three, data.x_test, far)
    outputs = [torch.stack([one.outputs(x)[0] for one in three.fits]) for x in (data.x_test, far)]
    for name in Uncertainty._fields:
        scores = [getattr(uncertainty(one), name) for one in outputs]
        assert found[name] == pytest.approx(auroc(*scores), abs=1e-6)


def test_similarities_are_ranked_as_by_hand():
    """Pearson's correlation of ranks, of cosines that are taken pair by pair."""
    torch.manual_seed(0)
    first = torch.randn(7, 5).double()
    other = torch.cat([first + 0.7 * torch.randn(7, 5), torch.ones(7, 1)], 1)

    def ranks(rows):
        lengths = [math.hypot(*row) for row in rows.tolist()]
        cosines = [
            float(rows[i] @ rows[j]) / (lengths[i] * lengths[j])
            for i, j in itertools.combinations(range(7), 2)
        ]
        return [sum(b < a for b in cosines) for a in cosines]

    expected = np.corrcoef(ranks(first), ranks(other))[0, 1]
    assert 0.2 < expected < 0.98
    assert metrics.rank_correlation(first, other) == pytest.approx(expected)
    assert metrics.rank_correlation(first, 3.0 * first) == pytest.approx(1.0)
