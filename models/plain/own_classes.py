"""A network without the classes of this package: what they compute, as graphs of torch.

A module is unpickled by its class, so a network that is to be unpickled where this package is not
may hold none of its classes. Each is replaced by a :class:`torch.fx.GraphModule` of its forward
pass, with the tensors that it computes with under their names. Classes of a person's own stay as
they are, and so do :class:`~pyroccam.models.networks.OrientedEdges`.
"""

from __future__ import annotations

import copy
import inspect
import operator

import torch
from torch import Tensor, fx, nn

from ..networks import OrientedEdges

_PACKAGE = __name__.partition(".")[0]


def torch_only(net: nn.Module, example: Tensor | None = None) -> nn.Module:
    """A copy in evaluation mode that computes the same, of torch's and a person's own classes.

    Arguments:
        net: plain; it is not changed. What it has beside its forward pass is lost where its class
            is of this package.
        example: inputs, for a network that may call such a module in ways that its graph does not
            know, as attention with a mask is called.

    Returns:
        ``net`` itself, if there is nothing to replace; or, with an example, if what takes its place
        would not compute the same.

    Raises:
        Exception: whatever tracing raises, of a module of this package (or of a class made from
            one) whose path depends on the data, such as a likelihood of one's own; not with an
            example.
    """
    if not any(_ours(module) for module in net.modules()):
        return net
    if example is None:
        return _replaced(copy.deepcopy(net).eval(), {})
    before = copy.deepcopy(net).eval()
    try:
        found = _replaced(copy.deepcopy(net).eval(), {})
        with torch.no_grad():
            same = torch.allclose(found(example.clone()), before(example.clone()), atol=1e-5)
    except Exception:  # of a forward pass, which may be a person's own
        return net
    return found if same else net


def _ours(module: nn.Module) -> bool:
    """True if the class of a module, or one that it is made from, is of this package; fixed filters
    stay, as no file has their numbers."""
    if isinstance(module, OrientedEdges):
        return False
    return any(kind.__module__.partition(".")[0] == _PACKAGE for kind in type(module).__mro__)


class _Tracer(fx.Tracer):
    """Stops at what is not of this package; buffers stay what they are."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not _ours(m)


def _absent(module: nn.Module) -> dict[str, None] | None:
    """Arguments that a call leaves out, by name: those that are ``None`` by default."""
    given = inspect.signature(type(module).forward).parameters
    return {name: None for name, one in given.items() if one.default is None} or None


def _assert_in_torch(graph: fx.Graph) -> None:
    """Write the assertions that an argument is left out without the function of torch.fx, by whose
    name an unpickled graph would break every later trace of the process."""
    for node in graph.find_nodes(op="call_function", target=fx._symbolic_trace._assert_is_none):
        with graph.inserting_before(node):
            absent = graph.call_function(operator.eq, (node.args[0], None))
        node.target, node.args = torch._assert, (absent, node.args[1])


def _replaced(module: nn.Module, made: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module, changed in place, or what takes its place; the same wherever it stands."""
    if module not in made:
        new = module
        if _ours(module):
            graph = _Tracer().trace(module, _absent(module))
            graph._tracer_cls = fx.Tracer  # a class by which it would be unpickled
            _assert_in_torch(graph)
            new = fx.GraphModule(module, graph, type(module).__name__).eval()
        made[module] = new
        for name, child in new._modules.items():
            if child is not None:
                new._modules[name] = _replaced(child, made)
    return made[module]
