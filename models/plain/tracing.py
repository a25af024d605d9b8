"""Trace the forward pass of a plain network, without changing the network."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from .. import given, has_other_hooks, keeping_modes
from ..unpacked import AttentionWeights
from .vocabulary import MODULES, DescriptionError

WAY_OUT = (
    "Such a network has to be built by its own code: a .pocc file has its tensors alone, and "
    "inference.load(path, like=net) takes it as it is built."
)


class _Tracer(fx.Tracer):
    """Stops at the known modules and remembers the innermost module it was in."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in MODULES

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        name = f"{self.path_of_module(m)} ({type(m).__name__})"
        self.inside.append(name)
        try:
            _no_hooks(m)
            own = isinstance(m, nn.Sequential) or not m.__module__.startswith("torch.nn.modules")
            if not own and type(m) not in MODULES:
                raise DescriptionError("it is not among the known modules")
            out = super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or name
            raise
        self.inside.pop()
        return out


def _no_hooks(module: nn.Module) -> None:
    if has_other_hooks(module):
        raise DescriptionError("it has forward hooks, which a description would lose")


def trace(net: nn.Module) -> tuple[fx.Graph, dict[str, Tensor]]:
    """Graph in evaluation mode, and the constants ``forward`` made; ``net`` stays as it is.
    Arguments that rows do not give keep their defaults."""
    defaults = {}
    takes = inspect.signature(net.forward).parameters
    own = given(net)
    own = tuple(takes)[:own] if isinstance(own, int) else own
    for name, parameter in takes.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found = f"{type(net).__name__}.forward takes {parameter}, which has no fixed place"
            raise DescriptionError(f"{found}. {WAY_OUT}")
        if parameter.default is not parameter.empty and name not in own:
            if not plain_default(parameter):
                found = f"{type(net).__name__}.forward has the default {parameter}"
                raise DescriptionError(f"{found}, no number, text or None. {WAY_OUT}")
            defaults[name] = parameter.default
    made: list[dict[str, Tensor]] = []
    with keeping_modes(net):
        net.eval()
        for _ in range(2):  # twice: a constant that changes is a random number
            tracer = _Tracer()
            try:
                _no_hooks(net)
                graph, hung = traced(tracer, net, defaults)
                _lengths_as_sizes(graph)
            except Exception as error:
                where = tracer.failed or type(net).__name__
                raise DescriptionError(
                    f"{where} cannot be described: {str(error).rstrip('.')}. {WAY_OUT}"
                ) from error
            made.append({name: t for name, t in hung.items() if isinstance(t, Tensor)})
    # In the order in which they were made: their names depend on what the network has already.
    first, second = ([*one.values()] for one in made)
    if len(first) != len(second) or not all(map(torch.equal, first, second)):
        raise DescriptionError(f"{type(net).__name__}.forward draws random numbers. {WAY_OUT}")
    return graph, made[-1]


def traced(
    tracer: fx.Tracer, net: nn.Module, defaults: dict[str, Any]
) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of a network, and what ``forward`` makes; buffers are numbers, or, where that
    fails, symbols: a slice of one may be as long as the inputs are, and a path may depend on one,
    but not both."""
    with _recorded_length(net), _made_by_tracer(net) as made:
        try:
            graph = tracer.trace(net, defaults or None)
        except Exception as error:
            tracer.proxy_buffer_attributes = True
            try:
                graph = tracer.trace(net, defaults or None)
            except Exception:
                raise error from None
    _drop_defaults(graph, set(defaults))
    _drop_unread(graph, net)
    return graph, made


@contextmanager
def _made_by_tracer(net: nn.Module) -> Iterator[dict[str, Any]]:
    """A tracer hangs the constants that ``forward`` makes on the network, which is not ours to
    change: they are taken off in the end, into the dictionary."""
    before = set(vars(net))
    made: dict[str, Any] = {}
    try:
        yield made
    finally:
        for name in [name for name in vars(net) if name not in before]:
            made[name] = vars(net).pop(name)


def plain_default(parameter: inspect.Parameter) -> bool:
    """True if a parameter of ``forward`` has a default that can be traced as what it is."""
    return isinstance(parameter.default, bool | int | float | str | None)


@contextmanager
def _recorded_length(net: nn.Module) -> Iterator[None]:
    """While a network is traced, ``len(x)`` in its forward is a step of the graph.

    Python demands a number of ``len``, so the name is put in front of the built-in one, for the
    code of these modules only, as torch.fx does it with functions that it cannot see otherwise.
    """
    forwards = [inspect.unwrap(module.forward) for module in net.modules()]
    names: dict[int, dict[str, Any]] = {}
    for forward in forwards:
        found = getattr(forward, "__globals__", {})
        if "len" not in found and not str(found.get("__name__")).startswith("torch."):
            names[id(found)] = found
    for found in names.values():
        found["len"] = _length
    try:
        yield
    finally:
        for found in names.values():
            del found["len"]


def _length(x: Any) -> Any:
    if isinstance(x, fx.Proxy):
        return x.tracer.create_proxy("call_function", len, (x,), {})
    return len(x)


def _lengths_as_sizes(graph: fx.Graph) -> None:
    """Write ``len(x)`` of a tensor as ``x.size(0)``, which descriptions know."""
    for node in graph.nodes:
        if node.op != "call_function" or node.target is not len:
            continue
        of = node.args[0]
        if getattr(of.target, "__name__", of.target) in _NO_TENSOR:
            raise DescriptionError(f"it takes len() of what {of.target!r} gives, no tensor")
        node.op, node.target, node.args = "call_method", "size", (of, 0)


_NO_TENSOR = {"chunk", "split", "size", "getattr", "max", "min", "unbind"}


def _drop_defaults(graph: fx.Graph, names: set[str]) -> None:
    """Take out the inputs that keep their default, with the tracer's assertions that they do."""
    dropped: list[fx.Node] = []
    for node in graph.nodes:
        default = node.op == "placeholder" and str(node.target).rpartition("_")[0] in names
        if default or (node.all_input_nodes and set(node.all_input_nodes) <= set(dropped)):
            dropped.append(node)
    for node in reversed(dropped):
        graph.erase_node(node)


def _drop_unread(graph: fx.Graph, net: nn.Module) -> None:
    """Take out what unpacked modules give and nobody reads: weights of attention, last states of
    recurrent layers; and what a forward makes sure of. Of stacked states that are picked one by one
    only those remain."""
    for node in reversed([*graph.nodes]):
        if node.target is torch.stack and len(node.args) == 1:
            parts = node.args[0]
            for user in [u for u in node.users if u.target is operator.getitem]:
                if isinstance(parts, list | tuple) and isinstance(user.args[1], int):
                    user.replace_all_uses_with(parts[user.args[1]])
                    graph.erase_node(user)
        ours = node.op == "call_module" and isinstance(
            net.get_submodule(str(node.target)), AttentionWeights
        )
        pure = node.target in (torch.stack, operator.getitem, torch._assert) or ours
        if pure and not node.users:
            graph.erase_node(node)
