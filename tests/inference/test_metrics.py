import math

import numpy as np
import pytest
import torch
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior import metrics
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error


def classifier(n, classes, seed=0, sharpness=2.0):
    """Random log-probabilities and labels drawn from them: an honest classifier."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    log_probs = torch.log_softmax(logits, -1)
    return log_probs, torch.multinomial(log_probs.exp(), 1, generator=generator)[:, 0]


def peaked(n, classes, confidence, wrong):
    """``n`` rows that give class 0 ``confidence``; the label of the first ``wrong`` is class 1."""
    probs = torch.full((n, classes), (1 - confidence) / (classes - 1), dtype=torch.float64)
    probs[:, 0] = confidence
    y = torch.zeros(n, dtype=torch.long)
    y[:wrong] = 1
    return probs.log(), y


# -- classification ---------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_classification_metrics_agree_with_sklearn(classes):
    log_probs, y = classifier(400, classes)
    scores = metrics.classification_metrics(log_probs, y)
    probs = log_probs.exp().numpy()
    labels = list(range(classes))
    assert list(scores) == ["accuracy", "nll", "brier", "ece"]
    assert scores["accuracy"] == accuracy_score(y.numpy(), probs.argmax(-1))
    assert scores["nll"] == pytest.approx(log_loss(y.numpy(), probs, labels=labels), rel=1e-12)
    brier = brier_score_loss(y.numpy(), probs, labels=labels, scale_by_half=False)
    assert scores["brier"] == pytest.approx(brier, rel=1e-12)
    assert all(type(value) is float for value in scores.values())


def test_two_class_brier_is_twice_the_one_column_score():
    log_probs, y = classifier(300, 2)
    one_column = brier_score_loss(y.numpy(), log_probs.exp()[:, 1].numpy())
    scores = metrics.classification_metrics(log_probs, y)
    assert scores["brier"] == pytest.approx(2 * one_column, rel=1e-12)


def test_classification_metrics_by_hand():
    log_probs = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.05, 0.05, 0.9]]).log()
    scores = metrics.classification_metrics(log_probs, torch.tensor([0, 2, 2]))
    assert scores["accuracy"] == 2 / 3
    assert scores["nll"] == pytest.approx(-math.log(0.7 * 0.3 * 0.9) / 3, abs=1e-6)
    brier = (0.3**2 + 0.2**2 + 0.1**2) + (0.3**2 + 0.4**2 + 0.7**2) + (0.05**2 * 2 + 0.1**2)
    assert scores["brier"] == pytest.approx(brier / 3, abs=1e-6)
    # three bins of one row each: |1 - .7|, |0 - .4|, |1 - .9|
    assert scores["ece"] == pytest.approx((0.3 + 0.4 + 0.1) / 3, abs=1e-6)


def test_worst_and_best_brier():
    log_probs, y = peaked(10, 4, 1 - 1e-12, wrong=0)
    assert metrics.classification_metrics(log_probs, y)["brier"] == pytest.approx(0, abs=1e-9)
    assert metrics.classification_metrics(log_probs, y + 1)["brier"] == pytest.approx(2, abs=1e-9)


@pytest.mark.parametrize("classes", [2, 10])
def test_ece_agrees_with_torchmetrics_where_float32_suffices(classes):
    log_probs, y = classifier(500, classes, seed=3)
    expected = multiclass_calibration_error(log_probs.exp(), y, num_classes=classes, n_bins=15)
    found = metrics.classification_metrics(log_probs, y)["ece"]
    assert found == pytest.approx(float(expected), abs=2e-6)


def test_ece_is_exact_on_many_rows():
    """Summed in float32, a calibrated classifier would score 5e-4 here."""
    log_probs, y = peaked(60_000, 10, 0.95, wrong=3_000)
    assert metrics.classification_metrics(log_probs, y)["ece"] == pytest.approx(0, abs=1e-12)


def test_float32_certainty_is_not_mistaken_for_logits():
    """Rounding can lift a float32 row's probability over one."""
    log_probs = torch.tensor([[2e-7, -30.0], [-30.0, 2e-7], [2e-7, -30.0]])
    scores = metrics.classification_metrics(log_probs, torch.tensor([0, 1, 1]))
    assert scores["accuracy"] == 2 / 3
    assert scores["nll"] == pytest.approx(10.0, abs=1e-4)
    assert scores["ece"] == pytest.approx(1 / 3, abs=1e-6)


