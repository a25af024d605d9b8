"""Sets, networks, rivals and tables of strangers."""

import pytest
import torch
from pyroccam import data as datasets
from pyroccam.cli import RunRequest
from pyroccam.cli.runs import RunConfig, RunOptions, run
from pyroccam.data import Dataset
from pyroccam.inference.storage import write_json
from torch import nn
from torch.distributions import Normal

from experiments.trials.strangers import depth, networks, ordinary, structured, table
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


def built(network, rows):
    torch.manual_seed(0)
    return getattr(networks, network)(rows.input_shape, rows.outputs).eval()


def rows_of(name, tmp_path):
    one = SETS[name]
    return datasets.load(str(one.write(tmp_path / f"{name}.npz", None)), **one.options)


def test_half_of_the_channels_of_a_network_are_gone_and_it_still_learns(tmp_path, monkeypatch):
    pytest.importorskip("torch_pruning")
    monkeypatch.setattr(ordinary, "epochs_of", lambda rows: 4)
    rows = rows_of("digits", tmp_path)
    dense = built("mlp", rows)
    before = {name: value.clone() for name, value in dense.state_dict().items()}
    small = structured.without_channels(dense, rows.x_train[:2], 0.5)
    rank = dense[1].weight.square().sum(1) / dense[1].weight.square().sum(1).mean()
    rank += dense[3].weight.square().sum(0) / dense[3].weight.square().sum(0).mean()
    kept = rank.argsort()[32:].sort().values
    assert torch.equal(small[1].weight, dense[1].weight[kept])
    (one,) = structured.prune_channels(ordinary.Trained(dense, 0.0, {}, 0.0), rows, 0, (0.5,))
    whole = (64 * 64 + 64) + (64 * 64 + 64) + (64 * 10 + 10)
    assert one.left == ((64 * 32 + 32) + (32 * 32 + 32) + (32 * 10 + 10)) / whole
    assert one.net(rows.x_test).shape == (len(rows.x_test), 10)
    assert one.val_nll < nn.functional.cross_entropy(small(rows.x_val), rows.y_val)
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())


def test_the_signed_rank_test_and_errors_without_unit():
    assert signed_rank([-0.1, -0.2, 0.0, -0.3, -0.4]) == 2 / 16  # of the 16 signs of four ranks
    assert signed_rank([-0.1, 0.2, 0.3, 0.4]) == 4 / 16  # the sums of ranks 0 and 1, at both ends
    assert signed_rank([0.0, 0.0]) == 1.0
    assert relative(1.0, 3.0) == -0.5 == relative(100.0, 300.0)
    assert relative(0.0, 0.0) == 0.0


def put(out, name, network, seed, nll, *, left=0.1, pruned=0.2, other=1.0):
    """Both files of a cell, in which ours has this NLL and the ordinary training the other."""
    known = {"set": name, "half": "kept", "network": network, "seed": seed}
    test = {"rmse": 2.0, "nll": other}
    rivals = {"rows": 9, "ordinary": {"val_nll": 0.0, "test": test, "seconds": 2.0}}
    rivals["pruned"] = [{"val_nll": 0.0, "left": pruned}]
    small = {"test": {"rmse": 1.0, "nll": nll}, "nonzero": 100 * left, "parameters_before": 100}
    ours = {"ours": {"compressed": small, "seconds": 4.0 ** (1 + seed)}}
    ours["ours"] |= {"ordinary_seconds": 1.0} if name != "iris" else {"seconds": 8.0}
    for folder, part in (("rivals", rivals), ("gnj", ours)):
        write_json(out / folder / f"{name}-{network}-{seed}.json", {**known, **part})


def test_the_table_says_of_all_cells_what_their_files_say(tmp_path):
    for k, name in enumerate(["iris", "wines", "mnist"], 1):
        put(tmp_path, name, "mlp", 0, 1.0 - k / 10)
    put(tmp_path, "naval", "mlp", 0, 0.3, left=0.9)
    put(tmp_path, "naval", "mlp", 1, 0.29, left=0.9)
    put(tmp_path, "waves", "gru", 0, 0.5)
    (tmp_path / "rivals/waves-gru-0.json").unlink()  # of which there is nothing to say yet
    put(tmp_path, "friedman", "mlp", 0, 0.5)
    write_json(tmp_path / "gnj/friedman-mlp-0.json", {"failed": "x"})
    found, failed = table.read_cells(tmp_path, "gnj")
    text = table.text_of(found, failed)
    assert "| iris | mlp | 9 | 1 | 2.000 | 1.000 | 1.000 | 0.900 |" in text  # without a mark
    assert "| naval | mlp | 9 | 2 | 2.000 | 1.000 + | 1.000 | 0.295 + |" in text
    assert "| NLL | 1 | 0 | 0 | 3 |" in text
    assert "by number of seeds: 3 of 1, 1 of 2." in text
    assert "less than a third in 4 cells; in 3 of these ours does, too." in text
    assert "Time: median 4.0, geometric mean 5.0." in text  # of 4, 4, 4 and 10
    assert "NLL lower in 4, higher in 0, p = 0.12;" in text
    assert "Failed: friedman mlp 0." in text
    assert "waves" not in text
    assert len(table.draw(found).axes) == 2


def test_the_coverage_of_a_mixture_of_depths():
    sets = {"epochs": 2, "max_depth": 3}
    config, rows = RunConfig.resolve(RunRequest("ldn", "experiments.sets:polynomial", set_=sets))
    found = run(config, rows, options=RunOptions(progress=False, compare=False)).fit
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
