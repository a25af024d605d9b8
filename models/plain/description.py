"""Describe a plain network as JSON, and rebuild it without running pickled code.

What is described is the computation of one forward pass in evaluation mode, traced by
``torch.fx``: which known modules and functions are called on what. The numbers are not part of
it; :func:`state` takes them out of a network and :func:`fill` puts them into a rebuilt one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn

from ...data import TooLarge, ask, shown
from .named_tensors import attribute, checked_shape, declared_dtypes, fill, state, tensors_of
from .tracing import WAY_OUT, trace
from .untrusted import plain_words
from .vocabulary import (
    FUNCTIONS,
    METHODS,
    DescriptionError,
    arguments_of,
    checked_call,
    checked_name,
    decode,
    dtype_named,
    encode,
    make,
    word_for,
)

FORMAT = 1
MOST_CONSTANTS = 4096  # numbers that forward() makes itself; they are written into the JSON


def describe(net: nn.Module) -> dict[str, Any]:
    """Description of what a network computes in evaluation mode, as JSON data.

    Arguments:
        net: made of the modules in :data:`~pyroccam.models.plain.vocabulary.MODULES`, and of
            functions and methods named there, without control flow that depends on values.
            Arguments of ``forward`` that have a default keep it.

    Returns:
        Plain dicts, lists, strings and numbers: inputs, nodes, modules with their constructor
        arguments, tensors used directly, names that share one tensor.

    Raises:
        DescriptionError: naming the module that cannot be described, and the way out.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        >>> describe(net)["modules"]["0"]
        {'type': 'Linear', 'arguments': {'in_features': 3, 'out_features': 2, 'bias': True}}
    """
    graph, constants = trace(net)
    nodes: list[dict[str, Any]] = []
    modules: dict[str, Any] = {}
    direct: dict[str, Any] = {}
    for node in graph.nodes:
        nodes.append(_words(node, net))
        if node.op == "call_module":
            module = net.get_submodule(str(node.target))
            modules[checked_name(node.target, dotted=True)] = {
                "type": type(module).__name__,
                "arguments": arguments_of(module),
            }
    inside = {name for name, _ in tensors_of(net, modules)}
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "get_attr" and name not in inside | set(constants):
            tensor = attribute(net, name)
            direct[checked_name(name, dotted=True)] = {
                "shape": list(tensor.shape),
                "parameter": isinstance(tensor, nn.Parameter),
            }
    first: dict[int, str] = {}
    tied, dtypes = {}, {}
    for name, tensor in chain(tensors_of(net, modules), ((n, attribute(net, n)) for n in direct)):
        owner = first.setdefault(id(tensor), name)
        if owner != name:
            tied[name] = owner
        elif tensor.dtype != torch.float32:
            dtypes[name] = encode(tensor.dtype)["dtype"]
    return {
        "format": FORMAT,
        "nodes": nodes,
        "modules": modules,
        "direct": direct,
        "constants": {name: _numbers(name, value) for name, value in constants.items()},
        "tied": tied,
        "dtypes": dtypes,
    }


def rebuild(description: Mapping[str, Any]) -> nn.Module:
    """A network in evaluation mode from its description; all its numbers are zero. It is a graph,
    or an ``nn.Sequential`` if it was one.

    A description may be a stranger's: it is data, of which only known modules and functions are
    called, and the memory for its parts and tensors is asked for before it is taken. What it
    computes is not looked at: running the network can take any time and memory (a ``repeat``, a
    ``pad``, a convolution on padding of 10^9), and so can an input that is too large.

    Raises:
        DescriptionError: if it is malformed or of another format.
        TooLarge: if it asks for more memory than a file may (:mod:`pyroccam.data.limits`).
    """
    try:
        return _rebuild(_checked(description))
    except TooLarge:
        raise
    except DescriptionError as error:
        raise DescriptionError(f"The description cannot be used: {error}") from error
    except Exception as error:  # torch and Python refuse sizes, depths and kinds in many ways
        raise DescriptionError(
            f"The description cannot be used: {plain_words(error)}", hint="describe it again"
        ) from error


def _words(node: fx.Node, net: nn.Module) -> dict[str, Any]:
    """One node as JSON."""
    words: dict[str, Any] = {"op": node.op, "name": node.name}
    if node.op in ("call_function", "call_method"):
        word = word_for(node.op, node.target)
        if word is None:
            target = getattr(node.target, "__name__", node.target)
            raise DescriptionError(f"{type(net).__name__} calls {target!r}, not known. {WAY_OUT}")
        words["target"] = word
        checked_call(word, node.args, node.kwargs)
    else:
        words["target"] = str(node.target)
    kwargs = dict(node.kwargs)
    kwargs.pop("_stacklevel", None)  # where a warning points to; no part of the computation
    try:
        if node.args:
            words["args"] = [encode(a) for a in node.args]
        if kwargs:
            words["kwargs"] = {key: encode(a) for key, a in kwargs.items()}
    except DescriptionError as error:
        raise DescriptionError(f"{type(net).__name__}: {error} ({node}). {WAY_OUT}") from error
    return words


def _numbers(name: str, value: Tensor) -> dict[str, Any]:
    if value.numel() > MOST_CONSTANTS:
        raise DescriptionError(
            f"forward makes a constant of {value.numel()} numbers; register it as a buffer."
        )
    return {**encode(value.dtype), "values": encode(value.tolist())}


# -- rebuilding -----------------------------------------------------------------------------------

_PARTS = {
    "nodes": list, "modules": dict, "direct": dict, "constants": dict, "tied": dict, "dtypes": dict
}  # fmt: skip
_VALUE_BYTES = 2**13  # what a value of the JSON may become, and the time: a module has some ten


def _checked(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """The description, whose parts are of the right kinds and its values not too many."""
    if not isinstance(description, Mapping) or "format" not in description:
        raise DescriptionError("it has no format.")
    if description["format"] != FORMAT or isinstance(description["format"], bool):
        raise DescriptionError(f"format {shown(description['format'])}, expected {FORMAT}.")
    for name, kind in _PARTS.items():
        if not isinstance(description.get(name), kind):
            raise DescriptionError(f"its {name!r} is missing or no {kind.__name__}.")
    ask(_VALUE_BYTES * _count([description[name] for name in _PARTS]), "The description")
    return description


def _count(value: Any) -> int:
    """All values inside, at any depth, and the value itself."""
    found, left = 0, [value]
    while left:
        found += 1
        inner = left.pop()
        if isinstance(inner, list | dict):
            left += inner.values() if isinstance(inner, dict) else inner
    return found


def _rebuild(description: Mapping[str, Any]) -> nn.Module:
    roots: dict[str, Any] = {}
    with torch.device("meta"):  # shapes only, until the size is known to be bearable
        for name, words in description["modules"].items():
            words = _object(words, "module", name)
            roots[checked_name(name, dotted=True)] = make(words["type"], words["arguments"])
        for name, words in description["direct"].items():
            words = _object(words, "tensor", name)
            tensor = torch.empty(checked_shape(words["shape"]))
            if not isinstance(words["parameter"], bool):
                raise DescriptionError(f"{name} has parameter={shown(words['parameter'])}.")
            roots[checked_name(name, dotted=True)] = (
                nn.Parameter(tensor) if words["parameter"] else tensor
            )
    for name, words in description["constants"].items():
        words = _object(words, "constant", name)
        values = decode(words["values"], {})
        roots[checked_name(name)] = torch.tensor(values, dtype=dtype_named(words["dtype"]))
    graph = _graph(description["nodes"], roots)
    used = {node.target for node in graph.nodes if node.op in ("call_module", "get_attr")}
    if idle := {*description["modules"], *description["direct"]} - used:
        raise DescriptionError(f"no node uses {shown(min(idle))}.")
    net = fx.GraphModule(roots, graph, "Described")
    held = state(net, description)
    dtypes = declared_dtypes(description, held)
    ask(sum(t.numel() * dtypes[name].itemsize for name, t in held.items()), "The description")
    fill(
        net,
        description,
        {name: torch.zeros(t.shape, dtype=dtypes[name]) for name, t in held.items()},
    )
    if any(tensor.is_meta for tensor in chain(net.parameters(), net.buffers())):
        raise DescriptionError("a tensor of it has no shape of its own.")
    return _in_a_row(net).eval()


def _in_a_row(net: fx.GraphModule) -> nn.Module:
    """Modules that are called one after the other as an ``nn.Sequential``, which takes no time to
    look for them; of any other network itself."""
    before, *steps, last = net.graph.nodes
    names = []
    if before.target != "input":  # as nn.Sequential has it, by name, too
        return net
    for node in steps:
        if node.op != "call_module" or node.args != (before,) or node.kwargs:
            return net
        before = node
        names.append(str(node.target))

    made = _row([(name.split("."), net.get_submodule(name)) for name in names])
    order = [name for name, _ in made.named_modules() if name in names]
    return made if last.args == (before,) and order == names else net


def _row(parts: list[tuple[list[str], nn.Module]]) -> nn.Module:
    inner: dict[str, list[tuple[list[str], nn.Module]]] = {}
    for (first, *rest), module in parts:
        inner.setdefault(first, []).append((rest, module))
    made = {name: own[0][1] if not own[0][0] else _row(own) for name, own in inner.items()}
    return nn.Sequential(OrderedDict(made))


def _object(words: Any, what: str, name: str) -> dict[str, Any]:
    if not isinstance(words, dict):
        raise DescriptionError(f"the {what} {shown(name)} is {shown(words)}.")
    return words


def _graph(nodes: list[Any], roots: dict[str, Any]) -> fx.Graph:
    graph = fx.Graph()
    known: dict[str, fx.Node] = {}
    for number, found in enumerate(nodes):
        words = _object(found, "node", str(number))
        op, name, target = words["op"], checked_name(words["name"]), words["target"]
        listed, named = words.get("args", []), words.get("kwargs", {})
        if not isinstance(target, str) or not isinstance(listed, list):
            raise DescriptionError(f"the node {name} is {shown(words)}.")
        args = tuple(decode(a, known) for a in listed)
        kwargs = {
            checked_name(k): decode(a, known) for k, a in _object(named, "node", name).items()
        }
        if name in known:
            raise DescriptionError(f"two nodes are called {name}.")
        if op == "call_function" and target in FUNCTIONS:
            checked_call(target, args, kwargs)
            node = graph.call_function(FUNCTIONS[target], args, kwargs)
        elif op == "call_method" and target in METHODS:
            checked_call(target, args, kwargs)
            node = graph.call_method(target, args, kwargs)
        elif op == "call_module" and isinstance(roots.get(target), nn.Module):
            node = graph.call_module(target, args, kwargs)
        elif op == "get_attr":
            checked_name(target, dotted=True)
            node = graph.create_node("get_attr", target)
            _known_tensor(target, roots)
        elif op == "placeholder":
            node = graph.placeholder(checked_name(target))
        elif op == "output":
            node = graph.output(*args)
        else:
            raise DescriptionError(f"{shown(op)} {shown(target)} is not known.")
        known[name] = node
    if [node.op for node in graph.nodes].count("output") != 1 or node.op != "output":
        raise DescriptionError("its last node, and only that, must be the output.")
    graph.lint()
    return graph


def _known_tensor(target: str, roots: dict[str, Any]) -> None:
    """A tensor that is used directly: a root itself, or a tensor of a module that is a root."""
    if target in roots:
        return
    path, _, last = target.rpartition(".")
    module = roots.get(path)
    held = isinstance(module, nn.Module) and {**module._parameters, **module._buffers}.get(last)
    if not isinstance(held, Tensor):
        raise DescriptionError(f"it uses the tensor {shown(target)}, which it does not have.")
    roots[target] = held
