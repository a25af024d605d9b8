"""A training step: one computation however it runs, and what decides how it runs."""

import copy
import itertools

import pytest
import torch
from fitting import blobs, images, pair
from plain import network
from pyroccam import guides, inference, models
from pyroccam.inference.compilation import inductor
from pyroccam.inference.training import CompileFallback, Replicate, Settings, Trainer
from random_weights import assert_same_means
from stepping import (
    WIDTH,
    Residual,
    assert_close,
    batches,
    build,
    build_fixed,
    linear,
    norm,
    stacked,
    step_of,
    tensors,
    walk,
)
from torch import nn
from torch.optim import SGD
from uncompiled import leave_uncompiled


@pytest.fixture
def uncompiled(monkeypatch):
    """All that surrounds the compiler, in a second."""
    return leave_uncompiled(monkeypatch)


# -- one computation, however it runs ---------------------------------------------------------


def repeated():
    """Equal parts, of two kinds."""
    return [Residual(linear(), nn.Tanh(), norm()) for _ in range(4)] + [
        Residual(nn.LayerNorm(WIDTH), linear()) for _ in range(4)
    ]


@pytest.mark.parametrize(
    ("blocks", "update", "alone", "mapped"),
    [
        ("norms", "gradient", True, True),
        ("odd", "gradient", "graph", False),
        ("modules", "gradient", "graph", None),
        ("plain", "closed", None, False),
        (repeated, "gradient", True, True),
    ],
)
def test_eager_traced_and_mapped_steps_agree(blocks, update, alone, mapped, uncompiled):
    """Losses, log-likelihoods, weights, q and buffers after some steps of two different pairs."""

    def pairs(*seeds):
        found = [build(blocks, seed) for seed in seeds]
        for _, guide in found:
            guide.logits.requires_grad_(update == "gradient")
        return found

    apart = [walk(pairs(seed), batches(seed), clip_norm=1.0)[0] for seed in range(2)]
    if alone is not None:
        assert_close(walk(pairs(0), batches(0), alone, clip_norm=1.0)[0], apart[0])
    if mapped is not None:
        together = walk(pairs(0, 1), stacked(batches(0), batches(1)), mapped, clip_norm=1.0)
        for mine, theirs in zip(together, apart, strict=True):
            assert_close(mine, theirs)
    start = tensors(*pairs(0)[0])
    moved = {name for name, t in start.items() if not torch.equal(t, apart[0][name])}
    still = ["kl_weight", "log_prior", "scale"] + ["logits"] * (update == "closed")
    assert moved == {name for name in start if not name.endswith(tuple(still))}


def test_images_and_channels_last():
    rows = images()

    def pair(seed):
        torch.manual_seed(seed)
        model = models.LearntDepth.conv(rows, width=4, inner=2, max_depth=1).double()
        model.to(memory_format=torch.channels_last)
        return model, guides.CategoricalDepth(model, update="gradient").double()

    found = [batches(seed, 3, rows=rows) for seed in range(2)]
    apart = [walk([pair(seed)], found[seed])[0] for seed in range(2)]
    new = [pair(seed) for seed in range(2)]
    got = walk(new, stacked(*found))
    for mine, alone in zip(got, apart, strict=True):
        assert_close(mine, alone, rtol=1e-7, atol=1e-8)
    convs = [p for p in new[0][0].parameters() if p.dim() == 4 and p.shape[-1] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in convs)


def test_a_last_smaller_batch_runs_as_it_can(uncompiled):
    """Traced for one size alone, eager for the other, in turn: state is handed over."""
    sequence = [b for two in zip(batches(size=18), batches(1, size=7), strict=True) for b in two]
    (expected,) = walk([build("norm")], sequence)
    (found,) = walk([build("norm")], sequence, "graph", steps={18: 10})
    assert_close(found, expected)
    (found,) = walk([build("norm")], sequence, True, steps={18: 10})
    assert_close(found, expected)
    assert len(uncompiled) == 1
    both = step_of(build_fixed(linear), build_fixed(linear, 1), compile=True, steps={18: 10})
    for x, y in sequence[:2]:
        both(torch.stack([x, x]), torch.stack([y, y]))
    assert len(both._graphs) == 2  # several run as a graph, compiled or not
    assert len(uncompiled) == 2


def test_mixed_precision_and_frozen_parameters():
    def forward(net, a):
        """One layer in double precision within a network in single."""
        return a + net.g(net.f(a.double()).float().tanh())

    def make(seed):
        model, guide = build(lambda: [network(forward, f=linear(), g=linear())], seed)
        model.float()
        guide.float()
        model.stack.blocks[0].f.double()
        model.stack.stem.weight.requires_grad_(False)
        return model, guide

    sequence = [(x.float(), y) for x, y in batches(count=2)]
    (expected,) = walk([make(0)], sequence, clip_norm=0.5)
    start = tensors(*make(0))
    assert torch.equal(expected["model.stack.stem.weight"], start["model.stack.stem.weight"])
    assert not torch.equal(expected["model.stack.stem.bias"], start["model.stack.stem.bias"])
    (graph,) = walk([make(0)], sequence, "graph", clip_norm=0.5)
    assert_close(graph, expected, rtol=1e-5, atol=1e-6)
    assert graph["model.stack.blocks.0.f.weight"].dtype == torch.float64


