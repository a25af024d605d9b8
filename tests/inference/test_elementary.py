"""Operations in other words are those of torch, and as exact."""

import numpy as np
import pytest
import torch
from pyroccam.inference.compilation import elementary, inductor
from pyroccam.inference.compilation.elementary import FUSED, LARGE
from pyroccam.inference.compilation.graphs import graph_of
from pyroccam.inference.compilation.passes import LEAST, lean
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

aten = torch.ops.aten

SPECIAL = [0.0, -1.0, -2.0, float("inf"), float("nan"), 1e30, -0.999999, 1e-38, -1e-12]


def numbers(dtype):
    """Of all sizes, those near -1 and 0 among them."""
    torch.manual_seed(0)
    sizes = (1e-20, 1e-9, 1e-5, 1e-3, 0.1, 1.0, 10.0, 1e6, 1e20)
    drawn = [torch.randn(20_000, dtype=dtype) * size for size in sizes]
    return torch.cat([*drawn, -torch.rand(20_000, dtype=dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log1p_to_two_units_in_the_last_place(dtype):
    """Against numpy's in extended precision."""
    x = numbers(dtype)
    x = x[(x > -1) & (x != 0)]
    exact = np.log1p(x.numpy().astype(np.longdouble))
    error = np.abs(elementary.log1p(x).numpy() - exact) / np.abs(exact)
    assert error.max() < 2 * torch.finfo(dtype).eps


def test_log1p_of_special_values():
    x = torch.tensor(SPECIAL, dtype=torch.float64)
    assert_close(elementary.log1p(x), torch.log1p(x), rtol=1e-15, atol=0, equal_nan=True)
    into = x.clone()
    assert LARGE[aten.log1p_.default](into) is into
    assert_close(into, torch.log1p(x), rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"beta": 2.0, "threshold": 7.0}])
def test_softplus_is_that_of_torch(options):
    x = 10 * numbers(torch.float64)[60_000:140_000]
    ours, theirs = elementary.softplus(x, **options), torch.nn.functional.softplus(x, **options)
    assert_close(ours, theirs, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_one_entry_of_each_row_is_picked_and_put(dim):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5)
    x[0, 0, 0] = float("inf")
    index = torch.randint(x.shape[dim], [1 if i == dim % 3 else n for i, n in enumerate(x.shape)])
    pick, put = FUSED[aten.gather.default], FUSED[aten.scatter_add.default]
    assert_close(pick(x, dim, index), x.gather(dim, index), rtol=0, atol=0)
    src = torch.randn(index.shape)
    assert_close(put(x, dim, index, src), x.scatter_add(dim, index, src), rtol=0, atol=0)
    assert put(x, dim, index, x) is NotImplemented
    assert pick(torch.ones(()), 0, torch.zeros((), dtype=torch.long)) is NotImplemented
    several = torch.cat([index, index], dim)
    assert pick(x, dim, several) is NotImplemented
    assert put(x, dim, several, torch.cat([src, src], dim)) is NotImplemented


def test_an_entry_that_is_not_there_is_not_taken_for_zero():
    pick = FUSED[aten.gather.default]
    found = pick(torch.ones(3, 2), 1, torch.tensor([[0], [2], [-1]]))
    assert found.isnan().flatten().tolist() == [False, True, True]


def test_what_is_not_contiguous_keeps_the_strides_of_torch():
    x, index = torch.ones(6, 3, 5).transpose(0, 1), torch.zeros(3, 6, 1, dtype=torch.long)
    assert FUSED[aten.gather.default](x, -1, index) is NotImplemented
    assert FUSED[aten.scatter_add.default](x, -1, index, torch.ones(3, 6, 1)) is NotImplemented


def test_a_bias_is_added_to_small_products_by_what_follows():
    def f(x, w, b):
        return torch.addmm(b, x, w.t()).relu().sum(1)

    torch.manual_seed(0)
    add = FUSED[aten.addmm.default]
    x, w, b = torch.randn(elementary.FEW // 32, 5), torch.randn(32, 5), torch.randn(32)
    assert_close(add(b, x, w.t()), torch.addmm(b, x, w.t()))
    assert add(b, torch.cat([x, x[:1]]), w.t()) is NotImplemented  # too large
    assert add(torch.randn(len(x), 32), x, w.t()) is NotImplemented  # no vector
    assert add(b, x, w.t(), beta=2) is NotImplemented
    assert add(*(t.bfloat16() for t in (b, x, w.t()))) is NotImplemented  # rounded twice
    layouts = [(t.shape, t.stride(), t.dtype, t.device) for t in (x, w, b)]
    call, _ = inductor.compiled(make_fx(lambda *t: (f(*t),))(x, w, b), layouts)
    with torch.profiler.profile() as seen:
        (found,) = call([x, w, b])
    assert_close(found, f(x, w, b))
    calls = {event.name for event in seen.events()}
    assert "aten::mm" in calls
    assert "aten::addmm" not in calls


@pytest.mark.parametrize("size", [LEAST - 1, LEAST])
def test_graphs_say_large_operations_otherwise(size):
    def f(x):
        return torch.nn.functional.softplus(x).log1p()

    x = torch.randn(size, dtype=torch.float64)
    graph = lean(graph_of(f, x), ())
    names = {getattr(n.target, "__module__", "") for n in graph.graph.nodes}
    assert (elementary.__name__ in names) is (size >= LEAST)
    assert_close(graph(x), f(x), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("rows", "columns", "turned"), [(40, 2, 2), (40, 15, 2), (40, 16, 0), (5, 7, 0)]
)
def test_products_of_few_columns_are_found_upright(rows, columns, turned):
    def f(x, w, b):
        return (torch.addmm(b, x, w.t()) * 2).sum(0), x @ w.t()

    torch.manual_seed(0)
    given = torch.randn(rows, 7), torch.randn(columns, 7), torch.randn(columns)
    graph = make_fx(f, tracing_mode="fake")(*given)
    elementary.upright(graph)
    assert_close(graph(*given), f(*given))
    products = graph.graph.find_nodes(op="call_function", target=aten.mm.default)
    assert [tuple(n.meta["val"].shape) for n in products].count((columns, rows)) == turned


def test_a_compiled_product_of_few_columns_has_the_layout_that_is_expected():
    """Views of it were recorded for rows that lie one after another."""

    def f(x, w, b, y):
        z = torch.addmm(b, x, w.t())
        flat = z.view(-1).exp()
        picked = z.log_softmax(-1).view(2, 4, 3).gather(-1, y)
        return z, flat.view(4, 6), picked, picked.sum() * z.view(24).t()

    torch.manual_seed(0)
    given = torch.randn(8, 7), torch.randn(3, 7), torch.randn(3), torch.randint(3, (2, 4, 1))
    layouts = [(t.shape, t.stride(), t.dtype, t.device) for t in given]
    call, strides = inductor.compiled(make_fx(f)(*given), layouts)
    found, wanted = call(list(given)), f(*given)
    assert_close(tuple(found), wanted)
    assert [t.stride() for t in found] == strides == [t.stride() for t in wanted]
