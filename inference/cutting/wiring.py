"""Read a plain network as steps over features: which layer feeds which, and through what."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Size, Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from ...data import PyroccamError
from ...models.plain import (
    CONVS,
    LAYERS,
    NORMS,
    TRANSPOSED,
    is_select,
    layer_kind,
    rows_first,
    selected_dim,
    trace,
)
from ...models.unpacked import GATES, Cell, Heads
from .asking import ROWS, Answer, asked, is_channelwise
from .ports import NOTHING, Call, Link, Passing, Port, is_depthwise
from .recording import Example, Run, ValuesDecide, recorded
from .steps import passing

AGAIN = "it is used more than once"


@dataclass(frozen=True)
class Step:
    """One tensor of the network, and how it is made.

    ``source`` steps are made in a way unknown here, so none of their features can be removed.
    ``passing`` steps keep features apart. ``layer`` steps mix them with a weight of rows and
    columns (or pick some, for :func:`~pyroccam.models.plain.feature_choice.select`), so that
    either side can be cut by itself.

    Arguments:
        node: of the graph.
        port: shape and axis of its features.
        kind: as above.
        module: its own module, if it has parameters that belong to features; with its name.
        passing: what it does to features; nothing, for steps that are not passing.
        reads: for layers, the tensor before it.
        aligned: for layers, whether that tensor has its features along the axis the layer reads.
        bare: for layers, whether nothing may stand around them, for their tensors are looked at.
        shared: for layers, whether they are called more than once.
    """

    node: Node
    port: Port
    kind: Literal["source", "passing", "layer"]
    name: str = ""
    module: Any = None
    passing: Passing = NOTHING
    reads: Any = None
    aligned: bool = False
    bare: bool = False
    shared: bool = False

    def chosen(self, values: Tensor, zero: float) -> Tensor:
        """What a ``select`` takes of values ``(I,)`` of features, with that of its zeros."""
        return torch.cat([values, values.new_full((1,), zero)])[self.module.index.cpu()]

    @property
    def groups(self) -> int:
        """Of a convolution; its inputs and outputs are as many in each."""
        return int(getattr(self.module, "groups", 1))

    @property
    def width(self) -> int:
        """Number of inputs of a layer."""
        if is_select(self.module):
            return int(self.module.index.max()) + 1
        return rows_first(self.module).shape[1] * self.groups


@dataclass
class Wiring:
    """A network as steps, in the order in which they run; ``graph`` has all its nodes.

    ``whole`` are the tensors that something needs with all their features; of those in
    ``overwritten`` the values are not known either. ``reasons`` says, by layer, why it is left
    whole; ``asked`` are the names of operations that were.
    """

    graph: Graph
    steps: dict[Node, Step] = field(default_factory=dict)
    whole: set[Node] = field(default_factory=set)
    overwritten: set[Node] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def layers(self) -> Iterator[Step]:
        """The layers that can be cut, in the order in which they run; no ``select``."""
        for step in self.steps.values():
            cuttable = step.kind == "layer" and not is_select(step.module)
            if cuttable or isinstance(step.module, nn.Embedding) or is_depthwise(step.module):
                yield step

    @property
    def cells(self) -> list[Node]:
        """Units of recurrent cells, of which one of their own layers is made, a step before."""
        return [node for node, step in self.steps.items() if isinstance(step.module, Cell)]

    def again(self) -> Iterator[tuple[Step, Step]]:
        """The first call of each layer that is called more than once, with each of the others."""
        first: dict[str, Step] = {}
        for step in self.steps.values():
            if step.shared and first.setdefault(step.name, step) is not step:
                yield first[step.name], step


class _Noting(Interpreter):
    """Runs a graph and remembers what is seen of it."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.noted = Run()

    def run_node(self, n: Node) -> Any:
        read = [
            (source, tensor, tensor._version)
            for source in n.all_input_nodes
            for tensor in tree_leaves(self.env[source])
            if isinstance(tensor, Tensor)
        ]
        out = super().run_node(n)
        self.noted.note(n, read, out)
        return out


def _seen(net: nn.Module, example: Example) -> tuple[Graph, Run, bool]:
    """The graph of a network, what is seen of it, and whether it is of symbols, which say what a
    size is made of; or else of one pass.

    Raises:
        PyroccamError: if it cannot be traced, or cannot run on the example.
    """
    try:
        traced = trace(net, example.given)
    except ValueError:
        with suppress(ValuesDecide):
            return *recorded(net, example), False
        raise
    runner = _Noting(traced)
    try:
        with torch.no_grad():
            runner.run(*(x.clone() for x in example.tensors))
    except Exception as error:
        raise PyroccamError(
            f"{type(net).__name__} cannot run on the example of shape {example}: "
            + str(error).partition("\n")[0]
        ) from error
    return traced.graph, runner.noted, True


