"""Several processes find the bound, the gradient and the fit of one."""

import os
import signal

import numpy as np
import pytest
import torch
from fitting import QUICK, blobs, pair, run, spy
from processes import together
from pyroccam import data, guides, inference, models
from pyroccam.inference.distributed import Ranks, joined
from pyroccam.inference.distributed.group import Group
from pyroccam.inference.storage import load_checkpoint
from pyroccam.inference.training import Settings, Trainer, TrainingStep
from torch import nn


class Numbered(Ranks):
    """A process that knows its number and talks to nobody."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    part = Group.part


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


def bayesian(scale=0.1, **options):
    rows = blobs()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model, scale=scale, **options), rows


def still_network():
    """Random weights with a noise that is lost in rounding, beside a KL in closed form."""
    least = 1e-25 if torch.get_default_dtype() is torch.float64 else 1e-15
    return bayesian(least, local=False)


def still_depth():
    """Learnt depth without dropout, and without batch statistics, which are of a part."""
    rows = blobs()
    model, guide = pair(rows)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model.eval(), guide, rows


def gradients(make, dtype, rows=53):
    """Bound, gradient, log-likelihoods and kind of step of a batch, by all processes that are
    there; eagerly, and as a graph."""
    ranks, found = joined(), []
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    for compile in (False, "graph"):
        model, guide, data = make()
        model, guide = model.to(dtype), guide.to(dtype)
        x, y = data.x_train[:rows].to(dtype), data.targets[:rows]
        step = TrainingStep([(model, guide)], Settings(), compile=compile)
        part = ranks.part(rows)
        step.prepare(x, y)
        loss = step.evaluate(x[part.rows], y[part.rows])
        loss = step.add_up(ranks, rows, loss, by_depth=guide.traits.moves is not None)
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
    each = together(gradients, 2, make, torch.float64)
    for found in each:
        for mine, first, whole in zip(found, each[0], alone, strict=True):
            assert mine[3] == whole[3]
            assert mine[0] == pytest.approx(whole[0], rel=1e-12)
            torch.testing.assert_close(mine[1], whole[1], rtol=1e-10, atol=1e-13)
            assert torch.equal(mine[1], first[1])  # all move to the same place
            if make is still_depth:
                torch.testing.assert_close(mine[2], whole[2], rtol=1e-12, atol=1e-12)


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
        step.add_up(ranks, 20, step.evaluate(x[part.rows], rows.targets[:20][part.rows]))
        return model.stack.blocks[0].extra.grad.tolist()

    first, second = together(gradient, 2)
    assert first == second
    assert max(map(abs, first)) > 0.01


def test_buffers_agree_and_what_is_the_same_keeps_its_bits():
    def averaged():
        from pyroccam.inference.distributed.reduction import average_

        ranks = joined()
        moving = torch.tensor([1.0, float("inf")]) + ranks.rank * torch.tensor([1.0, 0.0])
        constant = torch.tensor([0.1, -float("inf")])
        count = torch.tensor(3 + ranks.rank)
        average_(ranks, [moving, constant, count])
        return moving.tolist(), constant.tolist(), count.item()

    expected = [2.0, float("inf")], torch.tensor([0.1, -float("inf")]).tolist(), 3
    assert together(averaged, 3) == [expected] * 3


# -- a fit of several processes ---------------------------------------------------------------


def fitted(kind="own", out=None, at=None, number=signal.SIGTERM, victim=1, **more):
    """What a fit comes to: its weights and q, its history; files are written by the first alone.
    One of the processes gets a signal after so many steps."""
    ranks, steps = joined(), []

    def send(trainer):
        steps.append(1)
        if len(steps) == at:
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        _always_save(patch)
        if ranks.rank == victim:
            spy(patch, "_step", after=send)
        chosen = bayesian()[:2] if kind == "weights" else pair(blobs(), kind=kind)
        torch.manual_seed(5 + ranks.rank)  # the state of a person's own generator
        found = inference.fit(*chosen, blobs(), **QUICK, out=out, **more)
    states = [*found.model.state_dict().items(), *found.guide.state_dict().items()]
    return {name: t.clone() for name, t in states}, repr(found.history), torch.rand(1).item()


def _always_save(patch):
    """Checkpoints and questions at every step."""
    init = Trainer.__init__

    def begin(self, *args, **kwargs):
        init(self, *args, **{**kwargs, "checkpoint_seconds": 0.0})
        told = self.ranks.told

        def asked(stop, due):
            self.ranks._left = 0
            return told(stop, due)

        if self.ranks.size > 1:
            patch.setattr(self.ranks, "told", asked)

    patch.setattr(Trainer, "__init__", begin)


def same(a, b):
    return a[1] == b[1] and all(torch.equal(t, b[0][name]) for name, t in a[0].items())


@pytest.mark.parametrize("kind", ["own", "weights"])
def test_a_fit_of_two_is_one_fit_and_goes_on_bit_for_bit(kind, tmp_path):
    """Dropout, batch statistics and draws are of each process; checkpoints hold them all. The
    signal reaches one of the two, and both stop after the same step."""
    first, second = together(fitted, 2, kind)
    assert same(first, second)
    assert first[2] != second[2]  # a person's own random numbers are left alone
    stopped = together(fitted, 2, kind, tmp_path, 14)
    assert all("Interrupted: Stopped after step 14 of 32 (" in one for one in stopped), stopped
    saved = load_checkpoint(tmp_path, torch.device("cpu"))["processes"]
    buffers, others = ({*one["buffers"]} for one in saved)
    assert others < buffers  # what differs alone
    assert bool(others) is (kind == "own")  # batch statistics
    with pytest.raises(inference.CheckpointError, match="begun by 2 processes"):
        fitted(kind, tmp_path, resume=True)
    again = [*together(lambda: fitted(kind, tmp_path, resume=True), 2)]
    assert same(again[0], first)
    assert same(again[1], first)
    if kind == "weights":
        return
    for victim in (0, 1):
        out = tmp_path / str(victim)
        found = together(fitted, 2, kind, out, 17, signal.SIGKILL, victim)
        assert found[victim] == -signal.SIGKILL
        assert found[1 - victim].startswith("RanksError: rank"), found
        again, _ = together(lambda: fitted(out=out, resume=True), 2)  # noqa: B023
        assert same(again, first)


def test_a_fit_of_two_learns_what_one_does(tmp_path):
    """Without noise and batch statistics the weights agree until rounding has grown; of rows that
    are streamed each process reads all, and takes its part of every batch."""
    x, y = blobs().split("train")
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())

    def still():
        rows = data.stream(tmp_path, held=20, val=6, test=6)
        torch.manual_seed(2)
        blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
        model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
        found = inference.fit(model, guides.CategoricalDepth(model, hold=0.25), rows, **QUICK)
        return found.model.state_dict(), found.structure.depth_probs, found.history[-1]

    weights, q, last = still()
    for theirs, own_q, own_last in together(still, 2):
        for name, t in weights.items():
            torch.testing.assert_close(theirs[name], t, rtol=2e-3, atol=2e-4)
        torch.testing.assert_close(own_q, q, rtol=1e-3, atol=1e-4)
        assert own_last["loss"] == pytest.approx(last["loss"], rel=1e-4)
        assert own_last["val_nll"] == pytest.approx(last["val_nll"], rel=1e-3)


@pytest.mark.parametrize(
    ("size", "more", "said"),
    [
        (2, {"lr": (0.1, 0.2)}, "processes disagree: lr is 0.1 on rank 0, and 0.2 on rank 1"),
        (2, {"rows": (0, 1)}, "processes disagree: data is ["),
        (4, {"batch_size": (7,) * 4}, "4 processes"),
    ],
)
def test_processes_that_disagree_or_are_too_many_are_told_so(size, more, said):
    def one():
        own = {name: values[joined().rank] for name, values in more.items()}
        return run(blobs(seed=own.pop("rows", 0)), settings={**QUICK, **own})

    for found in together(one, size):
        assert "Error: " in found
        assert said in found
