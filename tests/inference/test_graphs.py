"""Functions as graphs: those of torch's own ``make_fx``, with the shapes in one mode."""

import pytest
import torch
from pyroccam.inference.compilation.graphs import graph_of
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves


def slopes(x, w):
    """Differentiated, mapped and with noise."""

    def loss(w, row):
        return ((row @ w).tanh() + torch.randn(2)).square().sum()

    each = torch.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0), randomness="different")
    return each(w, x)


def outputs(x, w):
    """A pass, with noise."""
    hidden = torch.nn.functional.dropout((x @ w).tanh(), 0.3)
    return torch.nn.functional.layer_norm(hidden, (2,)).softmax(-1), hidden.view(-1)


@pytest.mark.parametrize(("f", "pre_dispatch"), [(slopes, False), (outputs, True)])
def test_the_graph_is_that_of_make_fx(f, pre_dispatch):
    inputs, others = ((torch.randn(4, 3), torch.randn(3, 2)) for _ in range(2))
    graph = graph_of(f, *inputs, pre_dispatch=pre_dispatch)
    assert graph.code == make_fx(f, pre_dispatch=pre_dispatch)(*inputs).code
    torch.manual_seed(0)
    found = graph(*others)
    torch.manual_seed(0)
    torch.testing.assert_close(tuple(found), f(*others))
    shapes = tree_leaves([node.meta["val"] for node in graph.graph.nodes if "val" in node.meta])
    assert len(shapes) > 5
    assert len({id(shape.fake_mode) for shape in shapes}) == 1


def test_nothing_is_left_of_a_recording():
    graph_of(torch.sin, torch.ones(2))
    assert TracingContext.try_get() is None
    with pytest.raises(RuntimeError, match="value out of a tracing tensor"):
        graph_of(lambda x: float(x.sum()), torch.ones(2))
    assert TracingContext.try_get() is None
