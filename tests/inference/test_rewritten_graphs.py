"""Operations in other words are those of torch, and as exact; a graph is rid of what it can be."""

import numpy as np
import pytest
import torch
from pyroccam.inference.compilation import differentiable, elementary, graph_of, inductor, lean
from pyroccam.inference.compilation.elementary import FUSED, LARGE
from pyroccam.inference.compilation.passes import LEAST
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.testing import assert_close

aten = torch.ops.aten


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log1p_to_two_units_in_the_last_place(dtype):
    """Against numpy's in extended precision, of all sizes, those near -1 and 0 among them."""
    torch.manual_seed(0)
    sizes = (1e-20, 1e-9, 1e-5, 1e-3, 0.1, 1.0, 10.0, 1e6, 1e20)
    drawn = [torch.randn(20_000, dtype=dtype) * size for size in sizes]
    x = torch.cat([*drawn, -torch.rand(20_000, dtype=dtype)])
    x = x[(x > -1) & (x != 0)]
    exact = np.log1p(x.numpy().astype(np.longdouble))
    error = np.abs(elementary.log1p(x).numpy() - exact) / np.abs(exact)
    assert error.max() < 2 * torch.finfo(dtype).eps


def test_log1p_of_special_values():
    special = [0.0, -1.0, -2.0, float("inf"), float("nan"), 1e30, -0.999999, 1e-38, -1e-12]
    x = torch.tensor(special, dtype=torch.float64)
    into = x.clone()
    assert LARGE[aten.log1p_.default](into) is into
    assert_close(into, torch.log1p(x), rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"beta": 2.0, "threshold": 7.0}])
def test_softplus_is_that_of_torch(options):
    x = torch.linspace(-50.0, 50.0, 10_001, dtype=torch.float64)
    ours, theirs = elementary.softplus(x, **options), functional.softplus(x, **options)
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
    several, turned = torch.cat([index, index], dim), x.transpose(0, 1).contiguous().transpose(0, 1)
    for one, at in ((x, several), (turned, index)):  # which keeps the strides of torch
        assert pick(one, dim, at) is NotImplemented
        assert put(one, dim, at, torch.ones(at.shape)) is NotImplemented


def test_an_entry_that_is_not_there_is_not_taken_for_zero():
    found = FUSED[aten.gather.default](torch.ones(3, 2), 1, torch.tensor([[0], [2], [-1]]))
    assert found.isnan().flatten().tolist() == [False, True, True]


def compiled(f, *given):
    layouts = [(t.shape, t.stride(), t.dtype, t.device) for t in given]
    return inductor.compiled(make_fx(f)(*given), layouts)


def test_a_bias_is_added_to_small_products_by_what_follows():
    def f(x, w, b):
        return (torch.addmm(b, x, w.t()).relu().sum(1),)

    torch.manual_seed(0)
    add = FUSED[aten.addmm.default]
    x, w, b = torch.randn(elementary.FEW // 32, 5), torch.randn(32, 5), torch.randn(32)
    assert_close(add(b, x, w.t()), torch.addmm(b, x, w.t()))
    assert add(b, torch.cat([x, x[:1]]), w.t()) is NotImplemented  # too large
    assert add(torch.randn(len(x), 32), x, w.t()) is NotImplemented  # no vector
    assert add(b, x, w.t(), beta=2) is NotImplemented
    assert add(*(t.bfloat16() for t in (b, x, w.t()))) is NotImplemented  # rounded twice
    call, _ = compiled(f, x, w, b)
    with torch.profiler.profile() as seen:
        found = call([x, w, b])
    assert_close(tuple(found), f(x, w, b))
    calls = {event.name for event in seen.events()}
    assert "aten::mm" in calls
    assert "aten::addmm" not in calls


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
    call, strides = compiled(f, *given)
    found, wanted = call(list(given)), f(*given)
    assert_close(tuple(found), wanted)
    assert [t.stride() for t in found] == strides == [t.stride() for t in wanted]


@pytest.mark.parametrize("shape", [(7, 3), (5, 3, 2, 4)], ids=len)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("training", "tracked"), [(True, True), (True, False), (False, True)])
def test_batch_normalisation_written_out(shape, affine, training, tracked):
    torch.manual_seed(0)
    x, upstream = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
    start = torch.rand(4, 3, dtype=torch.float64)

    def f(x, weight, bias, mean, var):
        parts = [weight, bias] if affine else [None, None]
        parts += [mean, var] if tracked else [None, None]
        return torch.batch_norm(x, *parts, training, 0.3, 1e-3, False)

    graph = make_fx(f, pre_dispatch=True)(x, *start.clone())
    found = []
    for one in (differentiable(graph, True), f):
        weight, bias, mean, var = start.clone()
        inputs = [t.detach().requires_grad_() for t in ([x, weight, bias] if affine else [x])]
        out = one(*inputs, *(() if affine else (weight, bias)), mean, var)
        found.append([out, mean, var, *torch.autograd.grad((out * upstream).sum(), inputs)])
    assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [LEAST - 1, LEAST])
