"""What the data know of weights that are points, and a network that is smaller by it."""

import dataclasses

import pytest
import torch
from fitting import blobs
from pyroccam import guides, inference, models
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.shrinking import point_spread, share_weights
from pyroccam.inference.training.ordinary import RowLosses
from pyroccam.models import priors
from torch import nn
from torch.func import functional_call, jacrev, vmap


def point(data, outputs, likelihood=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs))
    model = models.BayesianNetwork(net, data, prior=priors.Normal(), likelihood=likelihood)
    return inference.as_fit(model, guides.Delta(model), data)


def weighted(n):
    data = blobs(n=n)
    return data.with_class_weights([1.0, 4.0, 0.5])


def lines(n):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(1))
    return Dataset.from_tensors(x, x.sum(1), x, x.sum(1), val_fraction=0)


def known(fit, x):
    """The diagonal of the information by Jacobians of single rows and the curvature of the
    likelihood in closed form, by layer."""
    net = fit.posterior.mean_network()
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def row(weights, x):
        return functional_call(net, weights, (x[None],))[0]

    jacobians = vmap(jacrev(row), in_dims=(None, 0))(weights, x)
    if fit.data.task == "classification":
        p = net(x).softmax(-1)
        curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    else:
        noise = fit.model.likelihood(net(x)).stddev[0, 0]
        curvature = torch.ones(len(x), 1, 1) / noise**2
    found = {}
    for name in fit.model.layers:
        slopes = jacobians[f"{name}.weight"].flatten(2)
        rows = torch.ones(len(x)) if fit.data.weights is None else fit.data.weights[: len(x)]
        each = torch.einsum("b,bki,bkl,bli->i", rows, slopes, curvature, slopes)
        found[name] = each.reshape(weights[f"{name}.weight"].shape).detach()
    return found


@pytest.mark.parametrize(
    ("data", "rows"),
    [(blobs(n=120), 40), (weighted(120), 1024), (lines(90), 40)],
    ids=["classes", "weights", "targets"],
)
def test_the_information_of_drawn_targets_is_that_of_jacobians(monkeypatch, data, rows):
    """Its mean over many seeds; of a part of the rows, as much as all have if they are alike."""
    monkeypatch.setattr(point_spread, "ROWS", rows)
    fit = point(data, 3 if data.task == "classification" else 1)
    x = data.head(min(rows, data.N))[0]
    expected = {n: f * data.N / len(x) for n, f in known(fit, x).items()}
    drawn = []
    for seed in range(60):
        own = dataclasses.replace(fit, settings=dataclasses.replace(fit.settings, seed=seed))
        moments = point_spread.spread_moments(own)
        drawn.append({name: 1.0 / one.variance for name, one in moments.items()})
    for name, exact in expected.items():
        values = torch.stack([one[name] for one in drawn])
        error = values.std(0) / len(values) ** 0.5
        assert float(((values.mean(0) - exact) / error).abs().max()) < 4.5
        assert moments[name].mean.equal(fit.posterior.layers[name].mean)


def test_units_that_nothing_reads_go_first(monkeypatch):
    data = blobs()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        net[2].weight[:, ::2] = 0.0
    model = models.BayesianNetwork(net, data, prior=priors.Normal())
    fit = inference.as_fit(model, guides.Delta(model), data)
    asked = inference.Search(epochs=1, batch_size=7, shares=(0.5,), nats=100.0, units="only")
    sizes = []
    own = RowLosses.forward
    monkeypatch.setattr(
        RowLosses, "forward", lambda self, out: sizes.append(len(out)) or own(self, out)
    )
    small = inference.shrink(fit, cut=asked)
    assert 7 in sizes
    assert small.report.layers["0"].outputs.tolist() == [1, 3, 5, 7]
    assert sum(p.numel() for p in small.net.parameters()) == 4 * 3 + 3 * 5


def test_a_search_of_shared_values_is_refused():
    data = blobs()
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, data, prior=priors.Normal())
    fit = inference.as_fit(model, guides.Delta(model), data)
    shared, book = share_weights(fit, bits=2)
    with pytest.raises(PyroccamError):
        inference.shrink(inference.as_fit(shared, book, data), cut=inference.Search(epochs=1))