def read_wiring(
    net: nn.Module, example: Example, answers: dict[str, Answer | None], doubted: str = ""
) -> Wiring:
    """The steps of ``net``, in evaluation mode.

    Arguments:
        net: a network that may be run and put into evaluation mode; its values are not changed.
        example: its inputs, as it is called.
        answers: of the same network, of operations that were asked before; it is added to.
        doubted: an operation that is not asked.

    Raises:
        PyroccamError: if it cannot be traced, or cannot run on the example.
    """
    example = example.head(ROWS)
    graph, run, symbols = _seen(net.eval(), example)
    wiring = Wiring(graph, overwritten=run.overwritten)
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    whole = _left_whole(net, graph, calls)
    ports: dict[Node, Port] = {}
    inner: dict[Node, tuple[Node, ...]] = {}
    fixed: set[Node] = set()
    rows = len(example.tensors[0])
    for node in graph.nodes:
        module = net.get_submodule(node.target) if node.op == "call_module" else None
        shape = run.shapes.get(node)
        before = dict.fromkeys(n for m in node.all_input_nodes for n in inner.get(m, ()))
        one_tensor = shape is not None and (len(shape) < 2 or shape[0] == 1 or shape[0] % rows == 0)
        operation = module is None and node.op.startswith("call_")
        if operation and node not in run.numbers and not one_tensor:
            inner[node] = (*before, node)
            continue
        if shape is not None and len(shape) > 1 and node.op != "output":
            call = Call(node, module, ports, shape, run.numbers, run.truths, fixed, tuple(before))
            step = _step(call, whole, symbols, None if call.name == doubted else answers)
            if step.passing.asked:
                wiring.asked.add(call.name)
            if step.kind == "layer":
                bare, shared = step.name in run.seen, calls[step.name] > 1
                step = replace(step, bare=bare, shared=shared)
            for one in _of_cell(step) if isinstance(module, Cell) and step.module else [step]:
                wiring.steps[one.node], ports[one.node] = one, one.port
                if one.reads is not None and not one.aligned:
                    wiring.whole.add(one.reads)
            links = step.passing.links
            if step.kind == "source" or (links and all(link.source in fixed for link in links)):
                fixed.add(node)
            if step.kind != "source":
                continue
        for one in (*before, node):
            wiring.whole |= _needed_whole(one, ports)
    alike = Counter(step.name for step in wiring.steps.values() if step.shared and step.aligned)
    for node, step in wiring.steps.items():
        if step.shared and alike[step.name] < calls[step.name]:
            wiring.steps[node] = Step(node, step.port, "source")
            wiring.whole.add(step.reads)
            whole[step.name] = AGAIN
    wiring.whole |= wiring.overwritten
    wiring.whole &= set(wiring.steps)
    wiring.reasons = _reasons(net, wiring, whole)
    return wiring


def _step(
    call: Call, whole: dict[str, str], symbols: bool, answers: dict[str, Answer | None] | None
) -> Step:
    node, module, ports, shape = call[:4]
    name = str(node.target) if module is not None else ""
    unknown = Step(node, Port(shape, 1), "source")
    if node.op in ("placeholder", "get_attr") or (name and name in whole):
        return unknown
    reads = call.only
    axis = None if module is None or reads is None else _layer_axis(module, ports[reads])
    if reads is not None and axis is not None:
        aligned = axis == ports[reads].axis
        return Step(node, Port(shape, axis), "layer", name, module, NOTHING, reads, aligned)
    found = passing(call)
    if found is None and answers is not None:
        found = asked(call, answers)
    if found is None or (found.rigid and not symbols):  # whose forward stays as it is
        return unknown
    owns = isinstance(module, (nn.GroupNorm, nn.Embedding, Heads, *NORMS)) or is_channelwise(module)
    return Step(node, Port(shape, found.axis), "passing", name, module if owns else None, found)


