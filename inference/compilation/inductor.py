"""A graph of tensor operations compiled by torch's compiler, without what traces Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._inductor import config, virtualized
from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.ir import Pointwise
from torch._inductor.lowering import register_lowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from .elementary import FUSED, upright
from .noise import COUNTED, threefry
from .region_calls import Layout


def compiled(
    graph: fx.GraphModule, layouts: Sequence[Layout]
) -> tuple[Callable[[list[Tensor]], Sequence[Tensor]], list[tuple[int, ...]]]:
    """What computes a graph, and the strides of what it returns.

    Unlike ``torch.compile`` it neither traces Python code nor checks the inputs at each call.

    Arguments:
        graph: of tensors, to a tuple of tensors. What it changes in place has to be its own.
        layouts: of its inputs.

    Returns:
        a function of a list of inputs, which it empties; and strides.
    """
    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    cuda = [one for *_, one in layouts if one.type == "cuda"]
    with tracing(TracingContext(shapes)), torch.no_grad(), torch.random.fork_rng(cuda[:1]):
        with shapes:
            examples = [
                torch.empty_strided(shape, stride, dtype=dtype, device=device)
                for shape, stride, dtype, device in layouts
            ]
        table = {**select_decomp_table(), **FUSED, **({} if cuda else COUNTED)}
        functional = torch.func.functionalize(graph, remove="mutations")
        found = make_fx(functional, decomposition_table=table)(*examples)
        output = found.graph.find_nodes(op="output")[0]
        strides = [node.meta["val"].stride() for node in output.args[0]]
        # The strides of what is returned are kept.
        output.meta["user_visible_output_idxs"] = list(range(len(strides)))
        output.meta["original_output_strides"] = strides
        # On a CPU the compiler's own draws are slower than torch's.
        options: dict[str, Any] = {"fallback_random": not cuda}
        options |= {"size_asserts": False, "alignment_asserts": False}
        with config.patch(options), V.set_fake_mode(shapes):
            upright(found)
            _recursive_joint_graph_passes(found)
            code = compile_fx_inner(found, examples, is_inference=True)
    return getattr(code, "current_callable", None) or code, strides


class _Word:
    """A number of 32 bits in a loop, with the operators that one of a tensor has."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def _with(self, name: str, other: _Word | int) -> _Word:
        known = (
            virtualized.ops.constant(other, torch.int32) if isinstance(other, int) else other.value
        )
        return _Word(getattr(virtualized.ops, name)(self.value, known))

    __add__ = partialmethod(_with, "add")
    __and__ = partialmethod(_with, "bitwise_and")
    __or__ = partialmethod(_with, "bitwise_or")
    __xor__ = partialmethod(_with, "bitwise_xor")
    __lshift__ = partialmethod(_with, "bitwise_left_shift")
    __rshift__ = partialmethod(_with, "bitwise_right_shift")


@register_lowering(torch.ops.pyroccam.random_word.default, type_promotion_kind=None)
def _(key: Any, count: int, which: int) -> Any:
    load = key.make_loader()

    def word(index: Sequence[Any]) -> Any:
        counter = _Word(virtualized.ops.index_expr(index[0], torch.int32))
        both = [_Word(load([i])) for i in range(2)]
        zero = _Word(virtualized.ops.constant(0, torch.int32))
        return threefry(both, counter, zero)[which].value

    return Pointwise.create(
        device=key.get_device(), dtype=torch.int32, inner_fn=word, ranges=[count]
    )
