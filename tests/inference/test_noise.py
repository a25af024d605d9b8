"""Random numbers of a graph: as its inputs, from a counter, and written so that they are mapped."""

import pytest
import torch
from pyroccam.inference.compilation import Untraceable, compiled, differentiable, lift_noise
from pyroccam.inference.compilation.noise import COUNTED, FEWEST, random_word, threefry
from scipy import stats
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

F64, aten = torch.float64, torch.ops.aten

DRAWN = {  # functions of a vector, with one random operation each; mean and variance at one
    "randn": (lambda x: x * torch.randn(len(x), dtype=x.dtype), 0.0, 1.0),
    "randn_like": (lambda x: x * torch.randn_like(x), 0.0, 1.0),
    "rand": (lambda x: x * torch.rand(x.shape, dtype=x.dtype), 0.5, 1 / 12),
    "rand_like": (lambda x: x * torch.rand_like(x), 0.5, 1 / 12),
    "normal_": (lambda x: x * x.new_empty(x.shape).normal_(2.0, 0.3), 2.0, 0.09),
    "through a view": (lambda x: x * torch.empty_like(x).view(-1, 2).normal_().view(-1), 0.0, 1.0),
    "uniform_": (lambda x: x * torch.zeros_like(x).uniform_(-1.0, 3.0), 1.0, 16 / 12),
    "exponential_": (lambda x: x * torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "bernoulli_": (lambda x: x * torch.empty_like(x).bernoulli_(0.2), 0.2, 0.16),
    "dropout": (lambda x: nn.functional.dropout(x, 0.2), 1.0, 0.25),
}


def lifted(f, *inputs):
    """The traced function, it with its noise lifted, and what draws that."""
    with torch.random.fork_rng(devices=[]):
        graph = differentiable(make_fx(lambda *a: [f(*a)], pre_dispatch=True)(*inputs), True)
    before, state = graph.code, torch.get_rng_state()
    found, draw = lift_noise(graph, *inputs)
    assert graph.code == before
    assert torch.equal(torch.get_rng_state(), state)
    return graph, found, draw


@pytest.mark.parametrize("name", DRAWN)
def test_one_graph_with_its_noise_given(name):
    """Draw for draw it is the graph as it was; noise has its law in each of three replicates, and
    is independent: normal statistics of 40,000 draws, of which one in a million is refused."""
    f, mean, variance = DRAWN[name]
    x, count = torch.ones(40_000, dtype=F64), 40_000
    original, graph, draw = lifted(f, x)
    torch.manual_seed(0)
    noise = draw()
    (found,) = graph(x, *noise)
    torch.manual_seed(0)
    assert torch.equal(found, original(x)[0])
    assert torch.equal(graph(2 * x, *noise)[0], 2 * found)
    mapped = torch.vmap(lambda _: original(x)[0], randomness="different")(torch.zeros(3))
    centred = mapped - mean
    threshold = float(stats.norm.isf(1e-6 / 18))
    fourth = float(centred.pow(4).mean())
    for one in centred:
        assert abs(float(one.mean())) < threshold * (variance / count) ** 0.5
        spread = ((fourth - variance**2) / count) ** 0.5
        assert abs(float(one.square().mean()) - variance) < threshold * spread + 1e-12
    correlation = (centred @ centred.T) / count / variance
    assert float((correlation - correlation.diag().diag()).abs().max()) < threshold / count**0.5


def test_a_gamma_variable_is_made_of_uniform_numbers():
    """Its law is that of its shape, whatever it was where the noise was drawn."""
    shape = torch.tensor([0.3, 1.0, 2.5, 40.0], dtype=F64)
    _, graph, draw = lifted(lambda x: 2.0 * torch._standard_gamma(x), shape.flip(0))
    noise = [draw() for _ in range(400)]
    assert [part.shape for part in noise[0]] == [(5, 4)]
    values = torch.stack([graph(shape, *one)[0] for one in noise]) / 2.0
    for k, a in enumerate(shape.tolist()):
        assert stats.kstest(values[:, k].numpy(), "gamma", (a,)).pvalue > 1e-5


def in_a_part(x):
    out = torch.zeros_like(x)
    out[:2].normal_()
    return x + out


REFUSED = {
    "_sample_dirichlet": lambda x: x * torch._sample_dirichlet(x),
    "normal.Tensor_Tensor": lambda x: torch.normal(x, x),
    "randperm": lambda x: x[torch.randperm(len(x))],
    "normal_": in_a_part,
    "randn.generator": lambda x: x + torch.randn(x.shape, generator=torch.default_generator),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_lifted_is_refused_with_the_reason(name):
    with pytest.raises(Untraceable, match=rf"it draws by aten\.{name}"):
        lifted(REFUSED[name], torch.rand(5) + 1.0)


def test_an_exponential_is_never_zero(monkeypatch):
    x = torch.ones(3)
    graph = differentiable(make_fx(lambda x: x.new_empty(3).exponential_().log())(x), True)
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    assert float(graph(x).min()) > -100


COUNT = 400_001  # odd: the last pair is used by half


def word(bits):
    return torch.tensor([bits], dtype=torch.int64).to(torch.int32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_words_are_those_of_random123(counter, key, expected):
    """The known answers that come with its authors' library."""
    found = threefry(torch.cat([word(k) for k in key]), *map(word, counter))
    assert tuple(int(w) & 0xFFFFFFFF for w in found) == expected


def test_compiled_words_are_those_of_the_operation():
    def words(key):
        return random_word(key, 1003, 0), random_word(key, 1003, 1)

    given = torch.tensor((-(2**31), 2**31 - 1), dtype=torch.int32)
    layouts = [(given.shape, given.stride(), given.dtype, given.device)]
    call, _ = compiled(make_fx(words)(given), layouts)
    found, expected = call([given]), words(given)
    assert not torch.equal(*expected)
    assert all(map(torch.equal, found, expected))


def drawn(target, seed=0):
    torch.manual_seed(seed)
    return COUNTED[target]([COUNT]).double().numpy()


@pytest.mark.parametrize(
    ("target", "law"), [(aten.randn.default, stats.norm), (aten.rand.default, stats.uniform)]
)
def test_the_law(target, law):
    """Kolmogorov and Smirnov's distance of the whole, of both halves and of the tails."""
    numbers = drawn(target)
    assert numbers.shape == (COUNT,)
    for part in (numbers, numbers[: COUNT // 2], numbers[COUNT // 2 :]):
        assert stats.kstest(part, law.cdf).pvalue > 1e-4
    tail = numbers[numbers > law.ppf(0.999)]
    assert abs(len(tail) - 400) < 80
    assert stats.kstest(law.sf(tail) / 0.001, "uniform").pvalue > 1e-4


def test_who_gets_them():
    """Many numbers of single precision: others come from torch's generator itself."""
    many = torch.empty(2 * FEWEST)

    def f(many, few, double, turned):
        return [torch.randn_like(t) for t in (many, few, double, turned)] + [torch.rand(FEWEST)]

    with torch.random.fork_rng(devices=[]):
        inputs = many, many[:10], many.double(), many.view(2, -1).t()
        graph = make_fx(f, decomposition_table=COUNTED)(*inputs)
    operations = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert operations.count(aten.randn_like.default) == 3
    assert aten.rand.default not in operations
    torch.manual_seed(3)
    found = graph(*inputs)
    assert found[0].shape == many.shape
    assert found[0].dtype == found[4].dtype == torch.float32
    torch.manual_seed(3)
    assert all(map(torch.equal, found, graph(*inputs)))
    assert not torch.equal(found[0], graph(*inputs)[0])
