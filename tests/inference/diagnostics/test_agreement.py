import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conjugate import mean_field, model_of, rows
from pyroccam import guides, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.arviz.adapter import rhat
from pyroccam.inference.diagnostics.between_runs import agreement, between_runs
from pyroccam.inference.posterior import posterior_of
from pyroccam.models import priors
from random_weights import small_net, table
from torch import nn


def normals(means, draws=2000, seed=0, scale=1.0):
    """Draws of normal runs, (M, S)."""
    rng = np.random.default_rng(seed)
    return np.asarray(means)[:, None] + scale * rng.normal(size=(len(means), draws))


def run(model, guide, data, seed=0):
    likes = SimpleNamespace(seed=seed)
    weights = torch.full((20,), 0.05)
    posterior = posterior_of(model, guide, data)
    return SimpleNamespace(
        model=model, guide=guide, data=data, settings=likes, weights=weights, posterior=posterior
    )


# -- R-hat -----------------------------------------------------------------------------------------


def test_rhat_by_its_definition():
    """Of values that are normal already, the rank-normalised one is that of the moments."""
    values = normals([0.0, 0.3, -0.2, 0.1], 1000)
    halves = values.reshape(8, 500)
    between, within = 500 * halves.mean(1).var(ddof=1), halves.var(1, ddof=1).mean()
    classical = math.sqrt((499 / 500 * within + between / 500) / within)
    assert float(rhat(values)) == pytest.approx(classical, abs=0.004)
    apart = math.sqrt(1 + np.var([0, 0.3, -0.2, 0.1]))
    assert float(rhat(values)) == pytest.approx(apart, abs=0.02)


def test_rhat_in_shapes_and_of_constants():
    values = np.stack([normals([0, 0, 0], 100), np.full((3, 100), 2.0)], -1)[..., None]
    found = rhat(values)
    assert found.shape == (2, 1)
    assert found[0, 0] == pytest.approx(float(rhat(values[..., 0, 0])))
    assert math.isnan(found[1, 0])
    # spread that differs, with equal means
    assert float(rhat(np.concatenate([normals([0, 0]), 4 * normals([0, 0], seed=1)]))) > 1.1
    for bad in (np.zeros((1, 100)), np.zeros((2, 3)), np.full((2, 10), math.inf)):
        with pytest.raises(PyroccamError):
            rhat(bad)


def test_verdicts_follow_the_distance_of_the_runs():
    spread = np.array([-1.0, 1.0, -1.0, 1.0]) / math.sqrt(4 / 3)  # of standard deviation 1
    for gap, verdict in ((0.05, "good"), (0.4, "good"), (0.7, "doubtful"), (4.0, "poor")):
        found = between_runs("a", normals(gap * spread))
        assert found.verdict == verdict, (gap, found.worst)
        if gap < 1.0:
            assert math.sqrt(found.worst**2 - 1) == pytest.approx(gap, abs=0.1)
    assert "of their standard deviations apart" in found.described()


def test_what_does_not_move_within_a_run():
    same = between_runs("a", np.full((3, 50), 2.0))
    assert (same.worst, same.constant, same.verdict) == (1.0, False, "good")
    near = between_runs("a", np.repeat([[10.0], [10.1], [9.9]], 50, 1))
    assert near.constant
    assert near.worst == math.inf
    assert near.spread == pytest.approx(0.01)
    assert near.verdict == "good"
    assert "10, 10.1, 9.9" in near.described()
    assert between_runs("a", np.repeat([[10.0], [11.0], [9.0]], 50, 1)).verdict == "doubtful"
    assert between_runs("a", np.repeat([[10.0], [0.0], [9.0]], 50, 1)).verdict == "poor"
    assert between_runs("a", np.repeat([[1.0], [-1.0]], 50, 1)).verdict == "poor"
    # one number that stays, beside one that moves
    mixed = np.stack([normals([0, 0]), np.repeat([[1.0], [2.0]], 2000, 1)], -1)
    found = between_runs("a", mixed)
    assert not found.constant
    assert found.rhat[0] < 1.1
    assert found.rhat[1] == math.inf
    assert found.verdict == "poor"


# -- of fits ---------------------------------------------------------------------------------------


def test_one_posterior_agrees_and_a_shifted_one_does_not():
    data = rows()
    model = model_of(data)
    same = [run(model, mean_field(model, data), data, k) for k in range(4)]
    found = agreement(same)
    by_name = {one.name: one for one in found.quantities}
    assert [*by_name] == ["prediction", "noise"]
    assert by_name["prediction"].rhat.shape == (20,)
    assert by_name["prediction"].worst < 1.05
    assert by_name["noise"].worst == 1.0
    assert found.finding().verdict == "good"
    # half a standard deviation to either side, the same for each row's prediction
    shifts = [-0.8, 0.8, -0.8, 0.8]
    apart = [run(model, mean_field(model, data, shift=s), data, k) for k, s in enumerate(shifts)]
    finding = agreement(apart).finding()
    expected = math.sqrt(1 + np.var(shifts, ddof=1))
    assert finding.numbers["prediction"]["rhat"] == pytest.approx(expected, abs=0.08)
    assert finding.verdict == "doubtful"
    assert "predict with all of them" in finding.text
    json.dumps(finding.to_json(), allow_nan=False)


