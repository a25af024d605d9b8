r"""The closed-form update of q(d).

Derivation. For fixed weights let :math:`\ell_d = \log p(d) + \sum_n \log p(y_n \mid x_n, d)`. With
q = softmax(η) the ELBO over q is :math:`L(η) = \sum_d q_d (\ell_d - \log q_d)`.

* Its maximum is the exact posterior, :math:`q^* = \mathrm{softmax}(\ell)`.
* Its natural gradient by η is :math:`\ell - \log q` up to a constant, so a step of size ρ is
  :math:`(1 - ρ)\, η + ρ\, \ell`.
"""

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


@pytest.mark.parametrize("size", [1, 5, N])
def test_one_pass_of_minibatches_is_as_good_as_the_full_batch(size):
    model, guide, table, update = frozen(rate=1.0)
    for rows in torch.arange(N).split(4):  # which are replaced
        update.observe(rows, torch.randn(D + 1, len(rows), dtype=torch.float64))
    for rows in torch.randperm(N).split(size):
        update.observe(rows, table[:, rows])
    update.step()
    torch.testing.assert_close(guide.probs, exact(model, table), rtol=1e-10, atol=0)


def test_an_incomplete_pass_is_scaled_to_the_whole_data():
    model, guide, table, update = frozen(rate=1.0)
    rows = torch.tensor([0, 3, 4, 9])
    update.observe(rows, table[:, rows])
    update.step(complete=False)
    expected = (model.log_prior + table[:, rows].sum(1) * N / 4).softmax(0)
    torch.testing.assert_close(guide.probs, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("rate", [0.05, 1.0])
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
