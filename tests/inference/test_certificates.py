"""Certificates: limits against exact tails and simulation, traps, and tasks of known error."""

import math
import re
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.certificates import ByPosterior, ByTest, Through
from pyroccam.inference.certificates.bounds import (
    binomial_limit,
    kl_limit,
    kl_of_shares,
    seeger_limit,
    sum_limit,
)
from pyroccam.inference.certificates.certificate import _drawn_outputs
from scipy.stats import beta, norm
from torch import nn

NOISE = 0.1  # share of labels that are turned


def task(seed, rows=400, test=300, **options):
    """Which side of .3 a normal number is on, a tenth of the answers turned."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows + test, 1)).astype(np.float32)
    y = ((x[:, 0] > 0.3) ^ (random.random(rows + test) < NOISE)).astype(np.int64)
    given = {"standardise": False, "classes": 2} | options
    return Dataset.from_tensors(x[:rows], y[:rows], x[rows:], y[rows:], **given)


def step_at(place):
    """The network that says 1 above a place."""
    net = nn.Sequential(nn.Linear(1, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.0], [1.0]]))
        net[0].bias.copy_(torch.tensor([0.0, -place]))
    return net.eval()


def true_error(place):
    return NOISE + (1 - 2 * NOISE) * abs(norm.cdf(place) - norm.cdf(0.3))


@pytest.fixture(scope="module")
def fitted():
    data = task(0)
    model = models.BayesianNetwork(nn.Linear(1, 2), data, prior=models.priors.Normal(1.0))
    return inference.fit(model, guides.MeanField(model), data, epochs=30, progress=False)


# Limits


def test_a_tail_far_below_double_precision_is_exact():
    wrong, rows, log_delta = 30, 2_000, math.log(0.05) - 2_000 * math.log(2.0)
    p = binomial_limit(wrong, rows, log_delta)
    with mpmath.workdps(60):
        q = mpmath.mpf(p)
        tail = mpmath.fsum(
            math.comb(rows, k) * q**k * (1 - q) ** (rows - k) for k in range(wrong + 1)
        )
        assert float(mpmath.log(tail)) == pytest.approx(log_delta, rel=1e-9)
    assert binomial_limit(20, 20, log_delta) == 1.0


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.97])
def test_the_inverse_of_the_divergence_gives_it_back(share):
    nats = 0.3
    assert kl_of_shares(share, kl_limit(share, nats)) == pytest.approx(nats)
    assert kl_limit(1.0, nats) == 1.0
    whole = kl_limit(share, (7.0 + math.log(2 * math.sqrt(50)) + 3.0) / 50)
    assert seeger_limit(share, 50, 7.0, -3.0) == pytest.approx(whole)


@pytest.mark.parametrize("sizes", [[1] * 60, [7] * 8 + [6] * 4, [40, 40]])
def test_rows_that_share_a_network_count_as_one(sizes):
    """Rows of a part are all wrong or all right: the worst case, and the limit holds in it."""
    random, mean, delta = np.random.default_rng(0), 0.3, 0.2
    totals = (random.random((2_000, len(sizes))) < mean) @ np.array(sizes)
    limits = [sum_limit(float(total), sizes, math.log(delta)) for total in totals]
    assert np.mean(np.array(limits) < mean) <= delta + 3 * math.sqrt(delta / 2_000)
    if len(sizes) == 60:
        assert np.mean(limits) < mean + 0.12


# The doors


def test_a_file_its_rows_and_its_errors_are_counted(tmp_path):
    data, net = task(1, rows=4_000), step_at(0.3)
    found = inference.certify(net, data)
    x, y = torch.cat([data.x_train, data.x_val]), torch.cat([data.y_train, data.y_val])
    wrong = int((net(x).argmax(-1) != y).sum())
    small = inference.Small(net)
    bits = 8 * small.bytes + 2 * small.bytes.bit_length() - 1
    assert found.rows == 4_000
    assert found.wrong == wrong / 4_000
    assert found.nats == pytest.approx(bits * math.log(2.0))
    log_delta = math.log(0.05) - found.nats
    assert found.error == pytest.approx(binomial_limit(wrong, 4_000, log_delta))
    assert true_error(0.3) < found.error < found.guess
    path = small.save(tmp_path / "step.pocc")
    assert inference.certify(path, data) == found


def test_what_was_computed_from_rows_is_counted():
    plain = inference.certify(step_at(0.3), task(1))
    scaled = inference.certify(step_at(0.3), task(1, standardise=True))
    assert scaled.nats - plain.nats == pytest.approx(128 * math.log(2.0))
    named = inference.certify(step_at(0.3), task(1, class_names=("low", "high")))
    assert named.nats - plain.nats == pytest.approx(8 * 8 * math.log(2.0))
    texts = replace(task(1), categories={"colour": ["red", "blue"]})
    told = inference.certify(step_at(0.3), texts)
    assert told.nats - plain.nats == pytest.approx(8 * 8 * math.log(2.0))


def test_copies_of_rows_are_no_new_rows():
    once, random = task(1), np.random.default_rng(0)
    rows = random.integers(0, 400, 4_000)
    x, y = (torch.cat([a, b]) for a, b in ((once.x_train, once.x_val), (once.y_train, once.y_val)))
    copied = Dataset.from_tensors(
        x[rows], y[rows], once.x_test, once.y_test, standardise=False, classes=2
    )
    own = Dataset.from_tensors(
        x[np.unique(rows)], y[np.unique(rows)], once.x_test, once.y_test, standardise=False,
        classes=2,
    )  # fmt: skip
    found = inference.certify(step_at(0.3), copied)
    assert found.error == inference.certify(step_at(0.3), own).error
    prior = models.priors.Normal(1.0)
    model = models.BayesianNetwork(nn.Linear(1, 2), copied, prior=prior)
    fit = inference.fit(model, guides.MeanField(model), copied, epochs=1, progress=False)
    kl = inference.elbo.evidence(fit.model, fit.guide, copied).kl
    none_wrong = seeger_limit(0.0, len(np.unique(rows)), kl, math.log(0.05))
    assert inference.certify(fit, copied).error > none_wrong


def test_draws_of_a_posterior_err_as_they_are_counted(fitted):
    """With a network for each row, or seven, against the mean error of 2,000 networks."""
    data, draws = fitted.data, fitted.posterior.outputs
    x, y = torch.cat([data.x_train, data.x_val]), torch.cat([data.y_train, data.y_val])
    wrong = (draws(x, draws=2_000).argmax(-1) != y).double().mean(1)
    net, off = fitted.posterior.mean_network(), 0
    for seed in range(10):
        torch.manual_seed(seed)
        for each in (1, 7):
            found = _drawn_outputs(fitted.model, fitted.guide, net, x, each)
            assert [len(out) for out in found] == [len(part) for part in x.split(each)]
            off += int((torch.cat(found).argmax(-1) != y).sum())
    error = float(wrong.std()) / math.sqrt(2_000) + 0.5 / math.sqrt(4_000)
    assert off / 8_000 == pytest.approx(float(wrong.mean()), abs=3 * error)


def test_a_large_network_through_draws_of_a_posterior(fitted):
    """It differs from them as often as 2,000 networks do, which is paid beside their errors."""
    x, large = torch.linspace(-2.0, 2.0, 4_000)[:, None], fitted.posterior.mean_network()
    by = ByPosterior(draws=400)
    found = inference.certify(large, fitted.data, by=Through(small=fitted, x=x, by=by))
    base = inference.certify(fitted, fitted.data, by=by, confidence=0.975)
    differ = int(re.search(r"differs in ([0-9,]+) of 4,000", found.by)[1].replace(",", ""))
    assert found.error == pytest.approx(base.error + beta.ppf(0.975, differ + 1, 4_000 - differ))
    others = fitted.posterior.outputs(x, draws=2_000).argmax(-1) != large(x).argmax(-1)
    deviation = math.sqrt(float((others.double().mean(0) * (1 - others.double().mean(0))).sum()))
    assert differ == pytest.approx(float(others.double().mean(0).sum()), abs=4 * deviation)
    assert differ > 0


def test_the_posterior_pays_its_choices_and_its_draws(fitted):
    found = inference.certify(fitted, fitted.data)
    assert found.rows == 400
    more = inference.certify(fitted, fitted.data, by=ByPosterior(choices=1_000))
    fewer = inference.certify(fitted, fitted.data, by=ByPosterior(draws=20))
    assert found.error < more.error
    assert found.error < fewer.error


def test_numbers_that_were_learnt_are_paid_by_their_bits():
    data = task(2)
    net = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2))
    prior = models.priors.Normal(1.0)
    model = models.BayesianNetwork(net, data, prior=prior, layers=["1"])
    fit = inference.fit(model, guides.MeanField(model), data, epochs=2, progress=False)
    kl = inference.elbo.evidence(fit.model, fit.guide, data).kl
    found = inference.certify(fit, data)
    assert found.nats == pytest.approx(kl + 4 * 32 * math.log(2.0), rel=1e-6)


def test_test_rows_and_a_large_network_through_a_small_one():
    data, small, large = task(3), step_at(0.3), step_at(0.35)
    by_test = inference.certify(large, data, by=ByTest())
    wrong = int((large(data.x_test).argmax(-1) != data.y_test).sum())
    assert by_test.error == pytest.approx(beta.ppf(0.95, wrong + 1, 300 - wrong))
    assert inference.certify(large, data, by=ByTest(choices=9)).error > by_test.error
    x = torch.randn(500, 1)
    through = inference.certify(large, data, by=Through(small=small, x=x, by=ByTest()))
    differ = int(((x > 0.3) & (x <= 0.35)).sum())
    base = inference.certify(small, data, by=ByTest(), confidence=0.975)
    assert through.error == pytest.approx(base.error + beta.ppf(0.975, differ + 1, 500 - differ))


def test_a_regression_is_certified_by_rows_that_are_far_off():
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 1)).astype(np.float32)
    data = Dataset.from_tensors(x[:200], 2 * x[:200], x[200:], 2 * x[200:])
    net = nn.Linear(1, 1)
    with torch.no_grad():
        net.weight.fill_(0.9), net.bias.fill_(0.0)
    found = inference.certify(net, data, by=ByTest(within=0.2))
    assert found.wrong == pytest.approx(2 * norm.cdf(-1.0), abs=0.1)  # .1 |x| y_std beyond .2


def improper(data):
    model = models.BayesianNetwork(nn.Linear(1, 2), data, prior=models.priors.LogUniform())
    return inference.fit(model, guides.MeanField(model), data, epochs=1, progress=False)


def narrowed():
    data = task(0)
    model = models.BayesianNetwork(nn.Linear(1, 2), data, prior=models.priors.Normal(1.0))
    model.weights_before += 2  # as of a pair of inference.narrow
    return inference.fit(model, guides.MeanField(model), data, epochs=1, progress=False)


REFUSED = {
    "a narrowed posterior": lambda: inference.certify(narrowed(), task(0)),
    "draws of a network": lambda: inference.certify(
        step_at(0), task(0), by=Through(small=step_at(0), x=torch.zeros(3, 1), by=ByPosterior())
    ),
    "no rows": lambda: inference.certify(
        step_at(0), task(0), by=Through(small=step_at(0), x=torch.zeros(0, 1))
    ),
    "other rows": lambda: inference.certify(nn.Linear(2, 2), task(0)),
    "one output for two classes": lambda: inference.certify(nn.Linear(1, 1), task(0)),
    "an improper prior": lambda: inference.certify(improper(task(0)), task(0)),
    "weights": lambda: inference.certify(step_at(0), task(0, weights=np.ones(400))),
    "a regression": lambda: inference.certify(
        nn.Linear(1, 1), Dataset.from_tensors(*[np.arange(4.0)[:, None]] * 4)
    ),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_has_no_certificate_is_refused(which):
    with pytest.raises(PyroccamError):
        REFUSED[which]()


def test_a_vacuous_one_says_what_it_would_take():
    found = inference.certify(step_at(0.3), task(1))
    assert found.vacuous
    assert "says nothing" in str(found)
    size = int(str(found).split("a file of ")[2].split(" bytes")[0])
    nats = found.nats - (found.bytes - size) * 8 * math.log(2.0)
    smaller = binomial_limit(round(found.wrong * 400), 400, math.log(0.05) - nats)
    assert found.guess - 0.03 < smaller < found.guess


def test_outputs_that_are_no_logits_are_told_by_their_likelihood():
    random = np.random.default_rng(0)
    x = random.standard_normal((500, 1)).astype(np.float32)
    y = np.digitize(x[:, 0], (-0.5, 0.5))
    data = Dataset.from_tensors(x[:400], y[:400], x[400:], y[400:], classes=3)
    net, prior = nn.Linear(1, 1), models.priors.Normal(3.0)
    model = models.BayesianNetwork(net, data, prior=prior, likelihood="ordinal")
    fit = inference.fit(model, guides.MeanField(model), data, epochs=60, lr=0.05, progress=False)
    by_test = inference.certify(fit, data, by=ByTest())
    assert by_test.wrong < 0.2
    small = fit.posterior.mean_network()
    with pytest.raises(PyroccamError):
        inference.certify(small, data, by=ByTest())
    again = inference.certify(small, data, by=ByTest(), likelihood=fit.model.likelihood)
    assert again.wrong == by_test.wrong
    like = fit.model.likelihood
    told = inference.certify(small, data, likelihood=like)
    alone = 8 * told.bytes + 2 * told.bytes.bit_length() - 1 + 128
    cuts = sum(p.numel() for p in like.parameters()) * 32  # the cut points are not in the file
    assert told.nats == pytest.approx((alone + cuts) * math.log(2.0))
    assert inference.certify(fit, data).wrong < 0.5


def test_learnt_scales_of_priors_are_rounded_and_paid_with_nine_bits_each():
    """Beside the same posterior under a prior with those scales, fixed."""
    rows, net = task(0), models.networks.perceptron((1,), 2, hidden=(5,))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(0.3, learn="scale"))
    fit = inference.fit(model, guides.MeanField(model), rows, epochs=3, progress=False)
    learnt = {n: layer.prior.log_scale for n, layer in model.layers.items()}
    learnt = {n: p.detach() for n, p in learnt.items()}
    before = [float(p) for p in learnt.values()]
    given = {n: math.exp(round(16 * float(p)) / 16) for n, p in learnt.items()}
    fixed = models.BayesianNetwork(
        net, rows, prior={n: models.priors.Normal(scale) for n, scale in given.items()}
    )
    guide = guides.MeanField(fixed)
    guide.load_state_dict(fit.guide.state_dict())
    same = replace(fit, model=fixed, guide=guide)
    paid, free = (inference.certify(one, rows).nats for one in (fit, same))
    assert paid - free == pytest.approx(2 * 9 * math.log(2), rel=1e-4)
    assert [float(p) for p in learnt.values()] == before
    for p in model.parameters():
        p.requires_grad_(False)
    assert inference.certify(fit, rows).nats > free - 1.0  # what is not learnt is not given back
