"""The random numbers of a graph as its inputs: the same numbers give the same value."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten

from .tracing import DRAWS, Untraceable

__all__ = ["lift_noise"]


def lift_noise(graph: fx.GraphModule, *inputs: Any) -> tuple[fx.GraphModule, Draw]:
    """A graph whose random numbers are further arguments, and what draws them.

    It takes its arguments flat, ``graph(*flat, *noise)``, and returns a flat list.

    Arguments:
        graph: of tensor operations. It is not changed.
        inputs: examples of its arguments.

    Returns:
        the graph, and a function that gives ``noise``, a list of tensors.

    Raises:
        Untraceable: for a draw whose law depends on values, such as that of a gamma variable.
    """
    recorder = _Recorder(graph)
    with torch.no_grad():
        recorder.run(*tree_flatten(inputs)[0], enable_io_processing=False)
    lifted = copy.deepcopy(graph)
    lifted.graph.set_codegen(fx.graph.CodeGen())  # flat: the noise is in no tree of arguments
    nodes = {node.name: node for node in lifted.graph.nodes}
    last = [node for node in lifted.graph.nodes if node.op == "placeholder"][-1]
    for k, name in enumerate(recorder.draws):
        with lifted.graph.inserting_after(last):
            last = lifted.graph.placeholder(f"noise_{k}")
        nodes[name].replace_all_uses_with(last)
        lifted.graph.erase_node(nodes[name])
    lifted.graph.eliminate_dead_code()
    lifted.recompile()
    draws = list(recorder.draws.values())
    return lifted, lambda: [draw() for draw in draws]


Draw = Callable[[], list[Tensor]]


class _Recorder(fx.Interpreter):
    """Finds the random operations of a graph, and how to draw again from each."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.draws: dict[str, Callable[[], Tensor]] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        target: Any = n.target
        tags = getattr(target, "tags", ())
        if target in DRAWS:
            shapes = fx.node.map_aggregate(
                args, lambda a: torch.empty_like(a) if isinstance(a, Tensor) else a
            )
            self.draws[n.name] = lambda: target(*shapes, **kwargs)
        elif torch.Tag.nondeterministic_seeded in tags:
            raise Untraceable(
                f"it draws by {target}, from a law that depends on values: its noise cannot be "
                "held fixed"
            )
        return super().run_node(n)
