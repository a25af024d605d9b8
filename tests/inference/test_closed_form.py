r"""The closed-form update of q(d).

Derivation. For fixed weights let :math:`\ell_d = \log p(d) + \sum_n \log p(y_n \mid x_n, d)`. With
q = softmax(η) the ELBO over q is :math:`L(η) = \sum_d q_d (\ell_d - \log q_d)`.

* Its maximum is the exact posterior, :math:`q^* = \mathrm{softmax}(\ell)`, because
  :math:`L = \log \sum_d e^{\ell_d} - KL(q \| q^*)`.
* Its gradient is :math:`\nabla_η L = q \odot (f - q^\top f)` with :math:`f = \ell - \log q`; the
  Fisher matrix of η is :math:`F = \mathrm{diag}(q) - q q^\top`, so :math:`F f = \nabla_η L` and the
  natural gradient is f up to a constant, which softmax does not see. A step of size ρ is

  .. math:: η + ρ f = (1 - ρ)\, η + ρ\, \ell + \mathrm{const},

  the damped step that is made here.
"""

import itertools

import pytest
import torch
from pyroccam import guides, models
from pyroccam.inference.training.depth_update import IncrementalPosterior
from torch import nn

D, N = 3, 14


class Data:
    N, task, outputs, input_shape = N, "classification", 3, (2,)


def frozen(rate=0.3):
    """A model in float64 whose posterior is spread out, its guide and the update."""
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(D)]
    model = models.LearntDepth(nn.Linear(2, 4), blocks, nn.Linear(4, 3), data=Data).double()
    guide = guides.CategoricalDepth(model).double()
    x, y = torch.randn(N, 2, dtype=torch.float64), torch.arange(N) % 3
    table = model.log_likelihood(x, y).detach()
    update = IncrementalPosterior(guide.logits, model.log_prior, N, rate)
    return model, guide, table, update


def exact(model, table):
    joint = [float(model.log_prior[d].exp()) * float(table[d].exp().prod()) for d in range(D + 1)]
    return torch.tensor([j / sum(joint) for j in joint], dtype=torch.float64)


def test_the_posterior_of_these_tests_is_spread_out():
    model, _, table, _ = frozen()
    posterior = exact(model, table)
    assert posterior.min() > 0.02
    assert posterior.max() < 0.9


def test_a_whole_step_on_the_full_batch_is_the_exact_posterior():
    model, guide, table, update = frozen(rate=1.0)
    update.observe(None, table)
    update.step()
    torch.testing.assert_close(guide.probs, exact(model, table), rtol=1e-10, atol=0)


@pytest.mark.parametrize("size", [1, 4, 5])
def test_one_pass_of_minibatches_is_as_good_as_the_full_batch(size):
    model, guide, table, update = frozen(rate=1.0)
    for rows in torch.randperm(N).split(size):
        update.observe(rows, table[:, rows])
    update.step()
    torch.testing.assert_close(guide.probs, exact(model, table), rtol=1e-10, atol=0)


def test_rows_seen_again_replace_what_was_known_of_them():
    model, guide, table, update = frozen(rate=1.0)
    for rows in torch.arange(N).split(5):
        update.observe(rows, torch.randn(D + 1, len(rows), dtype=torch.float64))
    for rows in torch.randperm(N).split(3):
        update.observe(rows, table[:, rows])
    update.step()
    torch.testing.assert_close(guide.probs, exact(model, table), rtol=1e-10, atol=0)
    torch.testing.assert_close(update.total, table.sum(1), rtol=1e-12, atol=1e-12)


def test_an_incomplete_pass_is_scaled_to_the_whole_data():
    model, guide, table, update = frozen(rate=1.0)
    rows = torch.tensor([0, 3, 4, 9])
    update.observe(rows, table[:, rows])
    update.step(complete=False)
    expected = (model.log_prior + table[:, rows].sum(1) * N / 4).softmax(0)
    torch.testing.assert_close(guide.probs, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_a_step_is_a_natural_gradient_step(rate):
    model, guide, table, update = frozen(rate=rate)
    with torch.no_grad():
        guide.logits.copy_(torch.tensor([0.7, -1.2, 0.1, 2.0]))
    eta = guide.logits.detach().clone().requires_grad_()
    q = eta.softmax(0)
    elbo = (q * (model.log_prior + table.sum(1) - q.log())).sum()
    (gradient,) = torch.autograd.grad(elbo, eta)
    q = q.detach()
    fisher = torch.zeros(D + 1, D + 1, dtype=torch.float64)
    for d in range(D + 1):  # E[score scoreᵀ], the score of depth d is e_d - q
        score = -q.clone()
        score[d] += 1
        fisher += q[d] * torch.outer(score, score)
    expected = eta.detach() + rate * torch.linalg.pinv(fisher, hermitian=True) @ gradient
    update.observe(None, table)
    update.step()
    found, expected = (eta.detach().log_softmax(0) for eta in (guide.logits, expected))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_damping_mixes_log_probabilities_and_forgets_geometrically():
    model, guide, table, update = frozen(rate=0.25)
    start = torch.tensor([0.7, -1.2, 0.1, 2.0], dtype=torch.float64)
    with torch.no_grad():
        guide.logits.copy_(start)
    update.observe(None, table)
    target = (model.log_prior + table.sum(1)).log_softmax(0)
    for k in range(1, 6):
        update.step()
        left = 0.75**k
        expected = (left * start.log_softmax(0) + (1 - left) * target).log_softmax(0)
        torch.testing.assert_close(guide.logits.detach(), expected, rtol=1e-9, atol=1e-9)


def test_every_step_raises_the_elbo_and_the_posterior_is_a_fixed_point():
    model, guide, table, update = frozen(rate=0.4)
    joint = model.log_prior + table.sum(1)
    update.observe(None, table)
    values = []
    for _ in range(60):
        q = guide.probs
        values.append(float((q * (joint - q.log())).sum()))
        update.step()
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))
    assert values[1] > values[0] + 1e-3
    assert values[-1] == pytest.approx(float(torch.logsumexp(joint, 0)), rel=1e-12)
    torch.testing.assert_close(guide.probs, exact(model, table), rtol=1e-8, atol=0)


