"""Steps of Bayesian networks: as graphs, and several networks together."""

import copy
from functools import partial

import pytest
import torch
from bayesian import QUICK, bayesian
from pyroccam import guides, inference
from pyroccam.inference.elbo.estimator import bound
from pyroccam.models import priors
from random_weights import FourScales, assert_same_means, table
from stepping import assert_close, stacked, step_of, walk
from torch import nn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# -- one step ---------------------------------------------------------------------------------


def double_pair(prior, guide=guides.MeanField, **options):
    """Of one layer, which is traced faster: priors and guides are of each layer by itself."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Linear(3, 2)
    model, guide = bayesian(table(), prior, guide, net, **options)
    return model.double(), guide.double()


def double_batches(seed, count=3, size=18):
    x, y = table().split("train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [(x[i].double(), y[i]) for i in order[: count * size].split(size)]


@pytest.mark.filterwarnings("error::pyroccam.inference.training.step.CompileFallback")
@pytest.mark.parametrize(
    ("prior", "options"),
    [
        (priors.GroupNormalJeffreys(), {"scales": "batch"}),
        (priors.GroupHorseshoe(), {}),
        (priors.SpikeSlab(), {}),
        (priors.SharedNormal(), {}),
        (priors.Normal(learn="layer"), {"guide": guides.VariationalDropout}),
        (priors.Integers(0.1), {"guide": partial(guides.Points, by=guides.WholeSteps())}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_a_traced_step_is_the_eager_step(prior, options):
    """Under one seed, the same noise: losses, likelihoods, parameters."""
    found = []
    for compile in (False, "graph"):
        torch.manual_seed(5)
        (one,) = walk([double_pair(prior, **options)], double_batches(0), compile)
        found.append(one)
    assert_close(*found)
    assert found[0]["losses"].std() > 1e-3


def test_a_step_together_has_the_gradients_of_steps_apart():
    """In distribution: common steps draw from one stream, each replicate its own noise."""
    draws = 40
    pairs = [double_pair(FourScales()) for _ in range(2)]
    with torch.no_grad():
        for p in pairs[1][1].parameters():
            p.add_(0.2)
    apart = [copy.deepcopy(one) for one in pairs]
    batches = [double_batches(seed, 1)[0] for seed in (0, 0)]
    x, y = stacked(*[[batch] for batch in batches])[0]
    step = step_of(*pairs)
    step.prepare(x[0], y[0])
    found = []
    for _ in range(draws):
        step.evaluate(x, y)
        found.append(torch.cat([flat.grad for flat in step.flats.values()], 1).clone())
    found = torch.stack(found)
    assert step.fallback is None
    trained = [name.removeprefix("guide.") for name in step.trained]
    for k, (model, guide) in enumerate(apart):
        b = bound(model, guide, max_plate_nesting=1)
        parameters = [dict(guide.named_parameters())[name] for name in trained]
        rows = []
        for _ in range(draws):
            grads = torch.autograd.grad(b(*batches[k]) / step.rows, parameters)
            rows.append(torch.cat([g.flatten() for g in grads]))
        expected = torch.stack(rows)
        assert_same_means(found[:, k], expected)
        assert_same_means(found[:, k] ** 2, expected**2)
    noise = found - found.mean(0)
    one, other = noise[:, 0].flatten(), noise[:, 1].flatten()
    correlation = (one @ other) / (one.norm() * other.norm())
    assert abs(correlation) < 0.3  # not the same noise
    assert noise.std() > 0


# -- whole fits -------------------------------------------------------------------------------


def test_points_together_are_points_apart():
    """Without noise, replicates in common steps are the same fits."""

    def make(seed):
        rows = table(seed=seed)
        return *bayesian(rows, priors.Normal(), guides.Delta, seed=seed), rows

    common = {k: v for k, v in QUICK.items() if k != "seed"}
    found = [
        inference.fit_repeats(make, [0, 1], together=together, **common).fits
        for together in (True, False)
    ]
    assert [fit.engine["replicates"] for fit in found[0]] == [2, 2]
    for mine, theirs in zip(*found, strict=True):
        assert mine.val_nll == pytest.approx(theirs.val_nll, rel=1e-4)
        for name, t in mine.guide.state_dict().items():
            torch.testing.assert_close(t, theirs.guide.state_dict()[name], rtol=1e-3, atol=1e-4)
    assert found[0][0].val_nll != pytest.approx(found[0][1].val_nll, rel=1e-3)


def test_repeats_together_learn_what_repeats_apart_learn():
    def make(seed):
        rows = table()
        return *bayesian(rows, priors.Normal(), seed=seed), rows

    common = {k: v for k, v in QUICK.items() if k != "seed"} | {"epochs": 20}
    nll = {}
    for together in (True, False):
        fits = inference.fit_repeats(make, [0, 1], together=together, **common).fits
        nll[together] = torch.tensor([fit.evaluate()["nll"] for fit in fits])
    difference = nll[True].mean() - nll[False].mean()
    assert abs(difference) < 0.1


def test_repeats_together_are_a_deep_ensemble():
    rows = table()
    found = inference.fit_repeats(
        lambda seed: (*bayesian(rows, priors.Normal(), guides.Delta, seed=seed), rows),
        [0, 1, 2],
        **{k: v for k, v in QUICK.items() if k != "seed"},
    )
    x, y = rows.split("test")
    mixed = torch.stack([one.predict(x).exp() for one in found.fits]).mean(0)
    nll = -float(mixed[torch.arange(len(y)), y].log().mean())
    assert found.evaluate()["nll"] == pytest.approx(nll, rel=1e-5)
    assert found.evaluate()["nll"] <= found.spread()["nll"]["mean"] + 1e-9
    elsewhere = table(seed=5)
    odd = inference.fit(*bayesian(elsewhere, priors.Normal(), guides.Delta), elsewhere, **QUICK)
    other = inference.Repeats([found.fits[0], odd], 0.0)
    with pytest.raises(ValueError, match="the same rows"):
        other.evaluate()
