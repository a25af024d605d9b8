import json
import math

import numpy as np
import pytest
import torch
from conjugate import as_fit, mean_field, model_of, rows
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.arviz import rhat
from pyroccam.inference.diagnostics import agreement
from pyroccam.inference.diagnostics.between_runs import between_runs
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


SPREAD = np.array([-1.0, 1.0, -1.0, 1.0]) / math.sqrt(4 / 3)  # of standard deviation 1


def still(*means, draws=50):
    return np.repeat([[float(m)] for m in means], draws, 1)


@pytest.mark.parametrize(
    ("values", "verdict", "constant"),
    [
        (normals(0.4 * SPREAD), "good", False),
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


def test_one_posterior_agrees_and_a_shifted_one_does_not():
    data = rows()
    model = model_of(data)
    found = agreement([as_fit(model, mean_field(model, data), data)] * 4)
    assert [one.name for one in found.quantities] == ["prediction", "noise"]
    assert found.finding().verdict == "good"
    # half a standard deviation to either side, the same for each row's prediction
    shifts = [-0.8, 0.8, -0.8, 0.8]
    apart = [as_fit(model, mean_field(model, data, shift=s), data) for s in shifts]
    finding = agreement(apart).finding()
    expected = math.sqrt(1 + np.var(shifts, ddof=1))
    assert finding.numbers["prediction"]["rhat"] == pytest.approx(expected, abs=0.08)
    assert finding.verdict == "doubtful"
    json.dumps(finding.to_json(), allow_nan=False)


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
    assert named(fits["structure"])["x-y: b"].verdict == "poor"
    found = named(fits["groups"])
    assert found["groups left in 0"].means.tolist() == [[3.0], [3.0]]
    assert found["groups left in 2"].means.tolist() == [[3.0], [2.0]]
    (ax,) = agreement(fits["groups"]).finding().figure.axes
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
    one, other = (as_fit(m := model_of(d), mean_field(m, d), d) for d in (rows(), rows(seed=1)))
    edges = models.StructureGraph({("x", "y"): {"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}})
    odd = models.StructuredNetwork(edges, one.data, structure=priors.Categorical())
    unlike = as_fit(odd, guides.MeanField(odd), one.data)
    for runs in ([one], [one, other], [one, unlike]):
        with pytest.raises(PyroccamError):
            agreement(runs)
