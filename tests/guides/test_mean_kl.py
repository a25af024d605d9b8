"""Posteriors of a given KL: the formula, the budget, and what is known of a block."""

import copy
import math

import numpy as np
import pytest
import torch
from fitting import blobs
from guide_case import network
from pyroccam import guides, inference
from pyroccam.data import PyroccamError
from pyroccam.guides.mean_kl import log_variance_ratio
from pyroccam.models import priors
from scipy.special import lambertw
from torch.distributions import kl_divergence

NORMAL = priors.Normal(0.5, learn="scale")


def test_variance_ratio_is_that_of_lambert():
    r = torch.logspace(-2.9, 1.2, 400, dtype=torch.float64, requires_grad=True)
    u = log_variance_ratio(r)
    argument = -np.exp(-1 - r.detach().numpy() ** 2 / 2)
    expected = torch.from_numpy(np.log(-lambertw(argument).real))
    assert torch.allclose(u.detach(), expected, rtol=1e-9, atol=1e-11)
    assert torch.autograd.gradcheck(log_variance_ratio, r[::20].detach().requires_grad_())
    single = log_variance_ratio(r.detach().float()).double()
    assert torch.allclose(single, expected, rtol=2e-4)
    assert torch.isfinite(log_variance_ratio(torch.zeros(1))).all()


def pair(nats=3.0):
    rows = blobs()
    model = network(rows, prior=NORMAL)
    return model, guides.MeanKL(model, nats=nats, blocks=torch.arange(51) % 4), rows


def kl_by_block(model, guide):
    parts = []
    for site, (layer, name) in model.sites.items():
        q, p = guide.posterior(site), layer.latents()[name].prior
        parts.append(kl_divergence(q.base_dist, p.base_dist).detach().flatten())
    return torch.zeros(4).index_add(0, guide.weights.where // 13, torch.cat(parts))


def test_budget_is_met_at_the_start_and_after_training():
    model, guide, rows = pair(12.0)
    assert torch.allclose(kl_by_block(model, guide), torch.full((4,), 12.0), rtol=1e-3)
    before = model.layers["0"].prior.log_scale.item()
    fit = inference.fit(model, guide, rows, epochs=80, batch_size=64, device="cpu", progress=False)
    assert torch.allclose(kl_by_block(model, guide), torch.full((4,), 12.0), rtol=1e-3)
    assert model.layers["0"].prior.log_scale.item() != before
    assert fit.evaluate("test")["accuracy"] > 0.7


def test_it_begins_where_its_network_is_if_the_budget_allows():
    model, guide, _ = pair(nats=60.0)
    for site, (layer, name) in model.sites.items():
        assert guide.posterior(site).mean.sign().equal(layer.start[name].sign())
    assert guide.posterior("2.weight").mean.abs().mean() > 0.1
    assert pair(nats=0.1)[1].posterior("0.weight").mean.abs().max() < 0.3


def test_it_begins_with_a_guide_whose_kl_is_the_budget():
    rows = blobs()
    model = network(rows, prior=NORMAL)
    begin = guides.MeanField(model, scale=0.2)
    kl = sum(
        float(kl_divergence(begin.posterior(site), layer.latents()[name].prior).detach())
        for site, (layer, name) in model.sites.items()
    )
    guide = guides.MeanKL(model, nats=kl, begin=begin)
    for site in model.sites:
        ours, theirs = guide.posterior(site), begin.posterior(site)
        assert torch.allclose(ours.mean, theirs.mean, atol=1e-3)
        assert torch.allclose(ours.stddev, theirs.stddev, rtol=1e-2)


def test_blocks_that_are_known_stay():
    _, guide, _ = pair()
    values = torch.linspace(-1, 1, 13)
    guide.weights.know(2, values)
    loc, scale = guide.weights()
    of = torch.arange(51) % 4 == 2
    assert torch.equal(loc[of], values[: of.sum()])
    assert scale[of].max() < 1e-3 < scale[~of].min()
    loc.sum().backward()
    assert guide.weights.share.grad.isfinite().all()
    assert guide.weights.slope.grad[2].abs().max() == 0 < guide.weights.slope.grad[1].abs().max()


def test_a_copied_pair_has_priors_of_its_own():
    model, guide, _ = pair()
    other_model, other = copy.deepcopy((model, guide))
    with torch.no_grad():
        other_model.layers["0"].prior.log_scale.add_(math.log(2))
    ratio = other.posterior("0.weight").stddev / guide.posterior("0.weight").stddev
    assert torch.allclose(ratio, torch.tensor(2.0))
    alone = copy.deepcopy(guide)
    assert alone.factor_of("0.weight")._layer.module is model.layers["0"]
    assert alone.factor_of("0.weight")._posterior[0] is alone.weights


@pytest.mark.parametrize(
    ("prior", "given"), [(priors.StudentT(), {}), (NORMAL, {"blocks": torch.zeros(7)})]
)
def test_what_it_refuses(prior, given):
    with pytest.raises(PyroccamError):
        guides.MeanKL(network(blobs(), prior=prior), **given)
