import math
from types import SimpleNamespace

import numpy as np
import pytest
from pyroccam import guides
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.diagnostics.trend import LEAST_ROWS, convergence, trend
from pyroccam.inference.training.settings import Settings
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


def history(losses, every=1):
    return [{"epoch": float(every * (k + 1)), "loss": float(v)} for k, v in enumerate(losses)]


def alarms(values, level=0.95):
    time = np.arange(values.shape[1], dtype=np.float64)
    intervals = [trend(time, row).interval(level) for row in values]
    return sum(low > 0 or high < 0 for low, high in intervals)


def test_the_slope_is_least_squares():
    rng = np.random.default_rng(1)
    time, values = np.cumsum(rng.uniform(0.9, 1.1, 30)), rng.normal(size=30)
    found, theirs = trend(time, values), stats.linregress(time, values)
    assert found.slope == pytest.approx(theirs.slope)
    assert found.level - found.slope * found.middle == pytest.approx(theirs.intercept)


def test_white_noise_gives_students_t():
    """Exactly: of 4,000 series the t values are compared by their whole distribution."""
    time = np.arange(25, dtype=np.float64)
    values = autoregression(4000, 25, 0.0)
    lines = [trend(time, row + 0.3 * time) for row in values]
    ratios = [(line.slope - 0.3) / line.error for line in lines]
    assert {line.freedom for line in lines} == {3}
    assert stats.kstest(ratios, stats.t(3).cdf).pvalue > 1e-4
    assert stats.kstest(ratios, stats.norm.cdf).pvalue < 1e-9  # it would see another one


@pytest.mark.parametrize(
    ("phi", "size", "rate"), [(0.5, 25, 0.09), (0.5, 100, 0.09), (0.8, 50, 0.19)]
)
def test_false_alarms_of_dependent_noise_stay_where_they_are_said_to_be(phi, size, rate):
    count = 1500
    found = alarms(autoregression(count, size, phi))
    assert stats.binom.sf(found - 1, count, rate) > 1e-6, found / count
    # not because it never alarms
    assert found / count > 0.03


def test_the_wave_estimate_is_unbiased_for_white_noise():
    time = np.arange(40, dtype=np.float64)
    variances = [trend(time, row).error ** 2 for row in autoregression(3000, 40, 0.0)]
    truth = 1 / ((time - time.mean()) ** 2).sum()
    error = truth * math.sqrt(2 / 4 / 3000)  # of a mean of chi-squares of 4
    assert abs(np.mean(variances) - truth) < 5 * error


def test_a_slow_decay_is_seen():
    """By 5 standard deviations of the noise over the window: power of about 90 %."""
    decay = 6.0 * np.exp(-np.arange(60) / 60.0)
    noise = (decay[30] - decay[-1]) / 5.0
    noisy = noise * autoregression(300, 60, 0.5, seed=2)
    found = [convergence(history(decay + row)).verdict for row in noisy]
    assert found.count("poor") / 300 > 0.8
    assert found.count("good") == 0


def test_a_fit_at_rest_is_good_and_one_in_noise_doubtful():
    quiet = autoregression(200, 60, 0.5, seed=3)
    found = [convergence(history(2.0 + 0.001 * row)).verdict for row in quiet]
    assert found.count("good") / 200 > 0.9
    assert found.count("poor") == 0  # whatever trend is seen is not worth a thing
    found = [convergence(history(2.0 + row)).verdict for row in quiet]
    assert found.count("doubtful") / 200 > 0.85
    assert found.count("good") == 0


def test_the_numbers_of_a_straight_line():
    rng = np.random.default_rng(0)
    losses = 5.0 - 0.02 * np.arange(50) + 1e-6 * rng.normal(size=50)
    found = convergence(history(losses, every=4))
    assert found.per_epoch == pytest.approx(0.005, rel=1e-4)
    assert (found.first, found.last) == (104.0, 200.0)
    assert found.gain == pytest.approx(0.005 * 96, rel=1e-4)
    assert found.low < found.gain < found.high
    finding = found.finding()
    assert finding.verdict == "poor"
    assert "Train longer" in finding.text
    assert finding.numbers["gain"] == found.gain
    (ax,) = finding.figure.axes
    assert ax.get_ylabel() == "loss (nats a row)"
    assert len(ax.lines[1].get_xdata()) == 25