def test_gradients_and_small_integer_labels_are_accepted():
    log_probs, y = classifier(20, 3)
    expected = metrics.classification_metrics(log_probs, y)
    assert metrics.classification_metrics(log_probs.requires_grad_(), y.to(torch.uint8)) == expected


PROBS = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
LOGITS = torch.tensor([[3.0, 1.0], [0.0, 0.0]])
SURE = torch.tensor([[0.0, -torch.inf], [-1.0, -1.0]])


@pytest.mark.parametrize(
    ("log_probs", "y"),
    [
        (PROBS, [0, 1]),
        (torch.eye(2), [0, 1]),
        (LOGITS, [0, 1]),
        (PROBS.log() - 0.01, [0, 1]),
        (SURE, [0, 1]),
        (torch.tensor([[-0.5, -0.9], [torch.nan, -1.0]]), [0, 1]),
        (PROBS.log()[0], [0, 1]),
        (torch.zeros(0, 2), []),
        (PROBS.log(), [0, 1, 1]),
        (PROBS.log(), [0.0, 1.0]),
        (PROBS.log(), [1, 2]),
        (PROBS.log(), [-1, 0]),
    ],
)
@pytest.mark.parametrize(
    "score", [metrics.classification_metrics, metrics.reliability, metrics.poster_ece]
)
def test_what_is_not_log_probabilities_is_refused(score, log_probs, y):
    with pytest.raises(PyroccamError):
        score(log_probs, torch.tensor(y))


# -- reliability ------------------------------------------------------------------------------


def test_reliability_against_a_loop_over_rows():
    log_probs, y = classifier(500, 3, seed=1)
    table = metrics.reliability(log_probs, y, bins=7)
    probs = log_probs.exp().numpy()
    for b in range(7):
        rows = [i for i in range(500) if b / 7 <= probs[i].max() < (b + 1) / 7]
        assert table.centers[b] == pytest.approx((b + 0.5) / 7)
        assert table.counts[b] == len(rows)
        if rows:
            assert table.confidence[b] == pytest.approx(np.mean([probs[i].max() for i in rows]))
            hits = [probs[i].argmax() == y[i].item() for i in rows]
            assert table.accuracy[b] == pytest.approx(np.mean(hits))
        else:
            assert math.isnan(table.confidence[b])
            assert math.isnan(table.accuracy[b])
    assert table.counts.sum() == 500


def test_reliability_gives_the_same_ece():
    log_probs, y = classifier(300, 4, seed=2)
    expected = metrics.classification_metrics(log_probs, y)["ece"]
    assert metrics.reliability(log_probs, y).ece == expected


def test_certainty_shares_the_last_bin():
    log_probs = torch.tensor([[0.0, -800.0], [math.log(0.97), math.log(0.03)]])
    table = metrics.reliability(log_probs, torch.tensor([0, 0]))
    assert table.counts.tolist() == [0] * 14 + [2]


# -- the poster's rule ------------------------------------------------------------------------


def poster_rule_row_by_row(probs, y, bins):
    """The published evaluation written out, one prediction at a time."""
    seen, hit = np.zeros(bins), np.zeros(bins)
    for row, label in zip(probs, y, strict=True):
        for c, p in enumerate(row):
            b = min(max(math.ceil(p * bins) - 1, 0), bins - 1)
            seen[b] += 1
            hit[b] += c == label and c == row.argmax()
    edge = np.arange(1, bins + 1) / bins
    held = seen > 0
    return float((np.abs(hit[held] / seen[held] - edge[held]) * seen[held]).sum() / seen.sum())


@pytest.mark.parametrize(("classes", "bins"), [(2, 10), (5, 10), (10, 10), (10, 7)])
def test_poster_rule_row_by_row(classes, bins):
    log_probs, y = classifier(200, classes, seed=4)
    expected = poster_rule_row_by_row(log_probs.exp().numpy(), y.numpy(), bins)
    assert metrics.poster_ece(log_probs, y, bins=bins) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("confidence", [1 - 1e-9, 1.0])
def test_poster_rule_gives_a_perfect_classifier_nine_per_cent(confidence):
    log_probs, y = peaked(1000, 10, 1 - 1e-9, wrong=0)
    if confidence == 1:  # probabilities that round to exactly zero and one
        log_probs = torch.full_like(log_probs, -800.0)
        log_probs[:, 0] = 0.0
    assert 100 * metrics.poster_ece(log_probs, y) == pytest.approx(9.00, abs=1e-5)
    assert 100 * metrics.classification_metrics(log_probs, y)["ece"] == pytest.approx(0, abs=1e-5)


