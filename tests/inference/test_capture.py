"""Recorded steps: on a CPU with a recorder that only pretends, with CUDA graphs where there are."""

import pytest
import torch
from pyroccam.inference.training import CompileFallback
from stepping import assert_close, batches, build, stacked, step_of, tensors
from torch.utils._pytree import tree_map_only


class Pretend:
    """As CUDA graphs do: nothing runs while recording, results lie where the first replay put
    them."""

    def __init__(self, breaks=False):
        self.breaks, self.recorded, self.replayed = breaks, 0, 0

    def aside(self, run):
        return run()

    def record(self, run):
        if self.breaks:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        self.recorded += 1
        kept = []

        def replay():
            self.replayed += 1
            now = run()
            if not kept:
                kept.append(now)
            old, new = [], []
            tree_map_only(torch.Tensor, old.append, kept[0])
            tree_map_only(torch.Tensor, new.append, now)
            for a, b in zip(old, new, strict=True):
                a.copy_(b)
            return kept[0]

        return replay


def test_what_cannot_be_recorded_is_called():
    sequence = batches(count=10)
    with pytest.warns(CompileFallback, match="RuntimeError: operation not permitted") as warned:
        found, how = run([build("norm")], sequence, Pretend(breaks=True))
    assert len(warned) == 1
    assert not how["cuda_graphs"]
    expected, _ = run([build("norm")], sequence, None)
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def run(pairs, sequence, recorder, **settings):
    """Tensors after stepping; the guide is held at first, so that two updates are recorded."""
    step = step_of(*pairs, compile="graph", **settings)
    step.recorder = recorder
    places, count = None, len(sequence)
    losses = []
    for i, (x, y) in enumerate(sequence):
        losses.append(step(x, y, progress=i / count, hold=0.45))
        now = [f.grad.data_ptr() for f in step.flats.values()]
        now += [t.data_ptr() for t in (*step._stacked.views, *step._stacked.state.values())]
        assert places in (None, now)  # a CUDA graph would read what was there before
        places = now
    seen = step.seen["y"].clone()
    how = step.describe()
    step.release()
    found = {"losses": torch.stack(losses), "seen": seen}
    for k, pair in enumerate(pairs):
        found |= {f"{k}.{name}": t for name, t in tensors(*pair).items()}
    return found, how


@pytest.mark.parametrize(("count", "optimizer"), [(1, "adamw"), (2, "sgd")])
def test_recorded_steps_are_the_same_steps(count, optimizer):
    sequences = [batches(seed, count=16) for seed in range(count)]
    sequence = sequences[0] if count == 1 else stacked(*sequences)
    settings = {"optimizer": optimizer, "schedule": "cosine", "clip_norm": 0.3, "kl_warmup": 0.5}
    recorder = Pretend()
    pairs = [[build("norm", seed) for seed in range(count)] for _ in range(2)]
    found, how = run(pairs[0], sequence, recorder, **settings)
    expected, plain = run(pairs[1], sequence, None, **settings)
    # Rates are single-precision tensors in a recording.
    assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert recorder.recorded == 3  # the evaluation, and the update with and without the guide
    assert how["cuda_graphs"]
    assert not plain["cuda_graphs"]