# -- what is an input of the graph, and what is part of it ------------------------------------


@pytest.mark.parametrize(("warmup", "final"), [(0.5, 0.3), (0.0, 0.3)])
def test_the_weight_of_the_kl_is_an_input(warmup, final):
    pairs = [build(seed=seed) for seed in range(2)]
    for _, guide in pairs:
        nn.init.normal_(guide.logits)
    found = batches(count=1)[0]
    parts = [inference.elbo.bound(*one).terms(*found) for one in pairs]
    step = step_of(*pairs, kl_warmup=warmup, kl_weight=final, lr=1e-30, guide_lr=1e-30)
    for progress in (0.0, 0.1, 0.25, 0.5, 0.9):
        losses = step(*(torch.stack([t, t]) for t in found), progress=progress)
        weight = final * (min(1.0, progress / warmup) if warmup else 1.0)
        expected = torch.stack([weight * p.kl - p.log_likelihood for p in parts]) / 54
        torch.testing.assert_close(losses, expected.detach(), rtol=1e-6, atol=0)
    assert len(step._graphs) == 1


def test_modes_and_rates_are_part_of_a_graph():
    """Changed, the step is traced anew; back again, the old graph is found."""
    blocks = lambda: [Residual(linear(), nn.Dropout(0.0), norm())]  # noqa: E731
    pair_, twin = build(blocks), build(blocks)
    dropout, bn = (pair_[0].stack.blocks[0].f[i] for i in (1, 2))
    theirs = [twin[0].stack.blocks[0].f[i] for i in (1, 2)]
    traced, eager = step_of(pair_, compile="graph"), step_of(twin)
    counts = []

    def both(x, y):
        torch.testing.assert_close(traced(x, y), eager(x, y), rtol=1e-10, atol=1e-12)
        counts.append(len(traced._graphs))

    sequence = iter(batches(count=8))
    both(*next(sequence))
    for change in (
        lambda one, two: two.eval(),
        lambda one, two: two.train(),
        lambda one, two: (setattr(one, "p", 1.0), setattr(two, "momentum", 0.5)),
        lambda one, two: (setattr(one, "p", 0.0), setattr(two, "momentum", 0.1)),
    ):
        change(dropout, bn)
        change(*theirs)
        both(*next(sequence))
    assert counts == [1, 2, 2, 3, 3]
    traced.release()
    eager.release()
    assert_close(tensors(*pair_), tensors(*twin))


# -- random numbers ---------------------------------------------------------------------------


def noisy():
    return Residual(linear(), nn.Dropout(0.5), nn.Tanh())


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("compile", [False, True])
def test_preparing_draws_nothing_and_steps_draw_anew(compile, count, uncompiled):
    x, y = batches(count=1)[0]
    wide = (x, y) if count == 1 else (torch.stack([x, x]), torch.stack([y, y]))
    step = step_of(*[build_fixed(noisy) for _ in range(count)], compile=compile)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    step.prepare(x, y)
    step._graph(*wide)
    assert torch.equal(torch.get_rng_state(), before)
    losses = [step.evaluate(*wide).reshape(-1).tolist() for _ in range(4)]
    assert len(set(itertools.chain(*losses))) == 4 * count  # the pairs are equal: noise alone
    torch.set_rng_state(before)
    assert losses == [step.evaluate(*wide).reshape(-1).tolist() for _ in range(4)]


def test_a_compiled_step_agrees_with_an_eager_one_in_expectation():
    """The losses of two replicates, and their gradients; the same ones from the same seed."""
    pairs = [build_fixed(noisy) for _ in range(2)]  # equal: only noise can tell them apart
    x, y = batches(count=1)[0]
    wide = torch.stack([x, x]), torch.stack([y, y])
    step, eager = step_of(*pairs, compile=True), step_of(build_fixed(noisy))
    found, again, expected = [], [], []
    step.prepare(x, y)
    for into, count in ((found, 800), (again, 5)):
        torch.manual_seed(1)
        for _ in range(count):
            into.append((step.evaluate(*wide).clone(), step.flats["weights"].grad.clone()))
    assert step.describe()["kind"] == "compiled", step.fallback
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(found, again, strict=False))
    eager.prepare(x, y)
    for _ in range(400):
        expected.append((eager.evaluate(x, y), eager.flats["weights"].grad[0].clone()))
    losses, gradients = (torch.stack(values) for values in zip(*found, strict=True))
    exact, slopes = (torch.stack(values) for values in zip(*expected, strict=True))
    assert len(set(losses.reshape(-1).tolist())) > 1500  # fresh in every step and replicate
    for k in range(2):
        assert_same_means(losses[:, k : k + 1], exact[:, None])
        assert_same_means(gradients[:, k], slopes)


