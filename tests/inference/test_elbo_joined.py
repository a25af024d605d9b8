"""The KL of small sites together is the sum of that of each."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyroccam import guides, models
from pyroccam.inference.elbo.estimator import bound
from pyroccam.inference.elbo.joined import MOST, JoinedKL
from pyroccam.models import priors
from torch import nn

PRIORS = {
    "normal": lambda: priors.Normal(0.7),
    "gnj": priors.GroupNormalJeffreys,
    "molchanov": lambda: priors.GroupNormalJeffreys(kl="molchanov"),
    "ghs": priors.GroupHorseshoe,
    "log-uniform": priors.LogUniform,
}


class Data:
    N, task, outputs, input_shape = 100, "classification", 3, (5,)


@pytest.fixture
def taken(monkeypatch):
    """Names of sites that were joined."""
    names = []
    take = JoinedKL.take

    def seen(self, ours, theirs):
        found = take(self, ours, theirs)
        names.extend([ours["name"]] if found else [])
        return found

    monkeypatch.setattr(JoinedKL, "take", seen)
    return names


def loss(model, guide, joins):
    evaluate = bound(model, guide, max_plate_nesting=1)
    evaluate.elbo.joins = joins
    torch.manual_seed(1)
    with pyro.validation_enabled(False):
        terms = evaluate.terms(torch.ones(4, 5).double(), torch.zeros(4, dtype=torch.long))
    parameters = [p for p in guide.parameters() if p.requires_grad]
    return terms, torch.autograd.grad(terms.kl, parameters, allow_unused=True)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", PRIORS)
def test_the_kl_and_its_slopes_are_the_same(name, taken):
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    model = models.BayesianNetwork(net, Data, prior=PRIORS[name]()).double()
    guide = guides.MeanField(model).double()
    apart, apart_slopes = loss(model, guide, joins=False)
    assert taken == []
    together, slopes = loss(model, guide, joins=True)
    assert sorted(taken) == sorted(guide.latents())
    torch.testing.assert_close(together.kl, apart.kl, rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes, apart_slopes, rtol=1e-10, atol=1e-12)


def site(q, p, name="w", **more):
    plain = {"name": name, "scale": 1.0, "mask": None, "cond_indep_stack": (), **more}
    return {**plain, "fn": q}, {**plain, "fn": p}


def normal(*shape, scale=1.0):
    return dist.Normal(torch.zeros(shape), torch.full(shape, scale)).to_event(len(shape))


def apart():
    """The same mask, twice."""
    one, other = (site(normal(3), normal(3), mask=torch.tensor(True)) for _ in range(2))
    return one[0], other[1]


ALONE = {
    "scaled": site(normal(3), normal(3), scale=2.0),
    "scaled by a tensor": site(normal(3), normal(3), scale=torch.tensor(1.0)),
    "masked apart": apart(),
    "masked by a constant": site(normal(3), normal(3), mask=True),
    "in a plate": site(normal(3), normal(3), cond_indep_stack=("plate",)),
    "large": site(normal(MOST + 1), normal(MOST + 1)),
    "a batch": site(dist.Normal(torch.zeros(3), 1.0), dist.Normal(torch.zeros(3), 1.0)),
    "no analytic KL": site(normal(3), dist.LogNormal(torch.zeros(3), 1.0).to_event(1)),
    "shapes": site(normal(3), normal(1)),
}


@pytest.mark.parametrize("why", ALONE)
def test_other_sites_are_left_alone(why):
    joined = JoinedKL()
    assert not joined.take(*ALONE[why])
    assert joined.terms() == []


def test_masks_that_guide_and_model_share():
    """Each site counts where its mask says, whatever the others do."""
    joined = JoinedKL()
    deep, deeper = torch.tensor([[False], [True], [True]]), torch.tensor([[False], [False], [True]])
    expected = torch.zeros(3, 1)
    for size, s, mask in ((3, 1.0, deep), (2, 0.5, deeper), (4, 2.0, None), (1, 0.7, deep)):
        assert joined.take(*site(normal(size, scale=s), normal(size, scale=2.0), mask=mask))
        cost = size * (torch.tensor(2.0 / s).log() + (s * s - 4) / 8)
        expected += cost if mask is None else cost * mask
    (found,) = joined.terms()
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("clean")
def test_a_random_depth_joins_its_sites(taken):
    """The KL, its slopes, and what each depth costs are those of sites one by one."""
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    stack = models.DepthStack(nn.Linear(5, 4), blocks, nn.Linear(4, 3)).double()
    model = models.BayesianStack(stack, Data, prior=priors.GroupNormalJeffreys()).double()
    guide = guides.MeanField(model).double()
    with torch.no_grad():
        guide.edge("depth").logits.copy_(torch.tensor([0.5, -1.0, 0.2, 0.1]))
    apart, apart_slopes = loss(model, guide, joins=False)
    together, slopes = loss(model, guide, joins=True)
    assert sorted(taken) == sorted(model.sites)
    torch.testing.assert_close(together.kl, apart.kl, rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes, apart_slopes, rtol=1e-10, atol=1e-10)
    # What every depth pays is in the one and not in the other: differences between depths count.
    ours, theirs = (terms.by_site["depth"].flatten().diff() for terms in (together, apart))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
