r"""The posterior of the depth: the exact one, its update in closed form, the choice, a summary.

For fixed weights let :math:`\ell_d = \log p(d) + \sum_n \log p(y_n \mid x_n, d)`. With
q = softmax(η) the ELBO over q is :math:`L(η) = \sum_d q_d (\ell_d - \log q_d)`.

* Its maximum is the exact posterior, :math:`q^* = \mathrm{softmax}(\ell)`.
* Its natural gradient by η is :math:`\ell - \log q` up to a constant, so a step of size ρ is
  :math:`(1 - ρ)\, η + ρ\, \ell`.
"""

import json

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.inference.posterior import DepthStructure, total_variation
from pyroccam.inference.posterior.depth import choose_depth
from pyroccam.inference.training.depth_update import IncrementalPosterior
from torch import nn


class Data:
    """Random rows in float64, as far as the exact posterior needs them."""

    N, task, outputs, input_shape = 17, "classification", 3, (2,)

    def __init__(self):
        self.rows = {
            "train": (torch.randn(17, 2, dtype=torch.float64), torch.arange(17) % 3),
            "val": (torch.randn(5, 2, dtype=torch.float64), torch.arange(5) % 3),
        }

    def split(self, name):
        return self.rows[name]

    def parts(self, split):
        yield self.rows[split]