def test_poster_rule_gives_an_honest_classifier_nine_and_a_half_per_cent():
    """Confidence 0.95, right in exactly 95 % of the rows: calibrated, with nothing drawn.

    The nine small probabilities of a row sit in the lowest bin (upper edge 0.1) and never earn
    a hit; the large one sits in the highest (upper edge 1) and earns one in 95 % of the rows:
    (9 * 0.1 + 0.05) / 10.
    """
    log_probs, y = peaked(2000, 10, 0.95, wrong=100)
    assert 100 * metrics.poster_ece(log_probs, y) == pytest.approx(9.50, abs=1e-9)
    assert metrics.classification_metrics(log_probs, y)["ece"] == pytest.approx(0, abs=1e-12)


def test_poster_rule_on_labels_drawn_from_an_honest_classifier():
    """The source's measured pair: 9.48 % by the poster's rule, 0.19 % by the standard one.

    With labels drawn from the predictions, the share of hits has a standard deviation of
    sqrt(.95 * .05 / n) = 0.07 % of rows here, and one hit is worth a tenth of that in the
    poster's number. 4.5 deviations: a false alarm in 150,000.
    """
    n, generator = 100_000, torch.Generator().manual_seed(0)
    log_probs, _ = peaked(n, 10, 0.95, wrong=0)
    y = torch.multinomial(log_probs[0].exp(), n, replacement=True, generator=generator)
    sd = 100 * math.sqrt(0.95 * 0.05 / n)
    poster = 100 * metrics.poster_ece(log_probs, y)
    assert poster == pytest.approx(9.50, abs=4.5 * sd / 10)
    assert poster == pytest.approx(9.48, abs=0.03)
    assert 100 * metrics.classification_metrics(log_probs, y)["ece"] < 4.5 * sd


# -- regression -------------------------------------------------------------------------------


def mixture(s, n, t, seed=0):
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(s, n, t, generator=g, dtype=torch.float64)
    stds = 0.3 + torch.rand(s, 1, t, generator=g, dtype=torch.float64)
    weights = torch.softmax(torch.randn(s, generator=g, dtype=torch.float64), 0)
    y = torch.randn(n, t, generator=g, dtype=torch.float64)
    y_std = 0.5 + 3 * torch.rand(t, generator=g, dtype=torch.float64)
    return means, stds, weights, y, y_std


@pytest.mark.parametrize(("s", "n", "t"), [(1, 5, 1), (4, 6, 1), (3, 7, 2)])
def test_regression_metrics_in_original_units_by_brute_force(s, n, t):
    means, stds, weights, y, y_std = mixture(s, n, t)
    scores = metrics.regression_metrics(means, stds, weights, y, y_std)
    nll, squares = 0.0, []
    for i in range(n):
        density = 0.0
        for k in range(s):
            term = float(weights[k])
            for j in range(t):
                scale = float(y_std[j])
                mean, sd = float(means[k, i, j]) * scale, float(stds[k, 0, j]) * scale
                z = (float(y[i, j]) * scale - mean) / sd
                term *= math.exp(-z * z / 2) / (sd * math.sqrt(2 * math.pi))
            density += term
        nll -= math.log(density) / n
        for j in range(t):
            mixed = sum(float(weights[k] * means[k, i, j]) for k in range(s))
            squares.append(((mixed - float(y[i, j])) * float(y_std[j])) ** 2)
    assert scores["nll"] == pytest.approx(nll, rel=1e-10)
    assert scores["rmse"] == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-10)


@pytest.mark.parametrize("t", [1, 2])
def test_density_in_original_units_integrates_to_one(t):
    """Quadrature over the targets, in the targets' own units, of exp(-nll) of a single row.

    The trapezium rule on a Normal errs by 2 exp(-2 (pi sd / step)^2): below 1e-8 here.
    """
    means = torch.tensor([[-0.8, 0.3], [0.5, 1.1], [1.0, -1.0]], dtype=torch.float64)[:, None, :t]
    stds = torch.tensor([[0.4, 0.5], [0.6, 0.3], [0.35, 0.6]], dtype=torch.float64)[:, None, :t]
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    y_std = torch.tensor([2.5, 0.4], dtype=torch.float64)[:t]
    step, side = 0.3, torch.arange(-15, 16, dtype=torch.float64) * 0.3
    cell = float((step * y_std).prod())
    total = 0.0
    for y in torch.cartesian_prod(*[side] * t).reshape(-1, 1, t):
        total += cell * math.exp(-metrics.regression_metrics(means, stds, weights, y, y_std)["nll"])
    assert total == pytest.approx(1.0, abs=1e-6)


