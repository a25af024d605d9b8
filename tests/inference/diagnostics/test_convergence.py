import math
from types import SimpleNamespace

import numpy as np
import pytest
from pyroccam import guides
from pyroccam.data import PyroccamError
from pyroccam.inference import Settings
from pyroccam.inference.diagnostics import convergence
from pyroccam.inference.diagnostics.trend import LEAST_ROWS, trend
from scipy import stats


def autoregression(series, size, phi, seed=0):
    """Stationary, of standard deviation 1."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(series, size)) * math.sqrt(1 - phi**2)
    found = np.empty_like(noise)
    found[:, 0] = rng.normal(size=series)
    for t in range(1, size):
        found[:, t] = phi * found[:, t - 1] + noise[:, t]
    return found


def as_fit(losses, model=None, held=0.0, every=1, **settings):
    guide = SimpleNamespace(schedule=guides.Schedule(held))
    chosen = Settings(epochs=every * len(losses), **{"schedule": "constant", **settings})
    history = [{"epoch": float(every * (k + 1)), "loss": float(v)} for k, v in enumerate(losses)]
    parts = {"settings": chosen, "data": SimpleNamespace(N=500)}
    return SimpleNamespace(history=history, model=model, guide=guide, **parts)


def annealed(over):
    return SimpleNamespace(temperature=SimpleNamespace(schedule=SimpleNamespace(over=over)))


def test_white_noise_gives_students_t():
    """Exactly: of 4,000 series the t values are compared by their whole distribution."""
    time = np.arange(25, dtype=np.float64)
    values = autoregression(4000, 25, 0.0)
    lines = [trend(time, row + 0.3 * time) for row in values]
    ratios = [(line.slope - 0.3) / line.error for line in lines]
    assert {line.freedom for line in lines} == {3}
    assert stats.kstest(ratios, stats.t(3).cdf).pvalue > 1e-4
    assert stats.kstest(ratios, stats.norm.cdf).pvalue < 1e-9  # it would see another one
    truth = 1 / ((time - time.mean()) ** 2).sum()
    error = truth * math.sqrt(2 / 3 / 4000)  # of a mean of chi-squares of 3
    assert abs(np.mean([line.error**2 for line in lines]) - truth) < 5 * error


def test_verdicts_of_a_decay_of_rest_and_of_noise():
    decay = 6.0 * np.exp(-np.arange(60) / 60.0)
    noise = (decay[30] - decay[-1]) / 5.0  # a power of about 90 %
    series, quiet = (autoregression(200, 60, 0.5, seed=seed) for seed in (2, 3))
    for losses, verdict, least, never in (
        (decay + noise * series, "poor", 0.8, "good"),
        (2.0 + 0.001 * quiet, "good", 0.9, "poor"),
        (2.0 + quiet, "doubtful", 0.85, "good"),
    ):
        found = [convergence(as_fit(row)).verdict for row in losses]
        assert found.count(verdict) / 200 > least
        assert found.count(never) == 0
    assert convergence(as_fit(1.0 + 0.01 * np.arange(50))).finding().verdict == "poor"  # it rises


def test_a_fit_knows_when_its_objective_was_another():
    losses = np.ones(100) + 1e-3 * np.random.default_rng(0).normal(size=100)
    for first, fit in (
        (51.0, as_fit(losses)),
        (66.0, as_fit(losses, kl_warmup=0.3)),
        (81.0, as_fit(losses, held=0.6, kl_warmup=0.3)),
        (76.0, as_fit(losses, annealed(0.5), schedule="cosine")),
    ):
        found = convergence(fit)
        assert (found.first, found.rows) == (first, 500)
        assert found.annealed == (first == 76.0)


def test_the_pace_of_a_bound_that_grew_as_the_learning_rate_fell_leads_nowhere():
    falling = 5.0 - 0.05 * np.arange(100.0)
    found, steady = (convergence(as_fit(falling, schedule=s)) for s in ("cosine", "constant"))
    assert (found.verdict, steady.verdict) == ("refused", "poor")
    assert found.gain == pytest.approx(0.05 * 49)
    assert found.low <= found.gain <= found.high
    rising = convergence(as_fit(-falling, schedule="cosine"))
    assert rising.finding().verdict == rising.verdict == "poor"


def test_few_evaluations_are_refused():
    found = convergence(as_fit(np.arange(40.0), held=0.5))  # half of 20 would be too few
    assert (found.first, found.last) == (25.0, 40.0)
    finding = convergence(as_fit(np.ones(LEAST_ROWS - 1))).finding()
    assert (finding.verdict, finding.figure) == ("refused", None)
    # a temperature that falls to the end leaves nothing
    assert convergence(as_fit(np.ones(100), annealed(1.0))).verdict == "refused"
    with pytest.raises(PyroccamError):
        convergence(as_fit([*[1.0] * 40, math.nan]))