def test_graphs_say_large_operations_otherwise(size):
    def f(x):
        return functional.softplus(x).log1p()

    x = torch.randn(size, dtype=torch.float64)
    graph = lean(graph_of(f, x), ())
    names = {getattr(target, "__module__", "") for target in targets(graph)}
    assert (elementary.__name__ in names) is (size >= LEAST)
    assert_close(graph(x), f(x), rtol=1e-13, atol=0)


def test_the_slope_of_a_square_has_no_powers_and_no_views_of_the_same_shape():
    def slope(x):
        square = torch.func.grad(lambda x: (x.expand(4, 3).view(4, 3) ** 2).sum())
        return square(x), x.view(12), x.expand(2, 4, 3)

    x = torch.randn(4, 3)
    graph = graph_of(slope, x)
    expected, before = graph(x), targets(graph)
    found = lean(graph, [])
    assert aten.pow.Tensor_Scalar in before
    assert not {aten.pow.Tensor_Scalar, torch.pow} & {*targets(found)}
    assert targets(found).count(torch.Tensor.view) == 1
    assert targets(found).count(torch.Tensor.expand) == 2  # the other is the slope of a sum
    assert all(map(torch.equal, found(x), expected))


@pytest.mark.parametrize("copy", [lambda x: x**1.0, lambda x: x.clone()])
def test_a_copy_that_is_written_to_stays_a_copy(copy):
    def f(x):
        own = copy(x)
        own.add_(1.0)
        return own * x

    x = torch.arange(3.0)
    assert torch.equal(lean(graph_of(f, x), [])(x), torch.tensor([0.0, 2.0, 6.0]))
    assert torch.equal(x, torch.arange(3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_numbers_are_tensors_where_that_changes_no_bit(dtype):
    def f(x):
        y = ((0.1 * x + 0.1) / 3 - 1e-16) * torch.tensor(2.0)
        return y.mul_(0.7).add_(0.1).add_(y, alpha=0.3)

    x = torch.arange(1, 100).to(dtype)
    expected, graph = f(x), lean(graph_of(f, x), [])
    found = graph(x)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    laid = any(name.startswith("number") for name in graph.state_dict())
    assert laid is (dtype is not torch.bfloat16)  # which the operation keeps all digits beside


def test_sums_with_a_number_keep_their_factor():
    def f(x):
        for operation in (aten.add, aten.sub, aten.add_, aten.sub_):
            x = operation.Scalar(x.clone(), 3.0, 2.0)
        return x + 1.0

    x = torch.arange(3.0)
    assert torch.equal(lean(graph_of(f, x), [])(x), x + 1.0)


def test_a_power_of_one_of_what_is_written_to_later_stays():
    def f(x):
        own = x * 2
        before = own**1
        own.add_(1.0)
        return before, own

    def of_state(state, x):
        new = state.clone()
        before = new**1
        new.add_(x)
        return before * x

    x = torch.arange(3.0)
    before, own = lean(graph_of(f, x), [])(x)
    assert torch.equal(before, torch.tensor([0.0, 2.0, 4.0]))
    assert torch.equal(own, torch.tensor([1.0, 3.0, 5.0]))
    state = torch.ones(3)
    assert torch.equal(lean(graph_of(of_state, state, x), [0])(state, x), x)
    assert torch.equal(state, 1 + x)  # changed in place


@pytest.mark.parametrize("power", [1.0, 2.0, 2])
@pytest.mark.parametrize("x", [torch.arange(3), torch.tensor([True, False]), torch.arange(3.0)])
def test_powers_keep_their_kind(x, power):
    found = lean(graph_of(lambda x: x**power, x), [])(x)
    assert found.dtype == (x**power).dtype
    assert torch.equal(found, x**power)
