"""Networks cut at their learnt depth, and how much faster they are."""

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.cutting import compare_speed, count_parameters, seconds_per_batch
from pyroccam.inference.shrinking import at_depth, full_network
from pyroccam.inference.shrinking.depth import kept_depth_probs


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    rows = data.load("spirals")
    model = models.LearntDepth.mlp(rows, width=6, max_depth=4)
    guide = guides.CategoricalDepth(model)
    return inference.fit(model, guide, rows, epochs=20, progress=False, device="cpu", lr=0.02)


def near(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["tail_to_last", "proportional"])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_marginal_form_weighs_the_first_exits(found, depth, rule):
    q, x = found.structure.depth_probs, found.data.x_test
    w = q[: depth + 1].clone()
    if rule == "tail_to_last":
        w[-1] += q[depth + 1 :].sum()
    else:
        w /= w.sum()
    assert kept_depth_probs(q, depth, rule).tolist() == pytest.approx(w.tolist(), abs=1e-7)
    with torch.no_grad():
        exits = found.model.stack.outputs(x)[: depth + 1].softmax(-1)
        expected = (w.float()[:, None, None] * exits).sum(0)
        near(at_depth(found, depth=depth, rule=rule)(x).exp(), expected)


def test_single_form_and_the_whole(found):
    deeper, whole, x = at_depth(found, "last", depth=3), full_network(found), found.data.x_test
    last, mixed, chosen = at_depth(found, "last"), at_depth(found), found.structure.depth_chosen
    with torch.no_grad():
        assert torch.equal(inference.shrink(found, exits="last").net(x), last(x))
        assert torch.equal(inference.shrink(found).net(x), mixed(x))
        assert last.depth == mixed.depth == chosen
        assert not torch.equal(last(x), mixed(x))
        near(deeper(x), found.model.stack.outputs(x)[3].log_softmax(-1))
        near(whole(x), found.predict(x))
    assert count_parameters(deeper) == (2 * 6 + 6) + 3 * (6 * 6 + 6 + 12) + (6 * 2 + 2)
    assert count_parameters(whole) == count_parameters(found.model)


def test_what_cannot_be_cut(found):
    with pytest.raises(PyroccamError):
        at_depth(found, depth=5)
    nothing = torch.tensor([0.0, 0.0, 1.0])
    assert kept_depth_probs(nothing, 1).tolist() == [0.0, 1.0]
    for odd in ((nothing, 1, "proportional"), (nothing, 3), (nothing, -1), (nothing, 1, "drop")):
        with pytest.raises(PyroccamError):
            kept_depth_probs(*odd)


@pytest.fixture
def clock(monkeypatch):
    """Networks that take as long as they say, by a clock of our own; and the order of calls, of
    which one is slow."""
    now, called = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Slow(torch.nn.Module):
        def __init__(self, seconds, slow_call):
            super().__init__()
            self.seconds, self.slow_call = seconds, slow_call

        def forward(self, x):
            called.append(self.seconds)
            now[0] += self.seconds(len(x)) if callable(self.seconds) else self.seconds
            if len(called) == self.slow_call:  # something else runs for a while
                now[0] += 60.0

    return Slow, called


def test_speed_beside_another_has_quartiles_that_one_slow_round_does_not_move(clock):
    passes, _ = clock
    nets = {
        "old": passes(lambda n: n / 64, 25),
        "new": passes(lambda n: 1 / 128 + n / 256, 25),
    }
    found = compare_speed(nets, torch.zeros(300, 1), "old", rounds=9, least_seconds=1 / 64)
    assert [one["batch"] for one in found["new"]] == [1, 256]
    one, many = found["new"]
    assert (one["seconds"], one["seconds_before"]) == (3 / 256, 1 / 64)
    assert one["times_faster"] == pytest.approx([4 / 3, 4 / 3])
    assert many["times_faster"] == pytest.approx([4 / (1 + 1 / 128)] * 2)
    assert found["old"][1]["times_faster"] == [1.0, 1.0]
    assert len(compare_speed(nets, torch.zeros(1, 1), "old", rounds=3)["new"]) == 1


def test_the_seconds_of_a_pass(clock):
    passes, order = clock
    slow, fast = 1 / 16, 1 / 256  # whose sums are exact
    nets = {"slow": passes(slow, 30), "fast": passes(fast, 30)}
    found = seconds_per_batch(nets, torch.zeros(1), rounds=9, least_seconds=5 / 256)
    assert found == {"slow": slow, "fast": fast}
    assert order == [slow] * 4 + [fast] * 4 + 9 * ([slow] + [fast] * 5)