@pytest.mark.parametrize("seen", [torch.float32, torch.float64], ids=str)
def test_the_total_does_not_drift(seen):
    """It is the sum of the table, which is in single precision, whatever it is told."""
    update = IncrementalPosterior(torch.zeros(D + 1), torch.zeros(D + 1), N, 0.5)
    assert update.table.dtype == torch.float32
    generator = torch.Generator().manual_seed(0)
    for _ in range(3000):
        rows = torch.randperm(N, generator=generator)[:5]
        update.observe(rows, 100 * torch.randn(D + 1, 5, generator=generator, dtype=seen))
    torch.testing.assert_close(update.total, update.table.double().sum(1), rtol=0, atol=1e-9)
    update.observe(None, 100 * torch.randn(D + 1, N, generator=generator, dtype=seen))
    torch.testing.assert_close(update.total, update.table.double().sum(1), rtol=0, atol=1e-9)


def test_the_state_goes_into_a_checkpoint():
    _, guide, table, update = frozen(rate=0.3)
    update.observe(torch.arange(5), table[:, :5])
    state = {k: v.clone() for k, v in update.state_dict().items()}
    logits = guide.logits.detach().clone()
    update.step(complete=False)
    expected = guide.probs
    _model, guide, table, update = frozen(rate=0.3)
    with torch.no_grad():
        guide.logits.copy_(logits)
    update.load_state_dict(state)
    update.step(complete=False)
    assert torch.equal(guide.probs, expected)
    assert update.seen.tolist() == [True] * 5 + [False] * (N - 5)


# -- K replicates at once ---------------------------------------------------------------------


def normals(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_replicates_at_once_are_replicates_apart():
    """Priors, rows, log-likelihoods and logits of their own; a first pass that is not complete."""
    K, generator = 3, torch.Generator().manual_seed(0)
    prior = normals(generator, K, D + 1).log_softmax(-1)
    start = normals(generator, K, D + 1)
    logits, alone = start.clone(), [row.clone() for row in start]
    together = IncrementalPosterior(logits, prior, N, 0.3)
    apart = [IncrementalPosterior(alone[k], prior[k], N, 0.3) for k in range(K)]
    for step in range(9):
        rows = torch.stack([torch.randperm(N, generator=generator)[:4] for _ in range(K)])
        rows = None if step == 6 else rows
        size = N if rows is None else 4
        found = normals(generator, K, D + 1, size)
        together.observe(rows, found)
        together.step(complete=step > 5)
        for k, one in enumerate(apart):
            one.observe(None if rows is None else rows[k], found[k])
            one.step(complete=step > 5)
        torch.testing.assert_close(logits, torch.stack(alone), rtol=1e-12, atol=1e-12)
        assert torch.equal(together.table, torch.stack([one.table for one in apart]))
        assert torch.equal(together.seen, torch.stack([one.seen for one in apart]))
    assert bool(together.seen.all())


def test_the_replicates_of_one_update_follow_their_own_posterior():
    generator = torch.Generator().manual_seed(0)
    prior = normals(generator, 2, D + 1).log_softmax(-1)
    tables = normals(generator, 2, D + 1, N)
    logits = torch.zeros(2, D + 1, dtype=torch.float64)
    update = IncrementalPosterior(logits, prior, N, 1.0)
    for part in torch.stack([torch.randperm(N, generator=generator) for _ in range(2)]).split(5, 1):
        update.observe(part, torch.stack([tables[k][:, part[k]] for k in range(2)]))
    update.step()
    for k in range(2):
        joint = prior[k].exp() * tables[k].exp().prod(1)
        torch.testing.assert_close(logits[k].softmax(0), joint / joint.sum(), rtol=1e-9, atol=0)


def test_a_replicate_that_is_not_finite_spoils_itself_alone():
    logits, table = torch.zeros(2, D + 1), torch.zeros(2, D + 1, N)
    table[1, 2, 3] = float("nan")
    update = IncrementalPosterior(logits, torch.zeros(2, D + 1), N, 0.5)
    update.observe(None, table)
    update.step()
    assert bool(torch.isfinite(logits[0]).all())
    assert bool(torch.isnan(logits[1]).any())
