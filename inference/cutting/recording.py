"""A pass of a network: what it is given, and the steps that are seen while it runs on tensors.

Networks of Hugging Face look at their arguments, make masks of them and give objects, which symbols
of torch.fx cannot follow. What is recorded is one pass: sizes in it are numbers, and the path is
that of the example. So it only says how features go; a cut network keeps the class, and with it the
forward, of the whole one.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ...models import arguments, fields_of
from ...models.plain import is_leaf

_READS = {
    *("__bool__", "__int__", "__float__", "__index__", "__contains__", "__array__"),
    *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero"),
}
"""What makes numbers of values, on which a path may depend."""


Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""One tensor, or those of several arguments, by place or by name."""


class Example(NamedTuple):
    """Arguments of a network's forward.

    Attributes:
        tensors: ``(B, ...)`` each, in the order of the parameters of ``forward``.
        names: of them, if they are given by name.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, net: nn.Module, example: Inputs) -> Example:
        """Arguments for a network, from those, or from rows of the table that it is fed with."""
        args, named = (example, {}) if isinstance(example, tuple) else ((), example)
        if isinstance(named, Tensor):
            args, named = arguments(named, fields_of(net))
        order = [name for name in inspect.signature(net.forward).parameters if name in named]
        names = tuple(dict.fromkeys([*order, *named]))
        return cls((*args, *(named[name] for name in names)), names)

    @property
    def given(self) -> tuple[str, ...] | int:
        """What of ``forward`` is given, for a trace: names, or how many."""
        return self.names or len(self.tensors)

    def call(self, net: nn.Module, tensors: tuple[Tensor, ...] | None = None) -> Any:
        """Outputs of a network for copies of these tensors, or for others in their place."""
        own = tuple(x.clone() for x in self.tensors) if tensors is None else tensors
        return net(**dict(zip(self.names, own, strict=True))) if self.names else net(*own)

    def head(self, rows: int) -> Example:
        """The first rows."""
        return Example(tuple(x[:rows] for x in self.tensors), self.names)

    def near(self, times: float = 1.0) -> Example:
        """Other inputs close by, or larger ones; whole numbers are the same."""
        noise = torch.Generator().manual_seed(0)
        others = (
            times * (x + torch.randn(x.shape, generator=noise).to(x))
            if x.is_floating_point()
            else x
            for x in self.tensors
        )
        return Example(tuple(others), self.names)

    def __str__(self) -> str:
        return ", ".join(str(tuple(x.shape)) for x in self.tensors)


class ValuesDecide(Exception):
    """The path of a pass may depend on values."""


class Run:
    """What is seen of a graph's nodes while they run.

    Attributes:
        shapes, truths: of tensors, of modules that give several that of the first; and those that
            are true or false.
        numbers: sizes, and whatever else is no tensor.
        roots: of a tensor, the first that has its memory.
        overwritten: tensors whose values change behind the back of another reader: ``relu_(x)`` is
            harmless if nobody else reads ``x``, or anything that ``x`` is a view of.
        seen: modules whose own tensors are looked at (for their type, say).
    """

    def __init__(self) -> None:
        self.shapes: dict[Node, Size] = {}
        self.truths: set[Node] = set()
        self.numbers: dict[Node, Any] = {}
        self.roots: dict[Node, Node] = {}
        self.overwritten: set[Node] = set()
        self.seen: set[str] = set()

    def note(self, node: Node, read: list[tuple[Node, Tensor, int]], out: Any) -> None:
        """Add a node, with what it has read, each with its version before, and what it gives."""
        leaves = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        held = {t.untyped_storage().data_ptr() for t in leaves}
        self.roots[node] = node
        for source, tensor, version in read:
            root = self.roots.get(source, source)
            if tensor._version != version:
                same = [n for n, r in self.roots.items() if r is root and n is not node]
                if any(len(n.users) > 1 for n in same):
                    self.overwritten.update(same)
            if tensor.untyped_storage().data_ptr() in held:
                self.roots[node] = root
        if isinstance(out, Tensor):
            self.shapes[node] = out.shape
            if out.dtype == torch.bool:
                self.truths.add(node)
        elif not leaves:
            self.numbers[node] = out
        elif node.op == "call_module":
            self.shapes[node] = leaves[0].shape


def recorded(net: nn.Module, example: Example) -> tuple[Graph, Run]:
    """The graph of one pass in evaluation mode, and what is seen of it.

    Masks and ids that are whole numbers may decide something, as whether there is a mask at all,
    if every layer is called; values of features and amounts may not.

    Raises:
        ValuesDecide: if they may.
    """
    recorder = _Recorder(net, example)
    with torch.no_grad(), recorder.watching(net), recorder:
        out = example.call(net, recorder.inputs)
    recorder.graph.output(tuple(recorder.node_of(t) for t in tree_leaves(out) if _is_tensor(t)))
    direct = {str(n.target).rpartition(".")[0] for n in recorder.graph.nodes if n.op == "get_attr"}
    called = {str(node.target) for node in recorder.graph.nodes if node.op == "call_module"}
    own = {name.rpartition(".")[0] for name, _ in net.named_parameters()}
    if recorder.decided and (idle := own - called - direct):
        raise ValuesDecide(f"{min(idle)} is not called on the example, but may be on other rows")
    return recorder.graph, recorder.run


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _versions(*args: Any) -> list[tuple[Tensor, int]]:
    return [(t, t._version) for t in tree_leaves(args) if _is_tensor(t)]


class _Recorder(TorchFunctionMode):
    """Writes a node for every call outside the modules that are steps, and one for each of them."""

    def __init__(self, net: nn.Module, example: Example) -> None:
        super().__init__()
        self.graph = Graph(owning_module=net)  # type: ignore[arg-type]
        self.run = Run()
        self.free: set[Node] = set()  # made of whole numbers that were given, and constants
        self.decided = False
        self._inside = 0
        self._nodes: dict[int, Node] = {}
        self._kept: list[Tensor] = []  # while they live no other has their identity
        self._held = {id(t): n for n, t in (*net.named_parameters(), *net.named_buffers())}
        self.inputs = tuple(x.clone() for x in example.tensors)
        for number, x in enumerate(self.inputs):
            self._bind(self.graph.placeholder(f"x_{number}"), x, not x.is_floating_point())

    def _bind(self, node: Node, tensor: Tensor, free: bool) -> None:
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)
        self.run.shapes[node] = tensor.shape
        if free:
            self.free.add(node)

    def node_of(self, tensor: Tensor) -> Node:
        """The step that made a tensor; one that no step has made is a constant."""
        if id(tensor) not in self._nodes:
            name = self._held.get(id(tensor), f"constant_{len(self._kept)}")
            node = self.graph.create_node("get_attr", name)
            self._bind(node, tensor, not isinstance(tensor, nn.Parameter))
        return self._nodes[id(tensor)]

    def _note(self, op: str, target: Any, args: Any, kwargs: Any, out: Any, before: Any) -> None:
        given = tree_map(lambda v: self.node_of(v) if _is_tensor(v) else v, (args, kwargs))
        node = self.graph.create_node(op, target, *given)
        self.run.note(node, [(self.node_of(t), t, version) for t, version in before], out)
        free = op != "call_module" and {*node.all_input_nodes} <= self.free
        if isinstance(out, Tensor):
            self._bind(node, out, free)
            return
        for place, part in enumerate(out if isinstance(out, tuple | list) else ()):
            if isinstance(part, Tensor):
                picked = self.graph.call_function(operator.getitem, (node, place))
                self._bind(picked, part, free)
                self.run.roots[picked] = self.run.roots[node]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        own = (self._held.get(id(t), "") for t in tree_leaves((args, kwargs)))
        self.run.seen |= {path.rpartition(".")[0] for path in own}
        before = _versions(args, kwargs)
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _READS:
            if any(self.node_of(t) not in self.free for t in tree_leaves(args) if _is_tensor(t)):
                raise ValuesDecide(f"{name} of values that are not whole numbers of the input")
            self.decided = True
        elif any(map(_is_tensor, tree_leaves(out))):
            named = getattr(operator, name, func) if name.startswith("__") else func
            method = named is func and getattr(Tensor, name, None) is func
            kind, target = ("call_method", name) if method else ("call_function", named)
            self._note(kind, target, args, kwargs, out, before)
        return out

    @contextmanager
    def watching(self, net: nn.Module) -> Iterator[None]:
        """Modules that are steps are, for a while."""

        versions: list[Any] = []

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not self._inside:
                versions[:] = _versions(args, kwargs)
            self._inside += 1

        def leave(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
                self._inside -= 1
                if not self._inside:
                    self._note("call_module", name, args, kwargs, out, [*versions])

            return hook

        hooks = []
        for name, module in net.named_modules():
            if name and is_leaf(module):
                hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.append(module.register_forward_hook(leave(name), with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
