"""Prequential codes and description lengths: sums by hand."""

import dataclasses
import functools
import itertools
import math
import statistics

import pytest
import torch
from evidences import fitted, hidden, linear
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.elbo import estimator
from pyroccam.inference.marginal_likelihood import Prequential
from pyroccam.inference.marginal_likelihood.codes import blocks_of, switching
from pyroccam.models import priors
from random_weights import FourScales, normal_kl
from torch import nn


@functools.cache
def classes(epochs=3, prior=None):
    """A fit of two classes by the sign of a sum of inputs."""
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    rows = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    model = models.BayesianNetwork(net, rows, prior=prior or priors.Normal())
    settings = {"epochs": epochs, "lr": 0.03, "device": "cpu", "compile": False}
    return inference.fit(model, guides.MeanField(model), rows, progress=False, **settings)


def of_depth(guide=guides.CategoricalDepth):
    rows = classes().data
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(rows, width=4, max_depth=2)
    return inference.fit(model, guide(model), rows, epochs=3, progress=False)


def test_a_code_by_hand():
    """Every block by a fit on what is before it, with its seed; the first without a model."""
    fit = classes()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    found = blocks_of(fit, order, (0.2, 0.5, 1.0), seed=4)
    assert [block.end for block in found] == [12, 30, 60]
    assert found[0].nats == pytest.approx(-12 * math.log(2))
    x, y = (part[order] for part in fit.data.split("train"))
    for place, (start, end) in enumerate([(12, 30), (30, 60)]):
        before = dataclasses.replace(fit.data, x_train=x[:start], y_train=y[:start])
        torch.manual_seed(4)
        model = fit.model.anew(before)
        settings = {**vars(fit.settings), "seed": 4 + 1000 * place, "device": "cpu"}
        again = inference.fit(model, guides.MeanField(model), before, progress=False, **settings)
        known = float(again.predict(x[start:end]).gather(1, y[start:end, None]).double().sum())
        assert found[place + 1].nats == pytest.approx(known, rel=1e-5)
        assert found[place + 1].passes == pytest.approx(3 * start / 60)
    whole = inference.evidence(fit, by=Prequential(shares=(0.2, 1.0), settings={"epochs": 2}))
    assert whole.direction == "code"
    assert whole.passes == pytest.approx(2 * 2 * 0.2)
    assert whole.bits == pytest.approx(-whole.value / math.log(2))


def test_the_first_block_of_other_tasks():
    y = hidden().data.y_train[:2].double()
    known = torch.distributions.Normal(0.0, 1.0).log_prob(y).sum()
    found = blocks_of(hidden(), torch.arange(20), (0.1, 1.0), epochs=2)
    assert found[0].nats == pytest.approx(float(known), rel=1e-6)
    fit = of_depth()
    assert len(blocks_of(fit, torch.arange(60), (0.5, 1.0))) == 2
    labels = dataclasses.replace(
        fit.data, task="multi-label", y_train=torch.ones(60, 3), classes=None, class_names=()
    )
    odd = dataclasses.replace(fit, data=labels)
    assert blocks_of(odd, torch.arange(60), (1.0,))[0].nats == pytest.approx(-180 * math.log(2))
    counts = dataclasses.replace(fit, data=dataclasses.replace(labels, task="counts"))
    with pytest.raises(PyroccamError):
        blocks_of(counts, torch.arange(60), (1.0,))


def test_switching_by_all_sequences():
    """A mixture over every sequence of three models in four blocks, one after the other."""
    generator = torch.Generator().manual_seed(0)
    blocks = -5.0 * torch.rand(3, 4, generator=generator, dtype=torch.float64)
    total = 0.0
    for sequence in itertools.product(range(3), repeat=4):
        prior = 1 / 3
        for place in range(1, 4):
            change = 1.0 / (place + 1)
            prior *= change / 3 + (1 - change) * (sequence[place] == sequence[place - 1])
        total += prior * math.exp(sum(float(blocks[m, s]) for s, m in enumerate(sequence)))
    assert switching(blocks) == pytest.approx(math.log(total))
    assert switching(blocks[:1]) == pytest.approx(float(blocks[0].sum()))


