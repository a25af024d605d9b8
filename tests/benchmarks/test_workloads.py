"""Contenders of a workload do the same mathematics, at sizes where nothing takes long."""

import copy
import sys

import pyro
import pytest
import torch
from uncompiled import leave_uncompiled

from benchmarks.harness import Plan, measure
from benchmarks.workloads.compression import ImageProblem, gnj
from benchmarks.workloads.depth import DepthProblem, HandWritten, depth_workload
from benchmarks.workloads.lenet import LeNetProblem, lenet
from benchmarks.workloads.table import WORKLOADS, find

pytestmark = pytest.mark.nightly

CPU = torch.device("cpu")
MLP = DepthProblem("mlp", {"width": 8, "max_depth": 3}, batch=16, N=200)
CONV = DepthProblem(
    "conv", {"width": 6, "inner": 4, "max_depth": 3, "pool": 4}, batch=8, N=200
)  # fmt: skip
LENET = LeNetProblem((12, 6, 4, 3), batch=16, N=200)
LIBRARIES = ("bayesian-torch", "NumPyro")


@pytest.fixture(autouse=True)
def _own_store():
    pyro.clear_param_store()
    with pyro.validation_enabled(False):
        yield
    pyro.clear_param_store()


def small(kind):
    if kind == "lenet":
        return lenet(kind, kind, LENET, CPU)
    return depth_workload(kind, kind, MLP if kind == "mlp" else CONV, CPU)


def losses(contender, steps):
    torch.manual_seed(0)
    pyro.clear_param_store()
    step = contender.build()
    return torch.stack([torch.as_tensor(step()) for _ in range(steps)]).double()


def eager(kind):
    return [c.name for c in small(kind).contenders if not c.compiled and c.name not in LIBRARIES]


CASES = [(kind, name) for kind in ("mlp", "conv", "lenet") for name in eager(kind)]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{k}-{n}" for k, n in CASES])
def test_contenders_start_with_the_same_loss_and_take_the_same_steps(kind, name):
    work = small(kind)
    contender = next(c for c in work.contenders if c.name == name)
    base = next(c for c in work.contenders if c.name == work.base)
    found, reference = losses(contender, 6), losses(base, 6)
    if not contender.same:
        assert name.startswith("torch deterministic")
        assert found[-1] < found[0]
        return
    work.expected().check(found[0])
    # the same draws too, where weights are drawn: all take them in the order of the layers
    assert torch.allclose(found, reference, rtol=1e-5)
    assert not torch.allclose(found[1:], found[:1], rtol=1e-5)


@pytest.mark.parametrize("problem", [MLP, CONV], ids=["mlp", "conv"])
def test_the_loss_of_learnt_depth_by_its_definition(problem):
    model = copy.deepcopy(problem.pair(CPU)[0]).double()
    x, y = problem.data(CPU)
    logits = torch.randn(4).double()
    q, log_prior = logits.softmax(0), model.log_prior.double()
    with torch.no_grad():
        ll = model.log_likelihood(x.double(), y).mean(1)
        by_hand = HandWritten(problem.pair(CPU)[0], problem.exits).double()
        by_hand.logits.copy_(logits)
        loss = by_hand(x.double(), y)
    assert float(loss) == pytest.approx(
        float((q * (-ll + (q.log() - log_prior) / problem.N)).sum()), rel=1e-6
    )


@pytest.mark.parametrize(("kind", "name", "module"), [
    ("mlp", "JAX by hand", "jax"), ("lenet", "NumPyro", "numpyro"),
])  # fmt: skip
def test_contenders_in_jax_take_the_same_steps(kind, name, module):
    pytest.importorskip(module)
    work = small(kind)
    found = losses(next(c for c in work.contenders if c.name == name), 6)
    if kind == "mlp":  # without noise
        base = next(c for c in work.contenders if c.name == work.base)
        assert torch.allclose(found, losses(base, 6), rtol=1e-5)
    work.expected().check(found[0])
    assert len(set(found.tolist())) == len(found)


@pytest.mark.parametrize("kind", ["mlp", "lenet"])
def test_all_but_the_graph(kind, monkeypatch):
    """The graph runs once, and what it found is found again."""
    graphs = leave_uncompiled(monkeypatch)
    name = "pyroccam compiled, all but the graph"
    contender = next(c for c in small(kind).contenders if c.name == name)
    step = contender.build()
    first = float(step())
    small(kind).expected().check(first)
    monkeypatch.setattr(type(graphs[0]), "__call__", None)  # nothing calls it from here on
    assert len({float(step()) for _ in range(3)}) == 1


def test_a_library_that_is_not_installed_is_reported_by_name(monkeypatch):
    for name in ("bayesian_torch", "jax"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    work = small("lenet")
    kept = [c for c in work.contenders if c.name in (*LIBRARIES, work.base)]
    work = type(work)(**{**vars(work), "contenders": kept})
    found = measure(work, Plan(rounds=1, steps=1, warmup=0, settle=0), CPU, {})
    assert [row.name for row in found.contenders] == [work.base, *LIBRARIES]
    for name in LIBRARIES:
        assert found[name].error.startswith("ModuleNotFoundError")
    assert found[work.base].ms is not None


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_table_of_workloads(name):
    work = find(name).make(name, find(name).title, CPU)
    names = [c.name for c in work.contenders]
    assert len(set(names)) == len(names)
    assert {work.base, "pyroccam eager", "pyroccam compiled"} <= set(names)
    assert not [n for n in names if "CUDA" in n]


COMPRESSION = {"lenet": LENET, "conv": ImageProblem(batch=4, N=200)}
COMPRESSED = [
    (kind, c.name)
    for kind, problem in COMPRESSION.items()
    for c in gnj("", "", problem, CPU).contenders
    if not c.compiled
]


@pytest.mark.parametrize(("kind", "name"), COMPRESSED, ids=[f"{k}-{n}" for k, n in COMPRESSED])
def test_contenders_of_compression_start_with_the_same_loss_and_train(kind, name):
    """Activations are random: the start within six deviations, the end below the start."""
    work = gnj("gnj", "gnj", COMPRESSION[kind], CPU)
    contender = next(c for c in work.contenders if c.name == name)
    found = losses(contender, 40 if kind == "lenet" else 10)
    if contender.same:
        work.expected().check(found[0])
    quarter = len(found) // 4
    assert found[-quarter:].mean() < found[:quarter].mean()
