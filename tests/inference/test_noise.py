"""Random numbers as inputs of a graph: the same in, the same out, and their law."""

import pytest
import torch
from pyroccam.inference.compilation.fusion import differentiable
from pyroccam.inference.compilation.noise import lift_noise
from pyroccam.inference.compilation.trace import Untraceable
from random_weights import assert_same_means
from scipy.stats import kstest
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

F64 = torch.float64

DRAWN = {  # functions of a vector, with one random operation each
    "randn": lambda x: x + torch.randn(len(x), dtype=x.dtype),
    "randn_like": lambda x: x * torch.randn_like(x),
    "rand": lambda x: x - torch.rand(x.shape, dtype=x.dtype).log(),
    "rand_like": lambda x: x * torch.rand_like(x),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "normal_ of another law": lambda x: x * x.new_empty(x.shape).normal_(2.0, 0.3),
    "normal_ through a view": lambda x: x + torch.empty_like(x).view(-1, 2).normal_().view(-1),
    "uniform_": lambda x: x + torch.zeros_like(x).uniform_(-1.0, 3.0),
    "exponential_": lambda x: x * torch.empty_like(x).exponential_(2.0).log(),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(0.2),
    "dropout": lambda x: nn.functional.dropout(x, 0.3),
}


def lifted(f, *inputs):
    """The traced function, it with its noise lifted, and what draws that."""
    with torch.random.fork_rng(devices=[]):
        graph = differentiable(make_fx(lambda *a: [f(*a)], pre_dispatch=True)(*inputs), True)
    before = graph.code
    found, draw = lift_noise(graph, *inputs)
    assert graph.code == before
    return graph, found, draw


@pytest.mark.parametrize("name", DRAWN)
def test_one_graph_with_its_noise_given(name):
    x = torch.linspace(0.5, 1.5, 20_000, dtype=F64)
    original, graph, draw = lifted(DRAWN[name], x)
    torch.manual_seed(0)
    (noise,) = draw()
    (found,) = graph(x, noise)
    assert torch.equal(found, graph(x, noise)[0])
    # Draw for draw it is the graph as it was, not only in its law.
    torch.manual_seed(0)
    assert torch.equal(found, original(x)[0])
    (other,) = graph(x, *draw())
    assert not torch.equal(found, other)
    (afresh,) = original(x)
    first, other, afresh = (value / x for value in (found, other, afresh))
    assert_same_means(*(torch.stack([v, v**2, v * first], 1) for v in (other, afresh)))
    # It is a function of x too.
    assert not torch.equal(graph(2 * x, noise)[0], found)


def test_each_draw_has_its_own_noise():
    def f(x, w):
        a = x @ w + torch.randn_like(x[:, 0])
        b = torch.empty(3, dtype=x.dtype).uniform_(1.0, 2.0)
        return (a[:, None] * b).sum() + torch.randn_like(x[:, 0]) @ a

    inputs = torch.randn(4, 2, dtype=F64), torch.randn(2, dtype=F64)
    original, graph, draw = lifted(f, *inputs)
    torch.manual_seed(1)
    noise = draw()
    assert [tuple(t.shape) for t in noise] == [(4,), (3,), (4,)]
    torch.manual_seed(1)
    assert torch.equal(graph(*inputs, *noise)[0], original(*inputs)[0])
    x, w = inputs
    a = x @ w + noise[0]
    expected = float((a[:, None] * noise[1]).sum() + noise[2] @ a)
    assert float(graph(*inputs, *noise)[0]) == pytest.approx(expected, rel=1e-12)


def test_differentiated_and_mapped():
    """Where random operations could not be drawn anew, or would be drawn anew each time."""
    x = torch.randn(5, dtype=F64)
    _, graph, draw = lifted(lambda x: (x * torch.randn_like(x)).sum() ** 2, x)
    noise = torch.stack([draw()[0] for _ in range(3)])
    slopes = torch.vmap(lambda n: torch.func.grad(lambda x: graph(x, n)[0])(x))(noise)
    assert torch.allclose(slopes, 2 * (noise @ x)[:, None] * noise, rtol=1e-12, atol=1e-12)


def test_without_noise_it_is_the_graph():
    x = torch.randn(5)
    original, graph, draw = lifted(lambda x: nn.functional.dropout(x.sin(), 0.5, training=False), x)
    assert draw() == []
    assert torch.equal(graph(x)[0], original(x)[0])
    # What can draw does not always.
    a = torch.randn(1, 3, 4)
    attention = nn.functional.scaled_dot_product_attention
    _, graph, draw = lifted(lambda a: attention(a, a, a), a)
    assert draw() == []
    assert torch.equal(graph(a)[0], attention(a, a, a))


def test_a_gamma_variable_is_made_of_uniform_numbers():
    """Its law is that of its shape, whatever it was where the noise was drawn."""
    shape = torch.tensor([0.3, 1.0, 2.5, 40.0], dtype=torch.float64)
    _, graph, draw = lifted(lambda x: 2.0 * torch._standard_gamma(x), shape.flip(0))
    noise = [draw() for _ in range(1500)]
    assert [part.shape for part in noise[0]] == [(5, 4)]
    assert torch.equal(graph(shape, *noise[0])[0], graph(shape, *noise[0])[0])
    values = torch.stack([graph(shape, *one)[0] for one in noise]) / 2.0
    for k, a in enumerate(shape.tolist()):
        assert kstest(values[:, k].numpy(), "gamma", (a,)).pvalue > 1e-5


def test_the_generator_is_left_as_it_was():
    x = torch.randn(5)
    before = torch.get_rng_state()
    _, _, draw = lifted(DRAWN["randn_like"], x)
    assert torch.equal(torch.get_rng_state(), before)
    draw()
    assert not torch.equal(torch.get_rng_state(), before)


REFUSED = {
    "_sample_dirichlet": lambda x: x * torch._sample_dirichlet(x),
    "normal.Tensor_Tensor": lambda x: torch.normal(x, x),
    "bernoulli.default": lambda x: x * torch.bernoulli(x / 10),
    "randperm": lambda x: x[torch.randperm(len(x))],
    "alpha_dropout": lambda x: nn.functional.alpha_dropout(x, 0.5, training=True),
    "normal_": lambda x: _in_a_part(x),
    "randn.generator": lambda x: x + torch.randn(x.shape, generator=torch.default_generator),
}


def _in_a_part(x):
    out = torch.zeros_like(x)
    out[:2].normal_()
    return x + out


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_lifted_is_refused_with_the_reason(name):
    x = torch.rand(5) + 1.0
    with pytest.raises(Untraceable) as error:
        lifted(REFUSED[name], x)
    message = str(error.value)
    assert message.startswith(f"it draws by aten.{name}")
    assert message.endswith("into a new tensor, where nothing but its shape matters")
