"""A GPU gives what a CPU gives: every kind of pair, captured steps, resumed runs."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from fitting import assert_same, blobs, images, pair, run, stopped
from guide_case import CASES, network
from pyroccam import data, guides, inference, models
from pyroccam.inference.elbo import bound
from pyroccam.inference.training import TrainingStep
from pyroccam.models import priors, seeded
from same_noise import SameNoise
from stepping import tensors
from torch import nn

# Other libraries warn of each other, in versions that are not ours to choose; torch of products in
# TensorFloat32, and of random weights of an LSTM, which no two steps have in one place.
pytestmark = [
    pytest.mark.filterwarnings(f"default:{which}")
    for which in (
        *(":DeprecationWarning", ":PendingDeprecationWarning", ":FutureWarning"),
        *("TensorFloat32", "RNN module weights are not part"),
    )
]
FIT = {"epochs": 2, "batch_size": 18, "optimizer": "sgd", "lr": 1e-3, "progress": False, "seed": 1}


class Steps(nn.Module):
    """Two features as a sequence of two."""

    def __init__(self, kind):
        super().__init__()
        self.kind, sizes = kind, (4, 4) if kind is nn.LSTM else (4, 2)
        self.over = kind(*sizes, batch_first=True)
        self.up, self.out = nn.Linear(1, 4), nn.Linear(4, 3)

    def forward(self, x):
        a = self.up(x[..., None])
        over = self.over(a) if self.kind is nn.LSTM else self.over(a, a, a)
        return self.out(over[0].mean(1))


def numbers():
    rows = blobs()
    x, new = torch.cat([rows.x_train, rows.x_val]), rows.x_test
    return data.Dataset.from_tensors(x, x[:, :1].sin(), new, new[:, :1].sin())


def conv(rows):
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64, rows.outputs)),
    )
    return models.BayesianNetwork(net, rows, prior=priors.GroupNormalJeffreys())


def stack(rows):
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)]
    own = models.DepthStack(nn.Linear(2, 4), blocks, nn.Linear(4, 3))
    return models.BayesianStack(own, rows, prior=priors.Normal())


def of_steps(kind):
    return lambda rows: models.BayesianNetwork(Steps(kind), rows, prior=priors.Normal())


@dataclass
class Kind:
    model: Callable
    guide: Callable = guides.MeanField
    rows: Callable = blobs

    def made(self):
        """Pair and rows; the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            rows = self.rows()
            model = self.model(rows)
            return model, self.guide(model), rows


