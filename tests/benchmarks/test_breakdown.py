"""The rows of the breakdown differ by what they say, and its parts add up."""

from types import SimpleNamespace

import pyro
import pytest
import torch
from pyroccam import guides, models
from pyroccam.benchmarks import breakdown as script
from pyroccam.benchmarks import harness
from pyroccam.benchmarks.breakdown import PARTS, Free, WithoutProduct, breakdown, parts
from pyroccam.benchmarks.harness import Measured, Plan, Report
from pyroccam.benchmarks.report import read
from pyroccam.benchmarks.workloads.lenet import LeNetProblem
from pyroccam.inference.elbo.estimator import bound
from typer.testing import CliRunner

CPU = torch.device("cpu")
SMALL = LeNetProblem((6, 5, 4, 3), batch=8, N=50)


def test_parts_are_differences_within_a_round():
    ms = {name: [3.0 * k, 5.0 * k] for k, name in enumerate(dict.fromkeys(sum(PARTS.values(), ())))}
    ms[script.BASE] = [2.0, 4.0]
    rows = [Measured(name, rounds_ms=rounds) for name, rounds in ms.items()]
    report = Report("breakdown", "", {}, script.BASE, Plan(), {}, rows)
    found = parts(report)
    whole = [1 + sum(found[p].median for p in list(PARTS)[:5])]
    expected = [sum(a / b for a, b in zip(ms[script.WHOLE], [2.0, 4.0], strict=True)) / 2]
    assert whole == pytest.approx(expected)
    rows[0].rounds_ms = []  # a row that failed
    assert len(parts(report)) < len(PARTS)


def test_without_a_prior_there_is_no_kl_and_without_a_product_every_spread_has_a_slope():
    x, y = SMALL.data(CPU)
    with pyro.validation_enabled(False):
        for scales, handler in ((True, models.LocalReparameterization), (False, WithoutProduct)):
            prior = Free(scales)
            model = models.BayesianNetwork(SMALL.net(CPU), SMALL, prior=prior)
            guide = guides.MeanField(model, local=handler(model))
            run = bound(model, guide)
            assert float(run.terms(x, y).kl) == 0.0
            run(x, y).backward()
            slopes = {name: p.grad for name, p in guide.named_parameters()}
            assert all(g is not None and bool((g != 0).any()) for g in slopes.values())
            assert any("scale.loc" in name for name in slopes) == scales


def test_the_script(monkeypatch, tmp_path):
    def tiny(name, problem, device):
        return breakdown(name, SMALL, device, compile=False)

    monkeypatch.setattr(script, "breakdown", tiny)
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=lambda: None))  # slow among tests
    before = torch.get_num_threads()
    arguments = ["--out", str(tmp_path), "--rounds", "1", "--steps", "1"]
    result = CliRunner().invoke(script.app, arguments)
    torch.set_num_threads(before)
    assert result.exit_code == 0, (result.output, result.exception)
    found = read(tmp_path / "cpu" / "breakdown.json")
    assert [row.error for row in found.contenders] == [None] * len(found.contenders)
    # A plain network is a plain network: the same loss in torch and in our step.
    plain, base = found["plain, compiled"].loss, found[found.base].loss
    assert plain == pytest.approx(base, rel=1e-5)
    assert set(parts(found)) == set(PARTS)
    again = CliRunner().invoke(script.app, [*arguments, "--report"])
    assert "| KL | " in again.stdout
    assert again.stdout in result.stdout