def test_a_rising_loss_is_no_convergence():
    finding = convergence(history(1.0 + 0.01 * np.arange(50))).finding()
    assert finding.verdict == "poor"
    assert "rises" in finding.text


def test_a_warm_up_is_not_read_as_improvement():
    """The loss falls while the KL grows into it from above, and is at rest afterwards."""
    rng = np.random.default_rng(0)
    losses = np.concatenate([np.linspace(3.0, 1.0, 50), np.ones(50)])
    rows = history(losses + 1e-3 * rng.normal(size=100))
    # the trap: a window that reaches into the warm-up
    assert convergence(rows, share=0.8).finding().verdict == "poor"
    found = convergence(rows, after=50, share=0.8)
    assert found.first == 61.0
    assert found.finding().verdict == "good"
    whole = convergence(rows, after=50, share=1.0)
    assert whole.first == 51.0  # the loss of row 51 is of the first epoch after the warm-up


def as_fit(losses, model=None, guide=None, **settings):
    parts = {"model": model, "guide": guide or SimpleNamespace(schedule=guides.Schedule(0.0))}
    settings = Settings(epochs=len(losses), **settings)
    data = SimpleNamespace(N=500)
    return SimpleNamespace(history=history(losses), settings=settings, data=data, **parts)


def test_a_fit_knows_when_its_objective_was_another():
    losses = np.ones(100) + 1e-3 * np.random.default_rng(0).normal(size=100)
    held = SimpleNamespace(schedule=guides.Schedule(0.6))
    annealed = SimpleNamespace(temperature=SimpleNamespace(schedule=SimpleNamespace(over=0.5)))
    for first, fit in (
        (1.0, as_fit(losses)),
        (31.0, as_fit(losses, kl_warmup=0.3)),
        (61.0, as_fit(losses, guide=held, kl_warmup=0.3)),
        (51.0, as_fit(losses, model=annealed)),
    ):
        found = convergence(fit, share=1.0)
        assert found.first == first
        assert found.rows == 500
        assert found.annealed
    steady = convergence(as_fit(losses, schedule="constant"))
    assert not steady.annealed
    assert "over all rows" in steady.finding().text


def test_the_pace_of_a_bound_that_grew_as_the_learning_rate_fell_leads_nowhere():
    falling = 5.0 - 0.05 * np.arange(100.0)
    found, steady = (convergence(as_fit(falling, schedule=s)) for s in ("cosine", "constant"))
    assert (found.verdict, steady.verdict) == ("doubtful", "poor")
    assert found.gain == steady.gain > 1.0
    ends = [max(fig.axes[0].lines[2].get_xdata()) for fig in (found.figure(), steady.figure())]
    assert ends[0] == found.last < ends[1]
    for flat in (0.0 * falling, -falling):  # at rest, and rising
        one, other = (convergence(as_fit(flat, schedule=s)) for s in ("cosine", "constant"))
        assert one.verdict == other.verdict


def test_few_evaluations_are_refused():
    least = LEAST_ROWS
    found = convergence(history(np.arange(40.0)), after=20.0)  # half of 20 would be too few
    assert (found.first, found.last) == (25.0, 40.0)
    assert convergence(history(np.ones(least) + 1e-3 * np.arange(least) % 2)).line is not None
    found = convergence(history(np.ones(least - 1)))
    finding = found.finding()
    assert finding.verdict == "refused"
    assert "evaluations" in finding.text
    assert finding.figure is None
    assert finding.to_json()["numbers"] == {"evaluations": least - 1, "worth": 0.01}
    late = convergence(history(np.ones(100)), after=90).finding()
    assert late.verdict == "refused"
    assert "epoch 90" in late.text
    # a temperature that falls to the end leaves nothing
    ever = SimpleNamespace(temperature=SimpleNamespace(schedule=SimpleNamespace(over=1.0)))
    assert convergence(as_fit(np.ones(100), model=ever)).finding().verdict == "refused"


def test_what_cannot_be_read_is_refused():
    for losses, options in (
        ([*[1.0] * 40, math.nan], {}),
        ([1.0] * 40, {"share": 0.0}),
        ([1.0] * 40, {"worth": 0.0}),
    ):
        with pytest.raises(PyroccamError):
            convergence(history(losses), **options)
