"""LOO of a posterior that is known, held-out densities, and comparison of methods."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from known_regression import exact_loo, regression
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference import diagnostics
from pyroccam.inference.diagnostics.leave_one_out import Comparison, Correction
from pyroccam.inference.training.result import Fit
from torch import Tensor, nn

DRAWS = 4000


def problem(rows: int = 40, inputs: int = 3, correlated: float = 0.0) -> tuple[Tensor, Tensor]:
    """Inputs with orthogonal columns, or columns that share a part; targets."""
    g = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(rows, inputs, generator=g))[0] * math.sqrt(rows) * 0.3
    x = x + correlated * x.roll(1, 1)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(rows, 1, generator=g)
    return x, y


def exact_of(x: Tensor, y: Tensor) -> float:
    return float(exact_loo(x.double().numpy(), y.double().numpy()[:, 0]).sum())


def spread(x: Tensor, y: Tensor, correction: Correction, width: float = 1.0) -> tuple[float, float]:
    """Mean and standard error over eight sets of draws."""
    fit = regression(x, y, width=width)
    found = [diagnostics.loo(fit, DRAWS // 4, correction=correction, seed=k).elpd for k in range(8)]
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(8))


def test_loo_of_an_exact_posterior() -> None:
    x, y = problem()
    mean, error = spread(x, y, "none")  # q is the posterior, and p / q a constant
    assert abs(mean - exact_of(x, y)) < 4 * error + 1e-3  # 4 errors: 3 in 1,000 with 7 degrees
    assert error < 0.05


def test_the_correction_makes_up_for_a_posterior_that_is_too_wide() -> None:
    x, y = problem(correlated=0.5)
    exact = exact_of(x, y)
    with_it, error = spread(x, y, "p/q", width=1.4)
    without, other = spread(x, y, "none", width=1.4)
    assert abs(with_it - exact) < 4 * error + 2e-3
    assert abs(without - exact) > 10 * other


def test_pointwise_terms_and_effective_parameters() -> None:
    x, y = problem()
    found = diagnostics.loo(regression(x, y), DRAWS, correction="p/q")
    exact = exact_loo(x.double().numpy(), y.double().numpy()[:, 0])
    np.testing.assert_allclose(found.pointwise, exact, atol=0.05)
    assert found.elpd == pytest.approx(found.pointwise.sum())
    assert found.error == pytest.approx(math.sqrt(40) * found.pointwise.std(ddof=1))
    # The exact posterior predictive of all rows, less the exact LOO.
    assert 1.0 < found.p_loo < 3.5  # three weights, hardly shrunk
    assert found.khat_joint is not None
    assert found.khat_joint < 0.3
    assert found.bad() == 0
    assert found.finding().verdict == "good"


def test_an_outlier_is_told_by_its_khat() -> None:
    x, y = problem(rows=12)
    x, y = x.clone(), y.clone()
    x[0], y[0] = 6.0, -30.0
    found = diagnostics.loo(regression(x, y), DRAWS)
    assert found.khat[0] > 0.7 > np.median(found.khat)
    assert found.bad() >= 1
    assert found.finding().verdict == "poor"
    worse = dataclasses.replace(found, khat=np.where(np.arange(12) < 7, 2.0, 0.1))
    finding = worse.finding()
    assert (finding.verdict, finding.numbers["bad"]) == ("refused", 7)
    half = dataclasses.replace(found, khat=np.where(np.arange(12) < 6, 2.0, 0.1))
    assert half.finding().verdict == "poor"


def test_many_dimensions_are_not_corrected() -> None:
    x, y = problem(rows=60, inputs=50, correlated=0.9)
    found = diagnostics.loo(regression(x, y), 400)
    assert found.khat_joint is not None
    assert found.khat_joint > 0.7
    assert found.correction == "none"
    assert "no number of draws" in found.why
    assert diagnostics.loo(regression(x, y), 400, correction="p/q").correction == "p/q"


@pytest.fixture(scope="module")
def spirals() -> data.Dataset:
    return data.load("spirals", seed=0)


@pytest.fixture(scope="module")
def depth(spirals: data.Dataset) -> Fit:
    model = models.LearntDepth.mlp(spirals, width=6, max_depth=3)
    return inference.fit(model, guides.CategoricalDepth(model), spirals, epochs=4, progress=False)


@pytest.fixture(scope="module")
def network(spirals: data.Dataset) -> Fit:
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    model = models.BayesianNetwork(net, spirals, prior=models.priors.Normal(1.0))
    return inference.fit(model, guides.MeanField(model), spirals, epochs=4, progress=False)


def test_held_out_density_is_the_nll(depth: Fit, network: Fit) -> None:
    found = diagnostics.elpd(depth)
    assert -found.mean == pytest.approx(depth.evaluate("test")["nll"], abs=1e-5)
    drawn = diagnostics.elpd(network, draws=20)
    assert -drawn.mean == pytest.approx(network.evaluate("test")["nll"], abs=1e-5)


def test_held_out_density_of_regression_is_in_original_units() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(60, 2, generator=g)
    y = 100.0 * x.sum(1, keepdim=True) + torch.randn(60, 1, generator=g)
    d = data.Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:], task="regression")
    model = models.LearntDepth.mlp(d, width=4, max_depth=2)
    fit = inference.fit(model, guides.CategoricalDepth(model), d, epochs=3, progress=False)
    assert -diagnostics.elpd(fit).mean == pytest.approx(fit.evaluate("test")["nll"], abs=1e-4)
    model2 = models.BayesianNetwork(nn.Linear(2, 1), d, prior=models.priors.Normal(1.0))
    fit2 = inference.fit(model2, guides.MeanField(model2), d, epochs=3, progress=False)
    found = diagnostics.elpd(fit2, draws=20)
    assert -found.mean == pytest.approx(fit2.evaluate("test")["nll"], abs=1e-4)


def test_the_gain_over_no_network(depth: Fit) -> None:
    """Against frequencies counted by hand, one added to each."""
    found = diagnostics.elpd(depth)
    d = depth.data
    ones = int(d.y_train.sum())
    p = (ones + 1) / (d.N + 2)
    base = [math.log(p if y else 1 - p) for y in d.y_test.tolist()]
    assert found.gain == pytest.approx(found.mean - float(np.mean(base)))
    assert "held-out" in found.finding().name
    constant = regression(*problem(rows=10))
    own = diagnostics.elpd(constant, draws=50)
    y = constant.data.y_train.double()
    base = torch.distributions.Normal(y.mean(), y.std()).log_prob(constant.data.y_test.double())
    assert own.gain == pytest.approx(own.mean - float(base.mean()))


def test_comparison_is_paired_over_rows(depth: Fit, network: Fit) -> None:
    found = diagnostics.compare({"depth": depth, "net": network}, split="test", draws=50)
    first, second = found.table
    by_name = {"depth": diagnostics.elpd(depth), "net": diagnostics.elpd(network, draws=50)}
    gap = by_name[first["name"]].pointwise - by_name[second["name"]].pointwise
    assert second["difference"] == pytest.approx(gap.sum())
    assert second["difference_error"] == pytest.approx(math.sqrt(len(gap)) * gap.std(ddof=1))
    assert first["difference"] == 0.0
    assert first["weight"] + second["weight"] == pytest.approx(1.0)
    assert first["name"] in str(found)
    assert first["name"] in found.finding().text


def test_the_table_in_words_is_as_wide_as_its_longest_name() -> None:
    row = {"elpd": -27.7, "difference": 0.0, "difference_error": 0.0, "weight": 1.0, "bad": 0}
    names = ("point", "variational dropout by weight")
    found = Comparison([{"name": name, **row} for name in names], held_out=True)
    lines = str(found).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.index("-27.7") for line in lines[1:]] == [lines[0].index("elpd") - 1] * 2


def test_what_has_no_loo(spirals: data.Dataset, depth: Fit, network: Fit) -> None:
    with pytest.raises(PyroccamError):
        diagnostics.loo(depth)
    model = models.BayesianNetwork(nn.Linear(2, 2), spirals, prior=models.priors.Normal(1.0))
    point = inference.fit(model, guides.Delta(model), spirals, epochs=1, progress=False)
    with pytest.raises(PyroccamError):
        diagnostics.loo(point)
    with pytest.raises(PyroccamError):
        diagnostics.loo(network, 50, rows=20, correction="p/q")
    with pytest.raises(PyroccamError):
        diagnostics.elpd(network, split="train")
    other = inference.fit(*_pair(network, data.load("spirals", seed=1)), epochs=1, progress=False)
    with pytest.raises(PyroccamError):
        diagnostics.compare({"a": network, "b": other}, split="test")
    with pytest.raises(PyroccamError):
        diagnostics.compare({})


def _pair(fit: Fit, d: data.Dataset) -> tuple[models.BayesianNetwork, nn.Module, data.Dataset]:
    model = models.BayesianNetwork(nn.Linear(2, 2), d, prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model), d