def _of_cell(step: Step) -> list[Step]:
    """A recurrent cell as its layers, and its units: each is made of a row of both for each gate,
    and one of the layers reads the units as they were a step before."""
    node, size, (gates, candidate) = step.node, step.port.size, GATES[step.module.kind]
    rows = torch.arange(gates * size)
    port = Port(Size((*step.port.shape[:2], len(rows))), 2)
    made, links = [], []
    for part, reads in (("ih", step.reads), ("hh", node)):
        name = f"{step.name}.{part}"
        with node.graph.inserting_before(node):
            own = node.graph.call_module(name, (reads,))
        matrix = replace(step, node=own, port=port, name=name, module=getattr(step.module, part))
        if reads is node:
            matrix = replace(matrix, reads=node, aligned=True, bare=True)
        made.append(matrix)
        links.append(Link(own, rows, rows % size))

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        # A unit begins at zero, and stays there if its candidate is zero. (A constant candidate
        # makes no constant unit, which takes its time to come there.)
        still = [values[one.node].unflatten(0, (gates, -1))[candidate] == 0 for one in made]
        nothing = torch.full((size,), math.nan, dtype=torch.double)
        return nothing.masked_fill(still[0] & still[1], 0.0)

    passing = Passing(2, links, constants)
    return [*made, replace(step, kind="passing", passing=passing, reads=None, aligned=False)]


def _layer_axis(module: nn.Module, port: Port) -> int | None:
    """The axis of features that a layer reads and makes; ``None`` if it cannot be cut."""
    last = len(port.shape) - 1
    kind = layer_kind(module)
    if kind is nn.Linear or (isinstance(module, Cell) and last == 2):
        return last
    if is_select(module):
        return selected_dim(module) % len(port.shape) or None  # never the axis of the batch
    if kind in (*CONVS, *TRANSPOSED) and isinstance(module, (*CONVS, *TRANSPOSED)):
        apart = module.groups > 1 and (kind in TRANSPOSED or is_depthwise(module))
        return None if apart or last != len(module.kernel_size) + 1 else 1
    return None


def _needed_whole(node: Node, ports: dict[Node, Port]) -> set[Node]:
    """Features that an unknown step needs whole: all it reads, but for sizes of other axes."""
    needed = set(node.all_input_nodes)
    port = ports.get(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
    sizes = (node.op, node.target) == ("call_method", "size")
    sizes |= node.target is getattr and node.args[1:] in (("shape",), ("ndim",))
    if node.target is len or (sizes and port is None):
        return set()
    if not sizes or port is None:
        return needed
    read = [n.args[1] if n.target is operator.getitem else port.axis for n in node.users]
    axes = node.args[1:] if node.op == "call_method" and len(node.args) > 1 else read
    others = all(isinstance(a, int) and a % len(port.shape) != port.axis for a in axes)
    return set() if others or node.args[1:] == ("ndim",) else needed


def _reasons(net: nn.Module, wiring: Wiring, whole: dict[str, str]) -> dict[str, str]:
    """Why modules that are no steps are left whole."""
    cut = {step.name for step in wiring.steps.values()} - {""}
    called = {node.target for node in wiring.graph.nodes if node.op == "call_module"}
    reasons = {}
    for name, module in net.named_modules():
        if name in cut or not (name in called or isinstance(module, LAYERS)):
            continue
        if name in whole:
            reasons[name] = whole[name]
        elif name not in called:
            other = layer_kind(module) is None
            reasons[name] = (
                "its forward is another one" if other else "it is no step of its own in forward"
            )
        elif any(True for _ in module.parameters()):
            reasons[name] = f"{type(module).__name__} is left whole"
    return reasons


def _left_whole(net: nn.Module, graph: Graph, calls: Counter[str]) -> dict[str, str]:
    """The modules that must not be cut whatever their place, with the reason."""
    direct = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    homes = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    names = Counter(id(m) for _, m in net.named_modules(remove_duplicate=False))
    reasons = {}
    for name, module in net.named_modules(remove_duplicate=False):
        own = list(module.parameters(recurse=isinstance(module, Cell)))
        kept = bool(own) or is_select(module)
        layer = layer_kind(module) not in (None, nn.Embedding) and not is_depthwise(module)
        if module is net and layer_kind(module) is not None:
            reasons[name] = "it is the whole network (in an nn.Sequential it can be cut)"
        elif module._forward_hooks or module._forward_pre_hooks:
            reasons[name] = "it has forward hooks"
        elif kept and (names[id(module)] > 1 or (calls[name] > 1 and not layer)):
            reasons[name] = AGAIN
        elif any(homes[id(p)] > 1 for p in own):
            reasons[name] = "it shares its parameters with another module"
        elif kept and name in direct:
            reasons[name] = "forward uses its parameters directly"
    return reasons
