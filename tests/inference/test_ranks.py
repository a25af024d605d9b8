"""Several processes find the bound, the gradient and the fit of one."""

import pytest
import torch
from fitting import blobs, pair
from processes import together
from pyroccam import guides, models
from pyroccam.inference.distributed import joined
from pyroccam.inference.distributed.ranks import Ranks
from pyroccam.inference.training.settings import Settings
from pyroccam.inference.training.step import TrainingStep
from torch import nn


class Numbered(Ranks):
    """A process that knows its number and talks to nobody."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 14, 64])
def test_parts_make_up_the_batch(rows, size):
    parts = [Numbered(rank, size).part(rows) for rank in range(size)]
    assert sum(part.weight for part in parts) == pytest.approx(1.0, abs=1e-12)
    counted = [i for part in parts if part.weight for i in range(rows)[part.rows]]
    assert counted == list(range(rows))
    lengths = [part.stop - part.start for part in parts]
    assert min(lengths) >= min(2, rows)
    assert max(lengths) - min(lengths) <= 1
    assert all(Numbered(0, size).part(rows, k) == part for k, part in enumerate(parts))


def test_the_noise_of_each_process_is_another():
    seeds = [Numbered(rank, 4).seed(3) for rank in range(4)]
    assert seeds[0] == 3  # as one process has it
    assert len(set(seeds)) == 4
    assert len({Numbered(1, 2).seed(seed) for seed in range(50)}) == 50


# -- bound and gradient -----------------------------------------------------------------------


def still_network(dtype):
    """Random weights with a noise that is lost in rounding, beside a KL in closed form."""
    rows = blobs()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0)).to(dtype)
    least = 1e-25 if dtype == torch.float64 else 1e-15
    return model, guides.MeanField(model, scale=least, local=False).to(dtype), rows


def still_depth(dtype):
    """Learnt depth without dropout, and without batch statistics, which are of a part."""
    rows = blobs()
    model, guide = pair(rows)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model.to(dtype).eval(), guide.to(dtype), rows


def gradients(make, dtype, rows=53):
    """Bound, gradient, log-likelihoods and kind of step of a batch, by all processes that are
    there; eagerly, and as a graph."""
    ranks, found = joined(), []
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    for compile in (False, "graph"):
        model, guide, data = make(dtype)
        x, y = data.x_train[:rows].to(dtype), data.targets[:rows]
        step = TrainingStep([(model, guide)], Settings(), compile=compile)
        part = ranks.part(rows)
        step.prepare(x, y)
        loss = step.evaluate(x[part.rows], y[part.rows])
        loss = step.add_up(ranks, part, rows, loss, by_depth=guide.traits.moves is not None)
        flat = torch.cat([flat.grad.flatten() for flat in step.flats.values()]).clone()
        found.append((loss.item(), flat, step.seen["y"].clone(), step.kind))
    torch.set_default_dtype(before)
    return found


@pytest.mark.parametrize("make", [still_network, still_depth])
def test_bound_and_gradient_do_not_depend_on_the_number_of_processes(make):
    """Exact but for the order of the sums, in float64; 53 rows are parts of unequal sizes."""
    alone = gradients(make, torch.float64)
    assert [kind for *_, kind in alone] == ["eager", "graph"]
    assert alone[0][1].abs().max() > 1e-3
    for size in (2, 4):
        each = together(gradients, size, make, torch.float64)
        for found in each:
            for mine, first, whole in zip(found, each[0], alone, strict=True):
                assert mine[3] == whole[3]
                assert mine[0] == pytest.approx(whole[0], rel=1e-12)
                torch.testing.assert_close(mine[1], whole[1], rtol=1e-10, atol=1e-13)
                assert torch.equal(mine[1], first[1])  # all move to the same place
                if make is still_depth:
                    torch.testing.assert_close(mine[2], whole[2], rtol=1e-12, atol=1e-12)


def test_single_precision_agrees_to_its_last_digits():
    alone = gradients(still_network, torch.float32)[0]
    for found in together(gradients, 2, still_network, torch.float32):
        assert found[0][0] == pytest.approx(alone[0], rel=1e-6)
        torch.testing.assert_close(found[0][1], alone[1], rtol=1e-5, atol=1e-6)


class AtTimes(nn.Module):
    """A block with a parameter that only some batches use."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 6)
        self.extra = nn.Parameter(torch.ones(6))

    def forward(self, a):
        return self.line(a) + self.extra if bool(a.abs().mean() > 100) else self.line(a)


def test_a_gradient_that_one_process_has_reaches_all():
    def gradient():
        ranks, rows = joined(), blobs()
        torch.manual_seed(1)
        model = models.LearntDepth(nn.Linear(2, 6), [AtTimes()], nn.Linear(6, 3), data=rows)
        guide = guides.CategoricalDepth(model, update="gradient")
        step = TrainingStep([(model, guide)], Settings(), compile=False)
        step.prepare(rows.x_train[:20], rows.targets[:20])
        x = rows.x_train[:20].clone()
        x[10:] += 1000.0 * (ranks.rank == 1)
        part = ranks.part(20)
        step.add_up(ranks, part, 20, step.evaluate(x[part.rows], rows.targets[:20][part.rows]))
        return next(p.grad for p in step._idle[0] if p.shape == (6,)).tolist()

    first, second = together(gradient, 2)
    assert first == second
    assert max(map(abs, first)) > 0.01


def test_with_noise_the_gradient_is_that_of_one_process_in_expectation():
    """The mean over many steps, whose spread says how far it may be."""
    alone, several = many_gradients(), together(many_gradients, 2)[0]
    spread = (alone.var(0) / len(alone) + several.var(0) / len(several)).sqrt()
    z = (alone.mean(0) - several.mean(0)) / spread
    assert z.abs().max() < 4.5  # of 51 numbers: a false alarm in 3,000
    assert 0.2 < (several.var(0) / alone.var(0)).mean() < 1.1  # halves of a batch, each its draw


def many_gradients(steps=300):
    ranks, data = joined(), blobs()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, data, prior=models.priors.Normal(1.0))
    guide = guides.MeanField(model, scale=0.3)
    step = TrainingStep([(model, guide)], Settings(), compile="graph")
    step.prepare(data.x_train, data.targets)
    part = ranks.part(data.N)
    x, y = data.x_train[part.rows], data.targets[part.rows]
    torch.manual_seed(ranks.seed(7))
    found = []
    for _ in range(steps):
        step.add_up(ranks, part, data.N, step.evaluate(x, y))
        found.append(step.flats["posterior"].grad.flatten().double().clone())
    return torch.stack(found)