def test_weights_that_change_places_are_no_disagreement():
    """The same function with its hidden units in another order, and other signs."""
    data = table()
    net = small_net(width=4)
    swapped = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    order, signs = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    with torch.no_grad():
        swapped[0].weight.copy_(net[0].weight[order] * signs[:, None])
        swapped[0].bias.copy_(net[0].bias[order] * signs)
        swapped[2].weight.copy_(net[2].weight[:, order] * signs)
        swapped[2].bias.copy_(net[2].bias)
    fits = []
    for k, one in enumerate((net, swapped)):
        model = models.BayesianNetwork(one, data, prior=priors.Normal())
        fits.append(run(model, guides.MeanField(model, scale=0.1), data, k))
    found = agreement(fits)
    assert found.quantities[0].rhat.shape == (40,)  # 20 rows, 2 classes
    assert found.finding().verdict == "good"
    weights = torch.stack([f.guide.posterior("0.weight").sample((200,)) for f in fits])
    assert between_runs("w", weights.double().numpy()).verdict == "poor"


def test_depth_and_structure_are_compared():
    data = table()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.LearntDepth.mlp(data, width=4, max_depth=3)
    fits = []
    for k in range(3):
        guide = guides.CategoricalDepth(model)
        with torch.no_grad():
            guide.logits[k] = 6.0
        fits.append(run(model, guide, data, k))
    found = agreement(fits)
    by_name = {one.name: one for one in found.quantities}
    assert by_name["depth"].verdict == "poor"
    assert agreement(fits[:1] * 3).quantities[0].verdict == "good"
    graph = models.StructureGraph({("x", "y"): {"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)}})
    model = models.StructuredNetwork(graph, data, structure=priors.GumbelSoftmax(0.5))
    fits = []
    for k in range(2):
        guide = guides.MeanField(model)
        with torch.no_grad():
            guide.edge("x-y.structure").logits.copy_(torch.tensor([3.0, -3.0]) * (1 - 2 * k))
        fits.append(run(model, guide, data, k))
    names = {one.name: one.verdict for one in agreement(fits).quantities}
    assert names["x-y: a"] == names["x-y: b"] == "poor"


def test_groups_left_are_counted():
    data = table()
    fits = []
    for k in range(2):
        model = models.BayesianNetwork(small_net(), data, prior=priors.GroupNormalJeffreys())
        guide = guides.MeanField(model)
        with torch.no_grad():
            guide.factors["2/scale"].log_scale[: 1 + k] = 2.0  # more noise than mean
        fits.append(run(model, guide, data, k))
    found = {one.name: one for one in agreement(fits).quantities}
    assert found["groups left in 0"].means.tolist() == [[3.0], [3.0]]
    assert found["groups left in 2"].means.tolist() == [[3.0], [2.0]]
    assert found["groups left in 2"].constant
    assert found["groups left in 2"].verdict == "poor"


def test_points_get_no_verdict_and_targets_their_own_units():
    found = []
    for k in range(2):
        data = table("regression", seed=0)
        model = models.BayesianNetwork(small_net(1, seed=k), data, prior=priors.Normal())
        found.append(run(model, guides.Delta(model), data, k))
    result = agreement(found)
    assert result.quantities[0].verdict == "refused"
    assert "point estimate" in result.quantities[0].described()
    noise = result.quantities[1]
    own = float(found[0].model.likelihood.scale.detach() * found[0].data.y_std)
    assert noise.means[0, 0] == pytest.approx(own)
    x, _ = found[1].data.split("test")
    net = found[1].posterior.mean_network()
    predicted = (net(x) * found[1].data.y_std + found[1].data.y_mean).detach().numpy()[:, 0]
    assert result.quantities[0].means[1] == pytest.approx(predicted, rel=1e-4, abs=1e-5)


def test_the_figure_has_a_row_for_each_quantity():
    data = rows()
    model = model_of(data)
    fits = []
    for k in range(3):
        one = model_of(data)
        with torch.no_grad():
            one.likelihood.log_scale += 0.3 * k
        fits.append(run(one, mean_field(model, data), data, k))
    found = agreement(fits)
    (ax,) = found.figure().axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["noise", "prediction"]
    assert any("one number in each run" in text.get_text() for text in ax.texts)
    assert found.finding().verdict == "poor"  # the noise


def test_what_cannot_be_compared():
    data = rows()
    model = model_of(data)
    one = run(model, mean_field(model, data), data)
    other = rows(seed=1)
    elsewhere = run(model_of(other), mean_field(model, other), other, 1)
    none = replace(data, x_test=data.x_test[:0], y_test=data.y_test[:0])
    untested = run(model, mean_field(model, data), none)
    for runs, options in (
        ([one], {}),
        ([one, one], {"draws": 4}),
        ([one, elsewhere], {}),
        ([untested, untested], {}),
    ):
        with pytest.raises(PyroccamError):
            agreement(runs, **options)
    edges = models.StructureGraph({("x", "y"): {"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}})
    odd = models.StructuredNetwork(edges, data, structure=priors.Categorical())
    with pytest.raises(PyroccamError):
        agreement([one, run(odd, guides.MeanField(odd), data, 1)])