def test_the_parts_are_the_bound():
    fit = classes()
    x, y = fit.data.split("train")
    found = inference.description_length(fit, passes=7, seed=3)
    bound = inference.elbo.evidence(fit.model, fit.guide, fit.data, passes=7, seed=3)
    assert found.total == pytest.approx(-bound.elbo / math.log(2), rel=1e-6)
    assert found.error == pytest.approx(bound.error / math.log(2))
    assert (found.structure, found.numbers) == (0, 0)
    assert found.per_row == pytest.approx(found.total / 60)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        elbos = [-float(estimator.bound(fit.model, fit.guide)(x, y)) for _ in range(7)]
    assert bound.elbo == pytest.approx(statistics.mean(elbos), rel=1e-5)
    assert bound.error == pytest.approx(statistics.stdev(elbos) / math.sqrt(7), rel=1e-3)
    for site, bits in found.by_site.items():
        q = fit.guide.posterior(site).base_dist
        known = float(normal_kl(q.loc, q.scale).detach())
        assert bits * math.log(2) == pytest.approx(known, rel=1e-4)
    assert sum(found.by_site.values()) == pytest.approx(found.weights)


@pytest.mark.parametrize("guide", [guides.CategoricalDepth, guides.Marginal])
def test_a_depth_is_structure_and_numbers_have_no_code(guide):
    fit = of_depth(guide)
    found = inference.description_length(fit)
    assert (found.weights, found.total, found.per_row) == (None, None, None)
    assert found.numbers == sum(p.numel() for p in fit.model.parameters())
    bound = inference.elbo.evidence(fit.model, fit.guide, fit.data)
    assert found.structure + found.targets == pytest.approx(-bound.elbo / math.log(2), rel=1e-5)
    prior, q = fit.model.log_prior.exp().double(), fit.weights.double()
    assert found.structure == pytest.approx(float((q * (q / prior).log2()).sum()), abs=1e-4)


def test_a_prior_that_depends_on_the_posterior_is_given():
    """The message is that of a fixed prior with the numbers which the posterior ends at."""
    fit = classes(epochs=20, prior=priors.SharedNormal())
    found = inference.description_length(fit)
    total = 0.0
    for site in fit.guide.latents():
        q = fit.guide.posterior(site).base_dist
        variance = (q.scale.square() + (q.loc - q.loc.mean()).square()).mean()
        held = torch.distributions.Normal(q.loc.mean(), variance.sqrt())
        known = torch.distributions.kl_divergence(q, held).sum().detach() / math.log(2)
        assert found.by_site[site] == pytest.approx(float(known), rel=1e-4)
        total += float(known)
    assert found.weights == pytest.approx(total, rel=1e-4)
    assert found.to_json() == {
        "structure": 0, "weights": found.weights, "targets": found.targets, "error": found.error,
        "rows": 60, "numbers": 8, "uniform": 60.0, "total": found.total,
        "per_row": found.total / 60,
    }  # fmt: skip
    assert inference.evidence(fit).doubt is None
    with pytest.raises(PyroccamError):
        inference.evidence(fit, by="importance")


def test_what_has_no_message():
    fit, _ = linear()
    rows = fit.data

    def of(prior, guide=guides.MeanField):
        model = models.BayesianNetwork(nn.Linear(3, 1), rows, prior=prior)
        return fitted(model, guide(model), rows)

    for odd in (of(priors.Normal(), guides.Delta), of(priors.LogUniform())):
        with pytest.raises(PyroccamError):
            inference.description_length(odd)
    found = inference.description_length(of(FourScales()))
    assert {*found.by_site} >= {"weight", "scale.a", "global.b"}