def normalised():
    """A model with batch normalisation in blocks and head, running statistics not 0 and 1."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(3)]
    head = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    data = Data()
    model = models.LearntDepth(nn.Linear(2, 4), blocks, head, data=data).double()
    for _ in range(4):
        model.stack.outputs(2 * torch.randn(9, 2, dtype=torch.float64) + 1)
    return model, data


@pytest.mark.parametrize("training", [True, False])
def test_exact_posterior_equals_brute_force(training, monkeypatch):
    monkeypatch.setattr("pyroccam.inference.posterior.depth.BATCH", 7)
    model, data = normalised()
    x, y = data.split("train")
    joint = []
    for d in range(4):
        net = model.stack.at(d).eval()
        p = float(model.log_prior[d].double().exp())
        for n in range(len(x)):  # one row at a time, as probabilities
            p *= float(net(x[n : n + 1]).detach().softmax(-1)[0, y[n]])
        joint.append(p)
    model.train(training)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    got = inference.posterior.exact_depth_posterior(model, data)
    assert not got.requires_grad
    expected = torch.tensor([j / sum(joint) for j in joint], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)
    assert all(m.training is training for m in model.modules())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_exact_posterior_of_many_rows_does_not_underflow():
    """Its joint probabilities are below the smallest float64, but their ratios are known."""
    model, data = normalised()
    for p in model.stack.head[1].parameters():
        nn.init.zeros_(p)
    data.rows["train"] = (torch.randn(5000, 2, dtype=torch.float64), torch.zeros(5000).long())
    # every depth says 1/3: joint p(d) / 3^5000, posterior the prior
    got = inference.posterior.exact_depth_posterior(model, data)
    torch.testing.assert_close(got, model.log_prior.double().softmax(0), rtol=1e-9, atol=0)


def test_choices_of_a_depth():
    for probs, threshold, depth in (
        ([0.25, 0.5, 0.25], 0.5, 0),  # exactly at the threshold: >=, not >
        ([0.25, 0.5, 0.25], 0.51, 1),
        ([0.1, 0.39, 0.4, 0.11], 0.95, 1),
        ([0.1, 0.37, 0.4, 0.13], 0.95, 2),
        ([0.5, 0.5], 1.0, 0),
        ([0.0, 0.0, 1.0], 0.95, 2),
        ([1.0], 0.95, 0),
    ):
        assert choose_depth(torch.tensor(probs), threshold) == depth


def test_total_variation():
    """The largest difference that any event shows, over all eight events."""
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.5, 0.3, 0.2])
    events = [torch.tensor([bool(i & 1 << k) for k in range(3)]) for i in range(8)]
    largest = max(abs(float(p[e].sum() - q[e].sum())) for e in events)
    assert total_variation(p, q) == pytest.approx(largest, abs=1e-7)


Q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def test_structure_summarises_q_beside_the_exact_posterior():
    exact = torch.tensor([0.7, 0.1, 0.1, 0.1])
    s = DepthStructure.from_probs(Q, exact, running=torch.full((4,), 0.25))
    assert (s.depth_chosen, s.depth_chosen_exact, s.depth_chosen_running) == (3, 0, 0)
    assert s.depth_expected == pytest.approx(0.2 + 0.6 + 1.2)
    assert s.depth_rounded_mean == 2
    assert s.tv_to_exact == pytest.approx(0.6)
    assert s.tv_running == pytest.approx(0.45)
    again = json.loads(json.dumps(s.to_json()))
    assert (again["depth_probs"], again["depth_chosen"]) == (Q.tolist(), 3)
    without = DepthStructure.from_probs(Q, exact, threshold=0.7)
    assert (without.depth_chosen, without.tv_running) == (2, None)


def test_estimates_from_other_draws_say_how_sure_a_depth_is():
    """Of four estimates three choose the depth of q; errors are of their mean."""
    like, other = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.7, 0.1, 0.1, 0.1])
    s = DepthStructure.from_probs(Q, torch.stack([like, like, other, like]))
    assert (s.depth_chosen, s.agreement) == (3, 0.75)
    each = torch.tensor([total_variation(Q, p) for p in (like, like, other, like)])
    assert s.tv_to_exact == pytest.approx(float(each.mean()))
    assert s.tv_error == pytest.approx(float(each.std()) / 2)
    ratio = torch.tensor([0.1 / 0.4, 0.1 / 0.4, 0.7 / 0.1, 0.1 / 0.4]).log()
    assert float(s.log_errors[0]) == pytest.approx(float(ratio.std()) / 2, rel=1e-5)
    assert float(s.log_errors[3]) == 0.0
    p = s.exact_depth_probs
    assert float((p[0] / p[3]).log()) == pytest.approx(float(ratio.mean()), rel=1e-5)


D, ROWS = 3, 14


class Shape:
    N, task, outputs, input_shape = ROWS, "classification", 3, (2,)


def frozen(rate=0.3):
    """A model in float64 whose posterior is spread out, its guide and the update."""
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(D)]
    model = models.LearntDepth(nn.Linear(2, 4), blocks, nn.Linear(4, 3), data=Shape).double()
    guide = guides.CategoricalDepth(model).double()
    x, y = torch.randn(ROWS, 2, dtype=torch.float64), torch.arange(ROWS) % 3
    table = model.log_likelihood(x, y).detach()
    update = IncrementalPosterior(guide.logits, model.log_prior, ROWS, rate)
    return model, guide, table, update


def exact(model, table):
    joint = [float(model.log_prior[d].exp()) * float(table[d].exp().prod()) for d in range(D + 1)]
    return torch.tensor([j / sum(joint) for j in joint], dtype=torch.float64)


@pytest.mark.parametrize("size", [1, ROWS])
def test_one_pass_of_minibatches_is_as_good_as_the_full_batch(size):
    model, guide, table, update = frozen(rate=1.0)
    for rows in torch.arange(ROWS).split(4):  # which are replaced
        update.observe(rows, torch.randn(D + 1, len(rows), dtype=torch.float64))
    for rows in torch.randperm(ROWS).split(size):
        update.observe(rows, table[:, rows])
    update.step()
    torch.testing.assert_close(guide.probs, exact(model, table), rtol=1e-10, atol=0)


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


def normals(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_replicates_at_once_are_replicates_apart():
    """Priors, rows, log-likelihoods and logits of their own; a first pass that is not complete."""
    K, generator = 3, torch.Generator().manual_seed(0)
    prior = normals(generator, K, D + 1).log_softmax(-1)
    start = normals(generator, K, D + 1)
    logits, alone = start.clone(), [row.clone() for row in start]
    together = IncrementalPosterior(logits, prior, ROWS, 0.3)
    apart = [IncrementalPosterior(alone[k], prior[k], ROWS, 0.3) for k in range(K)]
    for step in range(9):
        rows = torch.stack([torch.randperm(ROWS, generator=generator)[:4] for _ in range(K)])
        rows = None if step == 6 else rows
        size = ROWS if rows is None else 4
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
