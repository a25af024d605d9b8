"""The scripts about variance networks."""

import math

import pytest
import torch
from pyroccam import guides, models
from pyroccam.models import priors
from random_weights import Rows, small_net
from scripts import call, read
from typer import Typer
from typer.testing import CliRunner

from experiments.published.variance import mean_propagation, phase_transition
from experiments.published.variance import networks as variance

SMALL = ("--data", "digits", "--network", "perceptron", "--set", "hidden=[10,8]",
         "--set", "batch_size=100")  # fmt: skip


def test_the_tables(tmp_path):
    names = "deterministic,dropout,variance,additive"
    call(variance, *SMALL, "--contenders", names, "--epochs", 3, "--seeds", 2, "--out", tmp_path)
    for name in names.split(","):
        path = tmp_path / f"digits-perceptron-{name}.json"
        found = read(path)
        assert found["config"]["settings"]["batch_size"] == 100  # whatever a contender has
        assert [one["seed"] for one in found["runs"]] == [0, 1]
        one = found["runs"][0]
        assert set(one["test"]) == {"stochastic", "deterministic", "ensemble"}
        assert ("elbo" in one["numbers"]) == (name in ("variance", "additive"))
        assert one["numbers"].get("elbo", -1.0) < 0
        assert found["spread"]["ensemble"]["n"] == 2
        assert found["published"] is None  # of other data
        assert bool(one["means_worth_nats"]) == (name == "additive")
    before = path.stat().st_mtime_ns
    call(variance, *SMALL, "--contenders", names, "--epochs", 3, "--seeds", 2, "--out", tmp_path)
    assert path.stat().st_mtime_ns == before
    app = Typer()
    app.command()(variance.main)
    said = CliRunner().invoke(app, [*SMALL, "--contenders", "varianse", "--out", str(tmp_path)])
    assert "Did you mean 'variance'?" in said.output


def test_the_phase_transition(tmp_path):
    """From an α at which the means do not matter any more: with and without them is the same."""
    more = ("--epochs", 60, "--seeds", 1, "--log-alpha", 6, "--rows", 140, "--out", tmp_path)
    sets = ("hidden=[40,40]", "evaluations=2", "lr=0.01", "batch_size=64")
    call(phase_transition, *SMALL[:4], *(word for one in sets for word in ("--set", one)), *more)
    history = read(tmp_path / "digits-perceptron-0.json")["history"]
    assert [row["epoch"] for row in history] == [30.0, 60.0]
    last = history[-1]
    assert last["log_alpha 3"] == pytest.approx(6.0, abs=1.0)
    assert last["zero_mean_kl"] == 0.0
    assert last["accuracy"] > max(0.5, last["permuted_accuracy"] + 0.1)
    assert last["zero_mean_log_likelihood"] == pytest.approx(last["log_likelihood"], abs=0.1)
    bounds = phase_transition.with_bounds(last, 1000)
    assert bounds["bound"] == last["log_likelihood"] - last["kl"] / 1000
    assert bounds["zero_mean_bound"] == last["zero_mean_log_likelihood"]
    assert (tmp_path / "digits-perceptron.png").exists()


def test_permuted_deviations():
    """Means and biases stay, deviations are the same numbers elsewhere."""
    model = models.BayesianNetwork(small_net(), Rows(3), prior=priors.LogUniform())
    guide = guides.VariationalDropout(model, log_alpha=1.0)
    torch.manual_seed(0)
    with torch.no_grad():
        guide.part("factors")["0/bias"].loc.fill_(7.0)
    other = phase_transition.permuted(model, guide)
    rates = phase_transition.log_alphas(model, guide)
    assert rates["0"] == pytest.approx(1.0, abs=1e-4)
    assert other.posterior("0.bias").mean.tolist() == [7.0] * 4
    for site in ("0.weight", "2.weight"):
        q, p = (g.posterior(site).base_dist for g in (guide, other))
        assert torch.equal(q.loc, p.loc)
        ordered = [one.scale.detach().flatten().sort().values for one in (q, p)]
        torch.testing.assert_close(*ordered)
        assert not torch.allclose(q.scale, p.scale)


def test_shares_of_weights(tmp_path):
    more = ("--epochs", 3, "--seeds", 1, "--draws", 3, "--contenders", "variance")
    call(mean_propagation, *SMALL, *more, "--out", tmp_path)
    found = read(tmp_path / "digits-perceptron.json")
    (run,) = found["runs"]["variance"]
    for order in mean_propagation.ORDERS:
        accuracy = run[order]["accuracy"]
        assert len(accuracy) == len(mean_propagation.SHARES)
        # No weight drawn, and all drawn, whatever the order.
        assert accuracy[0] == run["random"]["accuracy"][0]
        assert accuracy[-1] == run["random"]["accuracy"][-1]
    assert found["spread"]["variance"]["deterministic"]["mean"] == accuracy[0]
    assert (tmp_path / "digits-perceptron.png").exists()


def test_what_is_asked_for_goes_before_what_a_contender_has(tmp_path, monkeypatch):
    sizes = []
    curve = mean_propagation.curve

    def seen(result, draws):
        sizes.append(result.settings.batch_size)
        return curve(result, draws)

    monkeypatch.setattr(mean_propagation, "curve", seen)
    one = ("--contenders", "mean field, N(0, 1)", "--epochs", 1, "--seeds", 1, "--draws", 2)
    call(mean_propagation, *SMALL, *one, "--out", tmp_path)
    assert sizes == [100]  # and not its own 256


def test_the_share_that_is_needed():
    shares = mean_propagation.SHARES
    rising = {"accuracy": [100.0 * math.sqrt(s) for s in shares]}
    assert mean_propagation.needed(rising, within=6.0) == 0.9
    assert mean_propagation.needed(rising, within=0.1) is None
    assert mean_propagation.needed({"accuracy": [50.0] * len(shares)}) == 0.0
