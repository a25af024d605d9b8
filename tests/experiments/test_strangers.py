"""Sets, networks, rivals and tables of strangers."""

import pytest
import torch
from pyroccam import data as datasets
from pyroccam.cli.requests import RunRequest
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.execution import RunOptions, run
from pyroccam.data import Dataset
from torch import nn
from torch.distributions import Normal

from experiments.trials.strangers import depth, networks, ordinary
from experiments.trials.strangers.sets import SETS
from experiments.trials.strangers.table import relative, signed_rank


@pytest.mark.parametrize("name", ["digits", "digit-rows", "small-words", "waves", "diabetes"])
def test_each_network_of_a_set_takes_its_rows(name, tmp_path):
    one = SETS[name]
    path = one.write(tmp_path / f"{name}.npz", None)
    rows = datasets.load(str(path), **one.options)
    assert len(rows.x_train) + len(rows.x_val) <= 7000
    for network in one.networks:
        net = getattr(networks, network)(rows.input_shape, rows.outputs)
        assert net(rows.x_train[:3]).shape == (3, rows.outputs)
    before = path.stat().st_mtime_ns
    assert one.write(path, None).stat().st_mtime_ns == before  # as it is there


def sines():
    torch.manual_seed(0)
    x = torch.rand(300, 2) * 4
    y = torch.sin(2 * x[:, :1]) + 0.1 * torch.randn(300, 1)
    return Dataset.from_tensors(x[:200], y[:200], x[200:], y[200:], val_fraction=0.2)


def test_the_ordinary_training_learns_and_its_checkpoint_is_the_best(monkeypatch):
    monkeypatch.setattr(ordinary, "RATES", (3e-3, 1e-2))
    monkeypatch.setattr(ordinary, "epochs_of", lambda rows: 100)
    data = sines()

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    found = ordinary.search(make, data, 0)
    assert found.test["rmse"] < 0.25
    assert found.val_nll == pytest.approx(
        min(ordinary.train(make(), data, lr=lr, seed=0, epochs=ordinary.epochs_of(160)).val_nll
            for lr in ordinary.RATES)
    )  # fmt: skip
    outputs, y = found.net(data.x_test).detach(), data.y_test
    sd = (found.net(data.x_val) - data.y_val).detach().square().mean().sqrt()
    nll = -torch.distributions.Normal(outputs, sd).log_prob(y).mean() + data.y_std.log()
    assert found.test["nll"] == pytest.approx(float(nll), rel=1e-4)
    pruned = ordinary.prune_by_magnitude(found, data, 0, sparsities=(0.5, 0.9))
    for one, share in zip(pruned, (0.5, 0.9), strict=True):
        weights = [p for p in one.net.parameters() if p.dim() > 1]
        zeros = sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)
        assert zeros == pytest.approx(share, abs=0.02)
    largest = found.net[0].weight.abs().max()
    assert bool((pruned[1].net[0].weight[found.net[0].weight.abs() == largest] != 0).all())


def test_the_signed_rank_test_and_errors_without_unit():
    assert signed_rank([-0.1, -0.2, 0.0, -0.3, -0.4]) == 2 / 16  # of the 16 signs of four ranks
    assert signed_rank([-0.1, 0.2, 0.3, 0.4]) == 4 / 16  # the sums of ranks 0 and 1, at both ends
    assert signed_rank([0.0, 0.0]) == 1.0
    assert relative(1.0, 3.0) == -0.5 == relative(100.0, 300.0)
    assert relative(0.0, 0.0) == 0.0


def test_the_coverage_of_a_mixture_of_depths():
    sets = {"epochs": 2, "max_depth": 3}
    config, rows = RunConfig.resolve(RunRequest("ldn", "experiments.sets:polynomial", set_=sets))
    found = run(config, rows, options=RunOptions(progress=False, figures=False, compare=False)).fit
    means = found.outputs(rows.x_test).double()
    scale = found.model.likelihood.scale.detach().double()
    below = sum(
        weight * Normal(mean, scale).cdf(rows.y_test.double())
        for weight, mean in zip(found.weights.double(), means, strict=True)
    )
    for share in (0.5, 0.95):
        inside = (below > (1 - share) / 2) & (below < (1 + share) / 2)
        assert depth.coverage(found, share) == pytest.approx(float(inside.double().mean()))
    assert 0 < depth.coverage(found, 0.5) < depth.coverage(found, 0.95)