KINDS = {name: Kind(case.model, case.guide) for name, case in CASES.items()} | {
    prior.__name__: Kind(lambda rows, prior=prior: network(rows, 0, prior()))
    for prior in (priors.GroupNormalJeffreys, priors.GroupHorseshoe, priors.LogUniform)
}
KINDS |= {
    "depth of blocks with dropout": Kind(lambda rows: pair(rows)[0], guides.CategoricalDepth),
    "depth of convolutions": Kind(
        lambda rows: pair(rows, kind="conv")[0], guides.CategoricalDepth, images
    ),
    "convolutions": Kind(conv, rows=images),
    "a stack": Kind(stack),
    "LSTM": Kind(of_steps(nn.LSTM)),
    "attention": Kind(of_steps(nn.MultiheadAttention)),
    "a regression": Kind(
        lambda rows: models.BayesianNetwork(
            nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), rows, prior=priors.Normal()
        ),
        rows=numbers,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def moved(t, device, dtype):
    return t.to(device, dtype if t.is_floating_point() else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_and_their_gradients(kind, dtype, device):
    model, guide, rows = kind.made()
    found = []
    for where in (torch.device("cpu"), device):
        ours, q = copy.deepcopy((model, guide))
        count = rows.N if guide.traits.sums_out else 16
        x, y = (moved(t[:count], where, dtype) for t in rows.split("train"))
        b = bound(ours.to(where, dtype), q.to(where, dtype)).to(where, dtype)
        with SameNoise(), seeded(3, where):
            terms = b.terms(x, y)
            loss = terms.loss() / len(x)
        loss.backward()
        assert loss.device == x.device
        assert loss.dtype is dtype
        grads = {n: p.grad.cpu() for n, p in b.named_parameters() if p.grad is not None}
        found.append({"loss": loss.detach().cpu(), **grads})
    assert_near(*found, 2e-4 if dtype is torch.float32 else 1e-9)


def assert_near(one, other, error):
    """Two dictionaries of tensors equal within a share of the largest number of each."""
    assert one.keys() == other.keys()
    for name, t in one.items():
        allowed = error * max(1.0, float(t.double().abs().max()))
        torch.testing.assert_close(
            other[name], t, rtol=0.0, atol=allowed, msg=lambda m, n=name: f"{n}: {m}"
        )


def small_of(fit):
    """The network that is left, whatever was learnt; ``None`` where nothing was."""
    if isinstance(fit.model, models.PlainNetwork) or isinstance(fit.guide, guides.ZeroMean):
        return None
    return inference.shrink(fit).net


def test_fits_and_what_is_left_of_them(kind, device):
    fits = []
    for where in ("cpu", str(device)):
        model, guide, rows = kind.made()
        batch = {"batch_size": rows.N} if guide.traits.sums_out else {}
        with SameNoise():
            fit = inference.fit(model, guide, rows, device=where, compile=False, **FIT | batch)
        fits.append(fit)
        for t in tensors(model, guide).values():
            assert t.device.type == torch.device(where).type
            assert torch.isfinite(t).all()
    one, other = ({n: t.cpu() for n, t in tensors(f.model, f.guide).items()} for f in fits)
    assert_near(one, other, 1e-3)
    if isinstance(guide, guides.Conditional):
        fits = [fit.at(2.0) for fit in fits]
    with SameNoise():
        outputs = []
        for fit in fits:
            with seeded(0, device):
                outputs.append(fit.predict(rows.x_test))
    torch.testing.assert_close(outputs[1].cpu(), outputs[0], rtol=1e-3, atol=1e-3)
    small = small_of(fits[1])
    if small is not None:
        x = rows.x_test
        there = small.to(device)(x.to(device)).detach().cpu()
        torch.testing.assert_close(there, small.cpu()(x).detach(), rtol=1e-4, atol=1e-4)


def stepped(kind, device, compile, recorded=True, count=10, dtype=torch.float32, **settings):
    """Losses and tensors after steps on batches of one size, and how they ran."""
    model, guide, rows = kind.made()
    model, guide = model.to(device, dtype), guide.to(device, dtype)
    x, y = (moved(t, device, dtype) for t in rows.split("train"))
    chosen = inference.Settings(optimizer="sgd", lr=1e-3, clip_norm=1.0, **settings)
    step = TrainingStep([(model.train(), guide.train())], chosen, compile=compile)
    if not recorded:
        step.recorder = None
    with seeded(5, device):
        losses = [step(x[i : i + 16], y[i : i + 16], progress=0.5) for i in range(count)]
    how = step.describe()
    step.release()
    return {"losses": torch.stack(losses), **tensors(model, guide)}, how


TRACED = [
    *("CategoricalDepth", "depth of convolutions", "convolutions", "MeanField of structure"),
    *("MeanField", "GroupNormalJeffreys", "VariationalDropout", "ZeroMean"),
    *("Delta", "a stack", "LSTM", "attention", "Conditional", "a regression"),
]


@pytest.mark.parametrize("name", TRACED)
def test_captured_steps_are_those_of_the_graph(name, device):
    if name == "LSTM" and device.type == "cuda":
        pytest.skip("torch records no graph of cuDNN's")
    found, how = stepped(KINDS[name], device, "graph")
    expected, plain = stepped(KINDS[name], device, "graph", recorded=False)
    assert how["fallback"] is None
    assert how["cuda_graphs"] == (device.type == "cuda")
    assert not plain["cuda_graphs"]
    assert_near(expected, found, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["CategoricalDepth", "Delta", "depth of convolutions"])
def test_captured_steps_without_noise_are_eager_ones(name, dtype, device):
    found, _ = stepped(KINDS[name], device, "graph", dtype=dtype)
    for where in (device, torch.device("cpu")):
        expected, _ = stepped(KINDS[name], where, False, dtype=dtype)
        expected = {n: t.to(device) for n, t in expected.items()}
        # Rates in a recording are of single precision.
        assert_near(expected, found, 1e-4 if dtype is torch.float32 else 1e-7)


@pytest.mark.parametrize("name", ["MeanField", "depth of blocks with dropout"])
def test_compiled_steps_draw_their_noise(name, device):
    found, how = stepped(KINDS[name], device, True)
    assert (how["kind"], how["fallback"]) == ("compiled", None)
    assert found["losses"].isfinite().all()


def test_compiled_steps_are_eager_ones(device):
    found, how = stepped(KINDS["CategoricalDepth"], device, True)
    assert how["kind"] == "compiled"
    assert how["fallback"] is None
    assert_near(stepped(KINDS["CategoricalDepth"], device, False)[0], found, 1e-4)


def test_products_in_bfloat16(device):
    """Of a network whose products are large enough."""
    wide = Kind(
        lambda rows: models.BayesianNetwork(
            nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                          nn.Linear(512, 3)),
            rows, prior=priors.Normal(),
        )
    )  # fmt: skip
    low, full = (
        stepped(wide, device, "graph", precision=precision)[0] for precision in ("bf16", None)
    )
    assert any(not torch.equal(low[name], t) for name, t in full.items())
    torch.testing.assert_close(low["losses"], full["losses"], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("compile", [False, "graph"])
def test_a_resumed_run_goes_on_bit_for_bit(compile, device, tmp_path, monkeypatch):
    monkeypatch.setattr("pyroccam.inference.training.trainer.TRACE_FROM", 1)

    def begin(**more):
        return run(device=str(device), compile=compile, **more)

    whole = begin()
    stopped(monkeypatch, lambda: begin(out=tmp_path), step=6)
    assert_same(whole, begin(out=tmp_path, resume=True))


def test_replicates_are_captured_together(device):
    def make(seed):
        rows = blobs()
        torch.manual_seed(seed)
        model = network(rows, seed)
        return model, guides.MeanField(model), rows

    chosen = {name: value for name, value in FIT.items() if name != "seed"}
    fits = inference.fit_repeats(make, (0, 1), device=str(device), together=True, **chosen).fits
    for fit in fits:
        assert fit.engine["cuda_graphs"] == (device.type == "cuda")
        assert all(torch.isfinite(t).all() for t in tensors(fit.model, fit.guide).values())
