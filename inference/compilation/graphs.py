"""Functions of tensors as graphs of the operations that they cause."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def graph_of(f: Callable[..., Any], *inputs: Any, pre_dispatch: bool = False) -> fx.GraphModule:
    """The operations of one call, as ``torch.fx.experimental.proxy_tensor.make_fx`` records them,
    in about two thirds of its time: fake tensors of all results have one mode, not each its own.

    Arguments:
        f: a function of trees of tensors.
        inputs: examples; operations are run on them.
        pre_dispatch: record the operations as they were before autograd and others took them apart.

    Returns:
        a module of the arguments of ``f``.
    """
    shapes = FakeTensorMode(allow_fallback_kernels=True)
    with tracing(TracingContext(shapes)):
        found: fx.GraphModule = make_fx(f, pre_dispatch=pre_dispatch)(*inputs)
    return found


def of_lists(graph: fx.GraphModule, *lengths: int) -> Callable[..., Any]:
    """The same function, called without the trees that a general graph flattens at each call.

    Arguments:
        graph: of lists of tensors and of tensors, to a list.
        lengths: of the lists that are returned first, one after the other. What is left comes last.

    Returns:
        a function of the same arguments. It returns lists.
    """
    graph.graph.set_codegen(fx.graph.CodeGen())
    graph.recompile()
    forward: Callable[..., Any] = graph.forward
    edges = list(itertools.accumulate(lengths, initial=0))
    parts = [slice(a, b) for a, b in zip(edges, [*edges[1:], None], strict=True)]

    def call(*inputs: Any) -> list[Any]:
        flat: list[Any] = []
        for one in inputs:
            if isinstance(one, list):
                flat += one
            else:
                flat.append(one)
        found = forward(*flat)
        return [found[part] for part in parts]

    return call
