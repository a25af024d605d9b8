"""The random numbers of a graph as its inputs: the same numbers give the same value."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten

from ...models.distributions.gamma_quantile import UNIFORMS, gamma_of
from .fusion import DRAWS
from .trace import Untraceable

__all__ = ["Draw", "lift_noise"]

_GAMMA = torch.ops.aten._standard_gamma.default

Draw = Callable[[], list[Tensor]]


def lift_noise(graph: fx.GraphModule, *inputs: Any) -> tuple[fx.GraphModule, Draw]:
    """A graph whose random numbers are further arguments, and what draws them.

    It takes its arguments flat, ``graph(*flat, *noise)``, and returns a flat list.

    Arguments:
        graph: of tensor operations. It is not changed.
        inputs: examples of its arguments.

    Returns:
        the graph, and a function that gives ``noise``, a list of tensors.

    A gamma variable is made of uniform numbers
    (:func:`~pyroccam.models.distributions.gamma_quantile.gamma_of`), so that the same ones give the
    same value, with two derivatives by its shape.

    Raises:
        Untraceable: for any other draw whose law depends on values.
    """
    flat = tree_flatten(inputs)[0]
    recorder = _Recorder(graph, {t.device for t in flat if isinstance(t, Tensor)})
    cuda = [device for device in recorder.devices if device.type == "cuda"]
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):
        recorder.run(*flat, enable_io_processing=False)
    lifted = copy.deepcopy(graph)
    lifted.graph.set_codegen(fx.graph.CodeGen())  # flat: the noise is in no tree of arguments
    nodes = {node.name: node for node in lifted.graph.nodes}
    last = [node for node in lifted.graph.nodes if node.op == "placeholder"][-1]
    for k, name in enumerate(recorder.draws):
        with lifted.graph.inserting_after(last):
            last = lifted.graph.placeholder(f"noise_{k}")
        value = last
        if nodes[name].target is _GAMMA:
            with lifted.graph.inserting_before(nodes[name]):
                value = lifted.graph.call_function(gamma_of, (last, nodes[name].args[0]))
        nodes[name].replace_all_uses_with(value)
        lifted.graph.erase_node(nodes[name])
    lifted.graph.eliminate_dead_code()
    lifted.recompile()
    draws = list(recorder.draws.values())
    return lifted, lambda: [draw() for draw in draws]


class _Recorder(fx.Interpreter):
    """Finds the random operations of a graph, and how to draw again from each."""

    def __init__(self, graph: fx.GraphModule, devices: set[torch.device]) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # nothing of nodes in a message
        self.devices = devices
        self.draws: dict[str, Callable[[], Tensor]] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        target: Any = n.target
        if target in DRAWS:
            shapes = fx.node.map_aggregate(
                args, lambda a: torch.empty_like(a) if isinstance(a, Tensor) else a
            )
            self.draws[n.name] = lambda: target(*shapes, **kwargs)
            return super().run_node(n)
        if target is _GAMMA and kwargs.get("generator") is None and len(args) == 1:
            like = torch.empty_like(args[0]).expand(UNIFORMS, *args[0].shape)
            self.draws[n.name] = lambda: torch.rand_like(like)
            return super().run_node(n)
        before = self._generators()
        found = super().run_node(n)
        own = any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values()))
        if own or not all(map(torch.equal, before, self._generators())):
            raise Untraceable(
                f"it draws by {target}, whose noise cannot be held fixed: only that of "
                "torch.randn, torch.rand, normal_ and the like can, into a new tensor, where "
                "nothing but its shape matters"
            )
        return found

    def _generators(self) -> list[Tensor]:
        """Generators that any draw changes."""
        cuda = [device for device in self.devices if device.type == "cuda"]
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, cuda)]
