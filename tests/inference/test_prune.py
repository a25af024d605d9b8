import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.cutting import cost, seconds_per_batch
from pyroccam.inference.cutting.cost import compare_speed, count_parameters
from pyroccam.inference.shrinking.depth import full_network


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    rows = data.load("spirals")
    model = models.LearntDepth.mlp(rows, width=6, max_depth=4)
    guide = guides.CategoricalDepth(model)
    return inference.fit(model, guide, rows, epochs=20, progress=False, device="cpu", lr=0.02)


@pytest.mark.parametrize("rule", ["tail_to_last", "proportional"])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_marginal_form_weighs_the_first_exits(found, depth, rule):
    net = inference.shrinking.at_depth(found, depth=depth, rule=rule)
    q = found.structure.depth_probs
    w = q[: depth + 1].clone()
    if rule == "tail_to_last":
        w[-1] += q[depth + 1 :].sum()
    else:
        w /= w.sum()
    with torch.no_grad():
        exits = found.model.stack.outputs(found.data.x_test)[: depth + 1].softmax(-1)
        expected = (w.float()[:, None, None] * exits).sum(0)
        torch.testing.assert_close(net(found.data.x_test).exp(), expected, rtol=1e-4, atol=1e-5)


def test_single_form_and_the_default_depth(found):
    net = inference.shrink(found, exits="last").net
    assert net.depth == found.structure.depth_chosen
    deeper = inference.shrinking.at_depth(found, "last", depth=3)
    with torch.no_grad():
        expected = found.model.stack.outputs(found.data.x_test)[3].log_softmax(-1)
        torch.testing.assert_close(deeper(found.data.x_test), expected, rtol=1e-4, atol=1e-5)
    block = 6 * 6 + 6 + 12
    assert count_parameters(deeper) == (2 * 6 + 6) + 3 * block + (6 * 2 + 2)


def test_the_full_network_predicts_as_the_fit_does(found):
    net = full_network(found)
    with torch.no_grad():
        torch.testing.assert_close(
            net(found.data.x_test), found.predict(found.data.x_test), rtol=1e-4, atol=1e-5
        )
    assert count_parameters(net) == count_parameters(found.model)


def test_errors(found):
    with pytest.raises(PyroccamError):
        inference.shrinking.at_depth(found, depth=5)
    fixed = found.model.at_depth(1)
    fixed_fit = inference.fit(
        fixed, guides.Deterministic(fixed), found.data, epochs=1, progress=False, device="cpu"
    )
    with pytest.raises(PyroccamError):
        inference.shrink(fixed_fit)


def test_cutting_makes_it_faster():
    torch.manual_seed(0)
    rows = data.load("spirals")
    model = models.LearntDepth.mlp(rows, width=50, max_depth=30)
    nets = {"full": model.stack.eval(), "cut": model.stack.truncated(2)}
    seconds = seconds_per_batch(nets, rows.x_test[:200], rounds=5, least_seconds=1e-3)
    assert seconds["cut"] < 0.5 * seconds["full"]  # 3 blocks of 31: a tenth is expected


def test_speed_beside_another_has_quartiles_that_one_slow_round_does_not_move(monkeypatch):
    now, called = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def passes(name, seconds):
        def forward(x):
            called.append(name)
            now[0] += seconds(len(x))
            if len(called) == 25:  # something else runs for a while
                now[0] += 60.0

        return forward

    nets = {
        "old": passes("old", lambda n: n / 64),
        "new": passes("new", lambda n: 1 / 128 + n / 256),
    }
    found = compare_speed(nets, torch.zeros(300, 1), "old", rounds=9, least_seconds=1 / 64)
    assert [one["batch"] for one in found["new"]] == [1, 256]
    one, many = found["new"]
    assert (one["seconds"], one["seconds_before"]) == (3 / 256, 1 / 64)
    assert one["times_faster"] == pytest.approx([4 / 3, 4 / 3])
    assert many["times_faster"] == pytest.approx([4 / (1 + 1 / 128)] * 2)
    assert found["old"][1]["times_faster"] == [1.0, 1.0]
    assert len(compare_speed(nets, torch.zeros(1, 1), "old", rounds=3)["new"]) == 1


def test_the_seconds_of_a_pass_by_a_clock_of_our_own(monkeypatch):
    now, order = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Slow(torch.nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.seconds = seconds

        def forward(self, x):
            order.append(self.seconds)
            now[0] += self.seconds
            if len(order) == 30:  # something else runs for a while
                now[0] += 60.0

    slow, fast = 1 / 16, 1 / 256  # whose sums are exact
    nets = {"slow": Slow(slow), "fast": Slow(fast)}
    found = seconds_per_batch(nets, torch.zeros(1), rounds=9, least_seconds=5 / 256)
    assert found == {"slow": slow, "fast": fast}
    assert order == [slow] * 4 + [fast] * 4 + 9 * ([slow] + [fast] * 5)


def test_times_and_ratios_agree_on_a_busy_machine(monkeypatch):
    """Other work slows down some passes tenfold, of one network more often than of the other: the
    medians are 10 and 0.8, and yet it is 1.25 times as fast in four of five rounds."""
    times = {"old": [1.0, 1.0, 10.0, 10.0, 10.0], "new": [0.8, 0.8, 8.0, 8.0, 0.8]}
    monkeypatch.setattr(cost, "_rounds", lambda *arguments: times)
    nets = dict.fromkeys(times, torch.nn.Identity())
    (found,) = compare_speed(nets, torch.zeros(1, 1), "old")["new"]
    assert found["times_faster"] == pytest.approx([1.25, 1.25])
    assert found["seconds_before"] / found["seconds"] == pytest.approx(1.25)
