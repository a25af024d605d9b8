"""A fit of several processes: stopped, gone on with, broken off, refused."""

import os
import signal
import sys

import numpy as np
import pytest
import torch
from fitting import QUICK, blobs, pair, run, spy
from processes import together
from pyroccam import data, guides, inference, models
from pyroccam.inference.distributed import joined
from pyroccam.inference.training.trainer import Trainer
from torch import nn

trainer_module = sys.modules["pyroccam.inference.training.trainer"]


def fitted(kind="own", out=None, stop_at=None, kill_at=None, victim=1, **more):
    """What a fit comes to: its weights and q, its history; files are written by the first alone."""
    ranks = joined()
    with pytest.MonkeyPatch.context() as patch:
        _always_save(patch)
        if stop_at is not None and ranks.rank == victim:
            spy(patch, "_step", after=_at(stop_at, signal.SIGTERM))
        if kill_at is not None and ranks.rank == victim:
            spy(patch, "_step", after=_at(kill_at, signal.SIGKILL))
        chosen = bayesian() if kind == "weights" else pair(blobs(), kind=kind)
        torch.manual_seed(5 + ranks.rank)  # the state of a person's own generator
        found = inference.fit(*chosen, blobs(), **QUICK, out=out, **more)
    states = [*found.model.state_dict().items(), *found.guide.state_dict().items()]
    return {name: t.clone() for name, t in states}, repr(found.history), torch.rand(1).item()


def bayesian():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = models.BayesianNetwork(net, blobs(), prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model)


def _at(step, number):
    steps = []

    def count(trainer):
        steps.append(trainer.step_number)
        if len(steps) == step:
            os.kill(os.getpid(), number)

    return count


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
    again = [*together(lambda: fitted(kind, tmp_path, resume=True), 2)]
    assert same(again[0], first)
    assert same(again[1], first)


def test_a_process_that_is_killed_ends_the_others_and_nothing_is_lost(tmp_path):
    first, _ = together(fitted, 2)
    for victim in (0, 1):
        out = tmp_path / str(victim)
        found = together(lambda: fitted(out=out, kill_at=17, victim=victim), 2)  # noqa: B023
        assert found[victim] == -signal.SIGKILL
        assert found[1 - victim].startswith("RanksError: rank"), found
        again, _ = together(lambda: fitted(out=out, resume=True), 2)  # noqa: B023
        assert same(again, first)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_fit_of_two_learns_what_one_does(streamed, tmp_path):
    """Without noise and batch statistics the weights agree until rounding has grown; of rows that
    are streamed each process reads all, and takes its part of every batch."""
    x, y = blobs().split("train")
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())

    def still():
        rows = data.stream(tmp_path, held=20, val=6, test=6) if streamed else blobs()
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


def test_replicates_that_train_together_take_part():
    def repeats():
        def build(seed):
            return *pair(blobs()), blobs()

        found = inference.fit_repeats(build, [1, 2], together=True, epochs=2, batch_size=16,
                                      progress=False, device="cpu")  # fmt: skip
        return [repr(fit.history) for fit in found.fits]

    first, second = together(repeats, 2)
    assert first == second
    assert len(set(first)) == 2


# -- what is refused --------------------------------------------------------------------------


def refused(**more):
    def one():
        own = {name: values[joined().rank] for name, values in more.items()}
        rows = blobs(seed=own.pop("rows", 0))
        return run(rows, settings={**QUICK, **own})

    return together(one, 2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lr": (0.1, 0.2)}, "lr is 0.1 on rank 0, and 0.2 on rank 1"),
        ({"rows": (0, 1)}, "data is ["),
        ({"seed": (1, 2)}, "seed is [1] on rank 0, and [2] on rank 1"),
    ],
)
def test_processes_that_disagree_are_told_so(more, said):
    for found in refused(**more):
        assert found.startswith("RanksError: the processes disagree: ")
        assert said in found


def test_other_versions_are_refused(monkeypatch):
    def one():
        version = {"torch": f"2.1{joined().rank}"}
        monkeypatch.setattr(trainer_module, "versions", lambda: version)
        return run()

    for found in together(one, 2):
        assert "versions is {'torch': '2.10'} on rank 0, and {'torch': '2.11'} on rank 1" in found


def test_too_many_processes_for_a_batch_are_refused():
    for found in together(lambda: run(settings={**QUICK, "batch_size": 7}), 4):
        assert found.startswith("PyroccamError: ")


def test_another_number_of_processes_cannot_go_on(tmp_path):
    stopped = together(fitted, 2, "own", tmp_path, 6)
    assert all(one.startswith("Interrupted") for one in stopped)
    with pytest.raises(inference.CheckpointError, match="begun by 2 processes"):
        run(out=tmp_path, resume=True)
