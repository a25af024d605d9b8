import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conjugate import as_fit, mean_field, model_of, rows
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.arviz import rhat
from pyroccam.inference.diagnostics.between_runs import agreement, between_runs
from pyroccam.models import priors
from random_weights import small_net, table
from torch import nn


def normals(means, draws=2000, seed=0):
    """Draws of normal runs, (M, S)."""
    rng = np.random.default_rng(seed)
    return np.asarray(means)[:, None] + rng.normal(size=(len(means), draws))


def named(fits):
    return {one.name: one for one in agreement(fits).quantities}


def test_rhat_by_its_definition():
    """Of values that are normal already, the rank-normalised one is that of the moments."""
    values = normals([0.0, 0.3, -0.2, 0.1], 1000)
    halves = values.reshape(8, 500)
    between, within = 500 * halves.mean(1).var(ddof=1), halves.var(1, ddof=1).mean()
    classical = math.sqrt((499 / 500 * within + between / 500) / within)
    assert float(rhat(values)) == pytest.approx(classical, abs=0.004)
    found = rhat(np.stack([values, np.full((4, 1000), 2.0)], -1)[..., None])
    assert found.shape == (2, 1)
    assert found[0, 0] == pytest.approx(float(rhat(values)))
    assert math.isnan(found[1, 0])
    # spread that differs, with equal means
    assert float(rhat(np.concatenate([normals([0, 0]), 4 * normals([0, 0], seed=1)]))) > 1.1
    for bad in (np.zeros((1, 100)), np.zeros((2, 3)), np.full((2, 10), math.inf)):
        with pytest.raises(PyroccamError):
            rhat(bad)


SPREAD = np.array([-1.0, 1.0, -1.0, 1.0]) / math.sqrt(4 / 3)  # of standard deviation 1


def still(*means, draws=50):
    return np.repeat([[float(m)] for m in means], draws, 1)


@pytest.mark.parametrize(
    ("values", "verdict", "constant"),
    [
        *((normals(gap * SPREAD), "good", False) for gap in (0.05, 0.4)),
        (normals(0.7 * SPREAD), "doubtful", False),
        (normals(4.0 * SPREAD), "poor", False),
        (still(2, 2, 2), "good", False),
        (still(10, 10.1, 9.9), "good", True),
        (still(10, 11, 9), "doubtful", True),
        (still(10, 0, 9), "poor", True),
        (still(1, -1), "poor", True),
        (np.stack([normals([0, 0]), still(1, 2, draws=2000)], -1), "poor", False),
    ],
)
def test_verdicts_follow_the_distance_of_the_runs(values, verdict, constant):
    found = between_runs("a", values)
    assert (found.verdict, found.constant) == (verdict, constant)
    if not constant:
        worst = found.to_json()["rhat"]
        assert worst == (found.worst if math.isfinite(found.worst) else None)


def test_one_posterior_agrees_and_a_shifted_one_does_not():
    data = rows()
    model = model_of(data)
    found = agreement([as_fit(model, mean_field(model, data), data)] * 4)
    prediction, noise = found.quantities
    assert (prediction.name, noise.name) == ("prediction", "noise")
    assert prediction.rhat.shape == (20,)
    assert prediction.worst < 1.05
    assert noise.worst == 1.0
    assert found.finding().verdict == "good"
    # half a standard deviation to either side, the same for each row's prediction
    shifts = [-0.8, 0.8, -0.8, 0.8]
    apart = [as_fit(model, mean_field(model, data, shift=s), data) for s in shifts]
    finding = agreement(apart).finding()
    expected = math.sqrt(1 + np.var(shifts, ddof=1))
    assert finding.numbers["prediction"]["rhat"] == pytest.approx(expected, abs=0.08)
    assert finding.verdict == "doubtful"
    json.dumps(finding.to_json(), allow_nan=False)


