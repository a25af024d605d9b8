"""Prequential codes and description lengths: sums by hand, and labels that nothing compresses."""

import dataclasses
import itertools
import math
import statistics

import pytest
import torch
from evidences import fitted, hidden, linear
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.elbo import estimator
from pyroccam.inference.marginal_likelihood import ChainRule, Descent, Prequential
from pyroccam.inference.marginal_likelihood.codes import SHARES, block_ends, blocks_of, switching
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.models import priors
from pyroccam.models.priors.normal import normal_optimum
from random_weights import FALSE_ALARM, FourScales, normal_kl
from torch import nn

LUCK = -math.log2(FALSE_ALARM)
"""Bits by which no code is shorter than uniform labels, but with this probability."""


def classes(n=240, random=False, seed=0, epochs=60):
    """A fit of two classes by the sign of a sum of inputs, or of labels that are drawn."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    if random:
        y = torch.randint(2, (n,), generator=generator)
    rows = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    guide = guides.MeanField(model)
    return inference.fit(
        model, guide, rows, epochs=epochs, lr=0.03, progress=False, device="cpu", compile=False
    )


@pytest.mark.parametrize("shares", [SHARES, (0.1, 0.11, 0.7, 1.0), (1.0,)])
def test_the_chain_rule_is_the_evidence_in_any_order_and_blocks(shares):
    fit, _ = linear()
    known = inference.evidence(fit, by="exact").value
    found = inference.evidence(fit, by=ChainRule(shares=shares, orders=3, seed=5))
    assert found.value == pytest.approx(known, abs=1e-10)
    assert found.error < 1e-10
    assert found.direction == "exact"


def test_a_code_by_hand():
    """Every block by a fit on what is before it, with its seed; the first without a model."""
    fit = classes(60, epochs=3)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    found = blocks_of(fit, order, (0.2, 0.5, 1.0), seed=4)
    assert [block.end for block in found] == [12, 30, 60]
    assert found[0].nats == pytest.approx(-12 * math.log(2))
    for place, (start, end) in enumerate([(12, 30), (30, 60)]):
        x, y = (part[order] for part in fit.data.split("train"))
        before = dataclasses.replace(fit.data, x_train=x[:start], y_train=y[:start])
        torch.manual_seed(4)
        model = fit.model.anew(before)
        guide = guides.MeanField(model)
        settings = {**vars(fit.settings), "seed": 4 + 1000 * place}
        again = inference.fit(model, guide, before, progress=False, device="cpu", **settings)
        log_probs = again.predict(x[start:end])
        known = float(log_probs.gather(1, y[start:end, None]).double().sum())
        assert found[place + 1].nats == pytest.approx(known, rel=1e-5)
        assert found[place + 1].passes == pytest.approx(3 * start / 60)
    whole = inference.evidence(fit, by=Prequential(shares=(0.2, 1.0), settings={"epochs": 2}))
    assert whole.direction == "code"
    assert whole.passes == pytest.approx(2 * 2 * 0.2)
    assert whole.bits == pytest.approx(-whole.value / math.log(2))


def test_of_other_tasks():
    """Weights that are numbers, and a regression: standard normal at first."""
    found = blocks_of(hidden(), torch.arange(20), (0.1, 1.0), epochs=2)
    y = hidden().data.y_train[:2].double()
    known = torch.distributions.Normal(0.0, 1.0).log_prob(y).sum()
    assert found[0].nats == pytest.approx(float(known), rel=1e-6)
    rows = classes(60, epochs=1).data
    model = models.LearntDepth.mlp(rows, width=4, max_depth=2)
    fit = inference.fit(model, guides.CategoricalDepth(model), rows, epochs=1, progress=False)
    assert len(blocks_of(fit, torch.arange(60), (0.5, 1.0))) == 2
    labels = dataclasses.replace(
        rows, task="multi-label", y_train=torch.ones(60, 3), classes=None, class_names=()
    )
    odd = dataclasses.replace(fit, data=labels)
    assert blocks_of(odd, torch.arange(60), (1.0,))[0].nats == pytest.approx(-180 * math.log(2))
    counts = dataclasses.replace(fit, data=dataclasses.replace(labels, task="counts"))
    with pytest.raises(PyroccamError):
        blocks_of(counts, torch.arange(60), (1.0,))


def test_batch_normalisation_is_given_two_rows():
    rows = classes(60, epochs=1).data
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    fit = inference.fit(model, guides.MeanField(model), rows, epochs=1, progress=False)
    assert [b.end for b in blocks_of(fit, torch.arange(60), (0.001, 0.002, 1.0))] == [2, 60]


@pytest.mark.parametrize("shares", [(), (0.5,), (0.5, 0.2, 1.0), (0.0, 1.0), (0.5, 1.5)])
def test_shares_that_do_not_increase_to_one(shares):
    with pytest.raises(PyroccamError):
        block_ends(50, shares)


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
    with pytest.raises(PyroccamError):
        switching(blocks[0])


def test_random_labels_are_not_compressed():
    """By no code: not by chance more than a few bits, however long the network learns them."""
    fit = classes(random=True)
    uniform = 240.0
    found = inference.description_length(fit)
    assert found.uniform == uniform
    assert found.total > uniform - LUCK - 5 * found.error
    by = Prequential(shares=(0.1, 0.25, 0.5, 1.0), settings={"epochs": 20})
    code = inference.evidence(fit, by=by)
    assert code.bits > uniform - LUCK
    loose = inference.evidence(fit, by=Descent(steps=20, starts=8))
    assert loose.bits > uniform - LUCK - 5 * loose.error / math.log(2)


def test_labels_that_can_be_learnt_are():
    fit = classes(epochs=250)
    found = inference.description_length(fit)
    assert found.total < 0.6 * found.uniform
    by = Prequential(shares=(0.1, 0.25, 0.5, 1.0), settings={"epochs": 50})
    code = inference.evidence(fit, by=by)
    assert code.bits < 0.6 * found.uniform


# -- the parts of a message -----------------------------------------------------------------------


def test_the_parts_are_the_bound():
    fit = classes(60, epochs=5)
    x, y = fit.data.split("train")
    found = inference.description_length(fit, passes=7, seed=3)
    bound = inference.elbo.evidence(fit.model, fit.guide, fit.data, passes=7, seed=3)
    assert found.total == pytest.approx(-bound.elbo / math.log(2), rel=1e-6)
    assert found.error == pytest.approx(bound.error / math.log(2))
    assert found.structure == 0
    assert found.per_row == pytest.approx(found.total / 60)
    assert found.numbers == 0
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        elbos = [-float(estimator.bound(fit.model, fit.guide)(x, y)) for _ in range(7)]
    assert bound.elbo == pytest.approx(statistics.mean(elbos), rel=1e-5)
    assert bound.error == pytest.approx(statistics.stdev(elbos) / math.sqrt(7), rel=1e-3)
    points = guides.Delta(fit.model)
    batched = inference.elbo.evidence(fit.model, points, fit.data, batch_size=25)
    nats = nn.functional.cross_entropy(mean_network(fit.model, points)(x), y, reduction="sum")
    assert batched.log_likelihood == pytest.approx(-float(nats.detach()), rel=1e-5)
    assert batched.rows == 60
    batched = inference.elbo.evidence(fit.model, fit.guide, fit.data, batch_size=25)
    assert batched.kl == pytest.approx(bound.kl, rel=1e-6)
    for site, bits in found.by_site.items():
        q = fit.guide.posterior(site).base_dist
        known = float(normal_kl(q.loc, q.scale).detach())
        assert bits * math.log(2) == pytest.approx(known, rel=1e-4)
        assert batched.kl_by_site[site] == pytest.approx(known, rel=1e-4)
    assert sum(found.by_site.values()) == pytest.approx(found.weights)


def test_structure_and_weights_apart():
    rows = linear()[0].data
    edges = {("x", "y"): {"with": nn.Linear(3, 1), "without": nn.Linear(3, 1, bias=False)}}
    model = models.StructuredNetwork(
        models.StructureGraph(edges), rows, structure=priors.Categorical(), prior=priors.Normal()
    )
    fit = inference.fit(model, guides.MeanField(model), rows, steps=200, progress=False)
    found = inference.description_length(fit)
    q = fit.guide.posterior("x-y.structure").probs.detach()
    assert found.structure == pytest.approx(float(1.0 + (q * q.log2()).sum()), abs=1e-4)
    assert found.weights > 1.0
    assert found.numbers == 1  # the noise
    assert found.uniform is None


@pytest.mark.parametrize("guide", [guides.CategoricalDepth, guides.Marginal])
def test_a_depth_is_structure_and_numbers_have_no_code(guide):
    rows = classes(60, epochs=1).data
    model = models.LearntDepth.mlp(rows, width=4, max_depth=2)
    fit = inference.fit(model, guide(model), rows, epochs=3, progress=False)
    found = inference.description_length(fit)
    assert (found.weights, found.total, found.per_row) == (None, None, None)
    assert found.numbers == sum(p.numel() for p in model.parameters())
    bound = inference.elbo.evidence(model, fit.guide, rows)
    assert found.structure + found.targets == pytest.approx(-bound.elbo / math.log(2), rel=1e-5)
    prior = model.log_prior.exp().double()
    kl = float((fit.weights.double() * (fit.weights.double() / prior).log2()).sum())
    assert found.structure == pytest.approx(kl, abs=1e-4)


def test_a_prior_that_depends_on_the_posterior_is_given():
    """The message is that of a fixed prior with the numbers which the posterior ends at."""
    rows = classes(60, epochs=1).data
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    model = models.BayesianNetwork(net, rows, prior=priors.SharedNormal())
    fit = inference.fit(model, guides.MeanField(model), rows, epochs=20, lr=0.03, progress=False)
    found = inference.description_length(fit)
    assert found.numbers == 2 * 4
    total = 0.0
    for site in fit.guide.latents():
        q = fit.guide.posterior(site).base_dist
        held = torch.distributions.Normal(*normal_optimum(q.loc, q.scale))
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
    model, rows = fit.model, fit.data
    points = fitted(model, guides.Delta(model), rows)
    with pytest.raises(PyroccamError):
        inference.description_length(points)
    improper = models.BayesianNetwork(nn.Linear(3, 1), rows, prior=priors.LogUniform())
    with pytest.raises(PyroccamError):
        inference.description_length(fitted(improper, guides.MeanField(improper), rows))
    scaled = models.BayesianNetwork(nn.Linear(3, 1), rows, prior=FourScales())
    found = inference.description_length(fitted(scaled, guides.MeanField(scaled), rows))
    assert {site.partition(".")[2] for site in found.by_site} >= {"weight", "scale.a", "global.b"}
