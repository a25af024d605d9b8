"""What a step of a selection takes."""

import torch
from pyroccam.inference.selection.search import drawn


def test_minibatches_are_rows_that_belong_together():
    torch.manual_seed(0)
    x = torch.arange(10.0)[:, None]
    batches = drawn(x, 2 * x, 4)
    seen = [next(batches) for _ in range(6)]
    for one, two in zip(seen[::2], seen[1::2], strict=True):  # two of four rows, and two left out
        for a, b in (one, two):
            assert torch.equal(b, 2 * a)
            assert a.shape == (4, 1)
        assert len({*one[0].flatten().tolist(), *two[0].flatten().tolist()}) == 8
    assert not torch.equal(seen[0][0], seen[2][0])
    whole = drawn(x, 2 * x, 10)
    assert next(whole)[0] is x
