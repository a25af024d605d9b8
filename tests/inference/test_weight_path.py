"""The path of networks by the weight of the KL: what is told of a point, and choices on it."""

import math
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conjugate import NOISE, model_of, rows
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError, load
from pyroccam.inference import Bytes, Milliseconds
from pyroccam.inference.posterior import evaluate_net
from pyroccam.inference.shrinking import weight_path
from torch import nn

LOW, HIGH = 0.05, 20.0


@pytest.fixture(scope="module")
def digits():
    return load("digits", seed=0)


@pytest.fixture(scope="module")
def fit(digits):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        model = models.BayesianNetwork(net, digits, prior=models.priors.LogUniform())
        guide = guides.Conditional(guides.MeanField(model), low=LOW, high=HIGH, pivots=4)
        return inference.fit(
            model, guide, digits, epochs=15, batch_size=128, particles=3, lr=0.01, seed=0,
            progress=False, device="cpu",
        )  # fmt: skip


@pytest.fixture(scope="module")
def path(fit):
    return inference.path(fit, 5)


def test_weights_are_even_in_their_logarithms_and_in_order(fit, path):
    found = [point.weight for point in path]
    assert found == pytest.approx([LOW * (HIGH / LOW) ** (k / 4) for k in range(5)])
    assert (found[0], found[-1]) == (LOW, HIGH)  # to the last digit: others are refused
    assert [point.weight for point in inference.path(fit, [2.0, 0.1], draws=2)] == [0.1, 2.0]
    assert path.split == "val"


def test_a_point_is_the_fit_of_its_weight_and_the_network_in_its_file(fit, path, tmp_path):
    x, y = fit.data.split("val")
    for point in path:
        own = fit.at(point.weight)
        assert point.scores == own.evaluate("val", draws=20)
        logits = own.outputs(x, draws=20)
        alone = nn.functional.cross_entropy(
            logits.flatten(0, 1).double(), y.repeat(20), reduction="none"
        )
        ranked = alone.reshape(20, -1).mean(1).sort().values
        # The quantile of 0.05 lies between the first two of 20, 0.95 of the way.
        expected = [float(a + 0.95 * (b - a)) for a, b in (ranked[:2], ranked.flip(0)[:2])]
        assert point.band == pytest.approx(expected, rel=1e-4)
        file = point.small.save(tmp_path / "small.pocc")
        assert point.small.bytes == file.stat().st_size
        net = inference.load(file)
        assert evaluate_net(net, own.model, fit.data, "val") == pytest.approx(point.small_scores)
        left = {n: p for n, p in net.named_parameters() if p.dim() == 2}
        assert point.parameters == sum(p.numel() for p in net.parameters())
        assert point.widths == {n.split(".")[0]: len(p) for n, p in left.items()}
        assert point.multiply_adds == sum(p.numel() for p in left.values())
        assert point.seconds > 0
    sizes = [point.small.bytes for point in path]
    assert sizes[0] > 1.5 * sizes[-1]
    assert path[0].nll < path[-1].nll
    assert path.to_json()[2]["weight"] == path[2].weight


def test_the_bound_is_that_of_the_full_weight_and_greatest_there():
    """Linear regression with inputs at right angles: the posterior of each λ is known, and is put
    at the pivots."""
    table = rows(n=20, features=3, orthogonal=True)
    x, y = (part.double() for part in table.split("train"))
    model = model_of(table)
    guide = guides.Conditional(guides.MeanField(model), low=1e-2, high=1e2, pivots=5)
    weights = torch.tensor([1e-2, 1e-1, 1.0, 1e1, 1e2]).double()
    whole = len(x) / NOISE**2 + weights
    means = (x.T @ y / NOISE**2)[:, 0] / whole[:, None]
    deviations = (weights / whole).sqrt()[:, None].expand(5, 3)
    with torch.no_grad():
        rows_of = guide.factor_of("0.weight").within
        rows_of.loc.copy_(means[:, None])
        rows_of.log_scale.copy_(deviations.log()[:, None])
    fit = inference.fit(model, guide, table, epochs=1, lr=1e-12, progress=False, device="cpu")
    path = inference.path(fit, 5)
    assert path.split == "train"
    for point, mean, deviation in zip(path, means, deviations, strict=True):
        kl = 0.5 * (mean**2 + deviation**2 - 1) - deviation.log()
        assert point.kl == pytest.approx(float(kl.sum()), rel=1e-4)
        error = (y[:, 0] - x @ mean) ** 2 + (x**2 @ deviation**2)
        likelihood = -0.5 * error / NOISE**2 - math.log(NOISE * math.sqrt(2 * math.pi))
        # Of two passes, in which every row has noise of its own: six standard errors.
        spread = x**2 @ deviation**2
        variance = (spread * (y[:, 0] - x @ mean) ** 2 + 0.5 * spread**2) / NOISE**4
        error = 6.0 * math.sqrt(float(variance.sum()) / 2)
        assert point.elbo == pytest.approx(float(likelihood.sum() - kl.sum()), abs=error)
    assert path.best("elbo").weight == pytest.approx(1.0)
    assert path.best() is min(path, key=lambda point: point.nll)


def test_a_budget_is_met(fit, path):
    assert path.within(Bytes(1e9), Milliseconds(1e4))[1] is path.best()
    budget = (path[0].small.bytes + path[-1].small.bytes) / 2
    assert inference.shrink(fit, budget=Bytes(budget)).bytes <= budget


def test_the_interval_of_a_budget_is_halved_in_logarithms():
    """Where every weight from 0.5 on meets it, and less is better."""

    def made(weights):
        return tuple(
            SimpleNamespace(weight=w, nll=w, small=SimpleNamespace(bytes=1000.0 / w))
            for w in weights
        )

    path = weight_path.Path(made([0.2, 1.8, 5.0]), "val", "kl_weight", made)
    whole, found = path.within(Bytes(2000.0))
    expected = [0.2 * 9.0 ** (k / 16) for k in (0, 4, 6, 7, 8, 16)]
    assert [point.weight for point in whole] == pytest.approx([*expected, 5.0])
    assert found.weight == pytest.approx(expected[3])


def test_a_budget_that_nothing_meets(path):
    for budgets in ([Bytes(10)], [Bytes(1e9), Milliseconds(1e-9)]):
        with pytest.raises(PyroccamError):
            path.within(*budgets)


def test_a_path_is_written_and_read_again(path):
    again = pickle.loads(pickle.dumps(path))
    assert again.to_json() == path.to_json()
    assert replace(path, measure=len) == path


def test_the_knob_turns(path):
    pytest.importorskip("ipywidgets")
    knob = path.knob()
    assert knob.point is path.best()
    picture, words = knob.picture.value, knob.words.value
    assert bytes(picture).startswith(b"\x89PNG")
    knob.slider.value = len(path) - 1
    assert knob.point is path[-1]
    assert knob.picture.value != picture
    assert knob.words.value != words
    assert f"{path[-1].small.bytes:,} bytes" in knob.words.value
    assert knob.slider.options[0][0] == f"{LOW:.3g}"