def test_weights_that_change_places_are_no_disagreement():
    """The same function with its hidden units in another order, and other signs."""
    data = table()
    net, swapped = small_net(width=4), small_net(width=4)
    order, signs = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    with torch.no_grad():
        swapped[0].weight.copy_(net[0].weight[order] * signs[:, None])
        swapped[0].bias.copy_(net[0].bias[order] * signs)
        swapped[2].weight.copy_(net[2].weight[:, order] * signs)
    fits = []
    for one in (net, swapped):
        model = models.BayesianNetwork(one, data, prior=priors.Normal())
        fits.append(as_fit(model, guides.MeanField(model, scale=0.1), data))
    found = agreement(fits)
    assert found.quantities[0].rhat.shape == (40,)  # 20 rows, 2 classes
    assert found.finding().verdict == "good"
    weights = torch.stack([f.guide.posterior("0.weight").sample((200,)) for f in fits])
    assert between_runs("w", weights.double().numpy()).verdict == "poor"


def test_depth_structure_and_groups_are_compared():
    data = table()
    depth = models.LearntDepth.mlp(data, width=4, max_depth=3)
    graph = models.StructureGraph({("x", "y"): {"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)}})
    structured = models.StructuredNetwork(graph, data, structure=priors.GumbelSoftmax(0.5))
    groups = models.BayesianNetwork(small_net(), data, prior=priors.GroupNormalJeffreys())
    fits = {"depth": [], "structure": [], "groups": []}
    for k in range(2):
        q, edges, wide = (
            guides.CategoricalDepth(depth),
            *map(guides.MeanField, (structured, groups)),
        )
        with torch.no_grad():
            q.logits[k] = 6.0
            edges.edge("x-y.structure").logits.copy_(torch.tensor([3.0, -3.0]) * (1 - 2 * k))
            wide.factors["2/scale"].log_scale[: 1 + k] = 2.0  # more noise than mean
        for name, guide in zip(fits, (q, edges, wide), strict=True):
            model = {"depth": depth, "structure": structured, "groups": groups}[name]
            fits[name].append(as_fit(model, guide, data))
    assert named(fits["depth"])["depth"].verdict == "poor"
    assert named(fits["depth"][:1] * 3)["depth"].verdict == "good"
    found = named(fits["structure"])
    assert found["x-y: a"].verdict == found["x-y: b"].verdict == "poor"
    found = named(fits["groups"])
    assert found["groups left in 0"].means.tolist() == [[3.0], [3.0]]
    assert found["groups left in 2"].means.tolist() == [[3.0], [2.0]]
    (ax,) = agreement(fits["groups"]).finding().figure.axes
    names = ["groups left in 2", "groups left in 0", "prediction"]
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    assert len(ax.texts) == 1  # of what is one number in each run, and not the same


def test_points_get_no_verdict_and_targets_their_own_units():
    data = table("regression")
    fits = []
    for k in range(2):
        model = models.BayesianNetwork(small_net(1, seed=k), data, prior=priors.Normal())
        fits.append(as_fit(model, guides.Delta(model), data))
    prediction, noise = agreement(fits).quantities
    assert prediction.verdict == "refused"
    own = float(fits[0].model.likelihood.scale.detach() * data.y_std)
    assert noise.means[0, 0] == pytest.approx(own)
    outputs = fits[1].posterior.mean_network()(data.x_test)
    predicted = (outputs * data.y_std + data.y_mean).detach().numpy()[:, 0]
    assert prediction.means[1] == pytest.approx(predicted, rel=1e-4, abs=1e-5)


def test_what_cannot_be_compared():
    fits = []
    for data in (rows(), rows(seed=1)):
        model = model_of(data)
        fits.append(as_fit(model, mean_field(model, data), data))
    one, other = fits
    none = replace(one.data, x_test=one.data.x_test[:0], y_test=one.data.y_test[:0])
    untested = as_fit(one.model, one.guide, none)
    edges = models.StructureGraph({("x", "y"): {"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}})
    odd = models.StructuredNetwork(edges, one.data, structure=priors.Categorical())
    unlike = as_fit(odd, guides.MeanField(odd), one.data)
    for runs in ([one], [one, other], [untested, untested], [one, unlike]):
        with pytest.raises(PyroccamError):
            agreement(runs)