# -- giving back ------------------------------------------------------------------------------


def test_released_pairs_are_ordinary():
    pairs = [build("norm", seed) for seed in range(2)]
    for model, _ in pairs:
        model.stack.stem.bias.requires_grad_(False)
    objects = [list(model.parameters()) for model, _ in pairs]
    held = SGD(pairs[0][0].parameters(), lr=0.1)
    step = step_of(*pairs)
    for x, y in stacked(*(batches(seed, 2) for seed in range(2))):
        step(x, y)
    during = [tensors(*one) for one in pairs]
    step.release()
    for (model, guide), kept, before in zip(pairs, during, objects, strict=True):
        assert_close(tensors(model, guide), kept, rtol=0, atol=0)
        assert all(p is q for p, q in zip(model.parameters(), before, strict=True))
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            assert t.untyped_storage().nbytes() == t.numel() * t.element_size(), name
            assert t.grad is None
            assert t.requires_grad == (isinstance(t, nn.Parameter) and name != "stack.stem.bias")
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin.stack.stem.weight.zero_()
        assert bool(model.stack.stem.weight.any())
    model, guide = pairs[0]
    inference.elbo.bound(model, guide)(*batches(count=1)[0]).backward()
    before = model.stack.head.weight.detach().clone()
    held.step()
    assert not torch.equal(model.stack.head.weight, before)


# -- when it cannot be ------------------------------------------------------------------------


def test_a_compiler_that_fails_leaves_the_graph(monkeypatch):
    def broken(graph, layouts):
        raise RuntimeError("no C++ compiler\nand much more")

    monkeypatch.setattr(inductor, "compiled", broken)

    def make(seed):
        return build_fixed(lambda: Residual(linear(), norm()), seed)

    step = step_of(*(make(seed) for seed in range(2)), compile=True)
    each = [batches(seed, 3) for seed in range(2)]
    with pytest.warns(
        CompileFallback, match=r"the compiler failed: RuntimeError: no C\+\+ com"
    ) as w:
        losses = torch.stack([step(x, y) for x, y in stacked(*each)])
    assert len(w) == 1
    assert step.describe()["kind"] == "graph"
    assert len(step._graphs) == 1  # and goes on as one
    step.release()
    for k in range(2):
        (expected,) = walk([make(k)], each[k])
        torch.testing.assert_close(losses[:, k], expected["losses"], rtol=1e-9, atol=1e-10)


# -- how the steps of a training run ----------------------------------------------------------


def engine_of(pair, rows, **settings):
    settings = Settings.of({"epochs": None, "batch_size": rows.N, **settings})
    return Trainer([Replicate(*pair, rows, 0)], settings)._engine()


def dense(rows):
    net = nn.Sequential(nn.Flatten(), nn.Linear(rows.x_train[0].numel(), rows.outputs))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model)


@pytest.mark.parametrize(("steps", "asked", "found"), [
    (299, None, False), (300, None, None), (5000, "graph", "graph"), (5000, False, False),
    (10, True, True),
])  # fmt: skip
def test_steps_are_traced_where_that_pays(steps, asked, found):
    rows = blobs()
    ahead = {rows.N: steps} if found is not False else {}
    assert engine_of(dense(rows), rows, steps=steps, compile=asked) == (found, ahead)


def test_convolutions_that_are_not_random_run_as_they_are_on_a_cpu():
    rows = images()
    assert engine_of(pair(rows, kind="conv"), rows, steps=5000) == (False, {})
    assert engine_of(pair(rows, kind="conv"), rows, steps=5000, compile=True)[0] is True


@pytest.mark.parametrize("more", [-1, 0])
def test_a_graph_is_compiled_from_the_steps_on_from_which_it_pays(more, uncompiled):
    x, y = batches(count=1)[0]
    first = step_of(build_fixed(linear), compile=None, steps={len(x): 1})
    assert first.describe()["kind"] == "eager"
    loss = float(first(x, y))
    assert not uncompiled
    assert first.describe()["kind"] == "graph"
    assert first.describe()["pays_from"] == first.pays_from > 1000
    again = step_of(build_fixed(linear), compile=None, steps={len(x): first.pays_from + more})
    again(x[:5], y[:5])  # of a size that is not traced
    assert again.describe()["kind"] == "eager"
    assert float(again(x, y)) == pytest.approx(loss, rel=0.3)
    assert bool(uncompiled) is (more == 0)
    assert again.describe()["kind"] == ("compiled" if uncompiled else "graph")
