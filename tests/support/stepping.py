"""Pairs in double precision, where rounding cannot hide a mistake, and batches to step them on."""

import torch
from fitting import blobs
from pyroccam import guides, inference, models
from pyroccam.inference.training import TrainingStep
from torch import nn
from torch.nn.utils import parametrizations

WIDTH = 4


class Residual(nn.Module):
    """A block around layers of equal width, in and out."""

    def __init__(self, *layers):
        super().__init__()
        self.f = nn.Sequential(*layers)

    def forward(self, a):
        return a + self.f(a)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.two = linear(), linear()
        self.two.weight = self.one.weight

    def forward(self, a):
        return a + self.two(self.one(a).tanh())


class Running(nn.Module):
    """Buffers of several kinds changed in place, some through views, and one that is only read."""

    def __init__(self):
        super().__init__()
        self.f = linear()
        self.register_buffer("mean", torch.zeros(1, WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("halves", torch.zeros(2, WIDTH))
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))

    def forward(self, a):
        before, scale = self.mean.clone(), self.scale.clone()
        scale.mul_(2)  # changes the copy alone
        constant = torch.tensor(0.5, dtype=a.dtype)
        constant.add_(1.0)
        with torch.no_grad():
            self.mean.view(-1).mul_(0.9).add_(a.mean(0), alpha=0.1)
            self.calls += 1
            first, second = self.halves.unbind(0)
            first.copy_(0.5 * second.add_(a.mean(0)))
        shift = 0.1 * before + self.halves.sum(0) / (self.calls + 1)
        return a + self.f(a - shift) * scale * constant


class Stop(nn.Module):
    """Gradients cut in both of torch's ways."""

    def __init__(self):
        super().__init__()
        self.f, self.g = linear(), linear()

    def forward(self, a):
        with torch.no_grad():
            b = self.f(a)
        return a + self.f(a) * b + self.g(a).detach() * self.g(a).tanh()


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, a):
        b = a.unflatten(1, (2, 2))
        return a + self.f(b, b, b, need_weights=False)[0].flatten(1)


class Recur(nn.Module):
    """The features are a sequence."""

    def __init__(self):
        super().__init__()
        self.f = nn.GRUCell(2, WIDTH)

    def forward(self, a):
        return a + self.f(a[:, 2:], self.f(a[:, :2]))


def linear():
    return nn.Linear(WIDTH, WIDTH)


def norm(**options):
    return nn.BatchNorm1d(WIDTH, **options)


BLOCKS = {  # of networks of width 4, without noise
    "plain": lambda: [Residual(linear(), nn.Tanh())],
    "norm": lambda: [Residual(linear(), nn.Tanh(), norm())],
    "norms": lambda: [
        Residual(linear(), nn.Tanh(), norm(momentum=0.3, eps=1e-2)),
        Residual(linear(), norm(affine=False), nn.Tanh()),
        Residual(linear(), norm(track_running_stats=False)),
        Residual(nn.LayerNorm(WIDTH), linear(), nn.GELU()),
    ],
    "odd": lambda: [*[Tied()] * 2, Running(), Stop()],
    "modules": lambda: [
        Attend(),
        Recur(),
        Residual(parametrizations.weight_norm(linear())),
        Residual(parametrizations.spectral_norm(linear())),
    ],
}


def build(blocks="plain", seed=0, update="gradient", rows=None, **options):
    """A pair in double precision, with values of its own for each seed.

    ``blocks`` is a name in ``BLOCKS`` or a function that makes a list of them.
    """
    rows = blobs() if rows is None else rows
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = BLOCKS[blocks]() if isinstance(blocks, str) else blocks()
        model = models.LearntDepth(
            nn.Linear(2, WIDTH), made, nn.Linear(WIDTH, 3), data=rows, **options
        ).double()
        for p in model.parameters():
            nn.init.normal_(p, std=0.5)
    return model, guides.CategoricalDepth(model, update=update, hold=0.0).double()


def build_fixed(block, seed=0):
    """The same for a network of fixed depth, whose steps are fast."""
    model, _ = build(lambda: [block()], seed)
    model = model.at_depth(1)
    return model, guides.Deterministic(model)


def batches(seed=0, count=5, size=18, rows=None):
    """Batches ``(x, y)`` in double precision, in an order of their own for each seed."""
    x, y = (blobs() if rows is None else rows).split("train")
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        order = torch.randperm(len(x), generator=generator)[:size]
        found.append((x[order].double(), y[order]))
    return found


def stacked(*sequences):
    """Sequences of batches, one for each of K replicates, as one of ``(K, B, *)``."""
    return [
        tuple(torch.stack(parts) for parts in zip(*each, strict=True))
        for each in zip(*sequences, strict=True)
    ]


def step_of(*pairs, compile=False, steps=None, **settings):
    settings = {"optimizer": "sgd", "lr": 0.05, "schedule": "constant", **settings}
    chosen = inference.Settings(**settings)
    return TrainingStep(pairs, chosen, compile=compile, steps=steps)


def tensors(model, guide):
    """Copies of all parameters and buffers of a pair."""
    return {
        f"{part}.{name}": t.detach().clone()
        for part, module in (("model", model), ("guide", guide))
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    }


def assert_close(ours, theirs, rtol=1e-8, atol=1e-9):
    """Of two dictionaries of tensors."""
    assert ours.keys() == theirs.keys()
    for name, t in ours.items():
        torch.testing.assert_close(
            t, theirs[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def walk(pairs, sequence, compile=False, **settings):
    """Step through batches; losses, the last log-likelihoods and all tensors, for each pair.

    The step must run as it is asked to.
    """
    step = step_of(*pairs, compile=compile, **settings)
    losses = torch.stack([step(x, y) for x, y in sequence])
    assert step.fallback is None
    seen = {name: t.clone() for name, t in step.seen.items()}
    step.release()
    found = []
    for k, pair in enumerate(pairs):
        own = {"losses": losses if len(pairs) == 1 else losses[:, k]}
        own |= {f"seen.{name}": t[k] for name, t in seen.items()}
        found.append(own | tensors(*pair))
    return found