def test_one_normal_component_is_torch_normal():
    means, stds, weights, y, y_std = mixture(1, 30, 2, seed=6)
    normal = torch.distributions.Normal(means[0] * y_std, stds[0] * y_std)
    scores = metrics.regression_metrics(means, stds, weights, y, y_std)
    assert scores["nll"] == pytest.approx(float(-normal.log_prob(y * y_std).sum(-1).mean()))


def test_components_are_joint_over_targets():
    """Two modes at (-2, -2) and (2, 2): a target at (2, -2) belongs to neither."""
    means = torch.tensor([[[-2.0, -2.0]], [[2.0, 2.0]]])
    half = torch.tensor([0.5, 0.5])
    unit = torch.ones(2)
    on = metrics.regression_metrics(means, unit, half, torch.tensor([[2.0, 2.0]]), unit)["nll"]
    off = metrics.regression_metrics(means, unit, half, torch.tensor([[2.0, -2.0]]), unit)["nll"]
    assert on == pytest.approx(math.log(2) + math.log(2 * math.pi), abs=1e-6)
    assert off == pytest.approx(8 + math.log(2 * math.pi), abs=1e-6)


def test_far_targets_and_weightless_components_stay_finite():
    means, stds, _, y, y_std = mixture(2, 4, 1)
    weights = torch.tensor([1.0, 0.0])
    scores = metrics.regression_metrics(means, stds, weights, y + 1000, y_std)
    alone = metrics.regression_metrics(means[:1], stds[:1], torch.ones(1), y + 1000, y_std)
    assert scores == pytest.approx(alone)
    assert math.isfinite(scores["nll"])


@pytest.mark.parametrize("shape", [(), (2,), (3, 1, 1), (3, 5, 2), (5, 1)])
def test_deviations_broadcast(shape):
    means, _, weights, y, y_std = mixture(3, 5, 2)
    stds = torch.full(shape, 0.7, dtype=torch.float64)
    full = metrics.regression_metrics(means, stds.expand(3, 5, 2), weights, y, y_std)
    assert metrics.regression_metrics(means, stds, weights, y, y_std) == full


@pytest.mark.parametrize(
    "change",
    [
        {"means": torch.zeros(5, 2)},
        {"weights": torch.ones(2) / 2},
        {"y": torch.zeros(5)},
        {"stds": torch.ones(3)},
        {"stds": torch.zeros(2)},
        {"y": torch.full((5, 2), torch.nan)},
        {"weights": torch.tensor([1.5, -0.5, 0.0])},
    ],
)
def test_regression_metrics_refuse(change):
    means, stds, weights, y, y_std = mixture(3, 5, 2)
    arguments = {"means": means, "stds": stds, "weights": weights, "y": y, "y_std": y_std}
    with pytest.raises(PyroccamError):
        metrics.regression_metrics(**{**arguments, **change})


# -- spread over repeats ----------------------------------------------------------------------


def test_mean_spread():
    runs = [{"nll": 1.0, "error": 0.1}, {"nll": 2.0}, {"nll": 6.0}]
    spread = metrics.mean_spread(runs)
    assert list(spread) == ["nll", "error"]
    assert spread["nll"] == {"mean": 3.0, "sd": pytest.approx(np.std([1, 2, 6], ddof=1)), "n": 3}
    assert spread["error"] == {"mean": 0.1, "sd": None, "n": 1}
    assert metrics.mean_spread([{"x": 1e9 + 0.1}] * 3)["x"]["sd"] == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_mean_spread_refuses_a_diverged_run(value):
    with pytest.raises(PyroccamError):
        metrics.mean_spread([{"nll": 1.0}, {"nll": value}])


@pytest.mark.parametrize("bins", [2, 4, 8])
def test_a_bin_holds_its_lower_edge(bins):
    """A confidence on an edge, 1 / classes, is in the bin above it."""
    table = metrics.reliability(torch.zeros(3, bins) - math.log(bins), torch.zeros(3).long(), bins)
    assert table.counts.tolist() == [0, 3, *[0] * (bins - 2)]


@pytest.mark.parametrize("bins", [2, 4])
def test_a_bin_of_the_poster_holds_its_upper_edge(bins):
    """Of equal probabilities 1 / bins as many are hits as the edge above them says."""
    equal, first = torch.zeros(3, bins) - math.log(bins), torch.zeros(3).long()
    assert metrics.poster_ece(equal, first, bins=bins) == pytest.approx(0.0, abs=1e-12)
