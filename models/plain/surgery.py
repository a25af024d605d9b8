"""Carry out a list of cuts on a plain network: smaller modules in the places of the old ones.

What to cut is decided elsewhere (:func:`pyroccam.inference.cutting.surgery`). The list is plain
data, so it can be stored as JSON beside the weights and the small network rebuilt without pickled
code.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ...data import PyroccamError
from ..networks import OrientedEdges
from ..unpacked import AttentionWeights, Cell, Heads, Matrix, refuse_pretrained
from .feature_choice import fills_zeros, is_select, select, selected_dim
from .layer_kinds import CONVS, TRANSPOSED, layer_kind
from .norms import NORMS, PaddedLayerNorm, narrowed_norm
from .tracing import plain_default, traced

# Again: by the exact types a checker knows what an instance has.
_LAYERS = (nn.Linear, *CONVS, *TRANSPOSED, nn.Embedding, Matrix)
_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
CHANNELWISE: tuple[type[nn.Module], ...] = (*_NORMS, nn.PReLU)
"""Modules, of a subclass, too, that keep channels apart."""


@dataclass(frozen=True)
class Edit:
    """The rest of one module; ``None`` leaves that side as it is.

    Arguments:
        outputs: rows, filters or channels that are kept.
        inputs: columns or input channels that are kept; of a normalisation over features those
            or that are zero, where it goes over no others; or else all that go are zero.
        select: a choice of inputs with this index (:func:`~.feature_choice.select`) goes in front;
            for such a choice, its new index.
        bias: give the module a bias if it has none.
        place: a choice of outputs with this index goes behind, where the position behind the last
            is a zero.
    """

    outputs: list[int] | None = None
    inputs: list[int] | None = None
    select: list[int] | None = None
    bias: bool = False
    place: list[int] | None = None

    def in_groups(self, rows: int, each: int, groups: int) -> tuple[Tensor, Tensor, int]:
        """Of a convolution with groups the rows of its weight that are kept, ``(O,)``, of each the
        columns, ``(O, I)``, and how many groups are left.

        Arguments:
            rows, each: of its weight, and columns of it.
        """
        outputs = torch.arange(rows) if self.outputs is None else torch.tensor(self.outputs)
        inputs = torch.arange(each * groups) if self.inputs is None else torch.tensor(self.inputs)
        left, owner = (outputs // (rows // groups)).unique(return_inverse=True)
        columns = inputs[torch.isin(inputs // each, left)].view(len(left), -1) % each
        return outputs, columns[owner], len(left)


@dataclass(frozen=True)
class Plan:
    """All cuts of one network.

    Arguments:
        edits: by the names of the modules.
        reshapes: new sizes, ``(axis, size)``, for reshaping calls whose size is written into
            ``forward``, such as ``x.view(-1, 800)``, by the names of the graph's nodes.
        inputs: what ``forward`` is called with, see :func:`trace`.
    """

    edits: dict[str, Edit] = field(default_factory=dict)
    reshapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    inputs: int | tuple[str, ...] = 1


_STEPS = (Heads, AttentionWeights, Cell, OrientedEdges, PaddedLayerNorm, *_NORMS)


class _Tracer(fx.Tracer):
    # A choice of inputs stays one step, so that a cut network can be cut again; what is between the
    # linear layers of attention and recurrent layers is one, as is any normalisation.
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        one = is_select(m) or isinstance(m, _STEPS)
        one |= layer_kind(m) is not None
        return one or super().is_leaf_module(m, module_qualified_name)


def is_leaf(module: nn.Module) -> bool:
    """True for a module that is a single step."""
    return _Tracer().is_leaf_module(module, "")


def trace(net: nn.Module, inputs: int | tuple[str, ...] = 1) -> fx.GraphModule:
    """A network as a graph, with torch's own modules and choices of inputs as single steps.

    It has the modules of ``net``, and the constants that ``forward`` makes; ``net`` has those no
    more than before.

    Arguments:
        inputs: how many tensors ``forward`` is called with, or the names of those arguments. Its
            other parameters keep their defaults, where these are numbers, texts or ``None``, and
            are none of the graph.
    """
    takes = inspect.signature(net.forward).parameters
    own = [*takes][:inputs] if isinstance(inputs, int) else inputs
    defaults = {n: one.default for n, one in takes.items() if n not in own and plain_default(one)}
    try:
        graph, constants = traced(_Tracer(), net, defaults)
        graph._tracer_cls = fx.Tracer  # a class by which it would be unpickled
    except Exception as error:  # whatever the person's forward raises on a symbolic input
        raise PyroccamError(
            f"{type(net).__name__} cannot be traced by torch.fx ({type(error).__name__}: {error})",
            "a forward without `if`, `for`, int(x) or x.item() over tensors",
        ) from error
    try:
        vars(net).update(constants)
        return fx.GraphModule(net, graph, type(net).__name__)
    finally:
        for name in constants:
            del vars(net)[name]


def output_dim(layer: nn.Module) -> int:
    """The dim of its weight along which the outputs of a layer run; its inputs, of an embedding the
    ids, run along the other of the first two."""
    return int(isinstance(layer, (*TRANSPOSED, nn.Embedding)))


def rows_first(layer: nn.Module) -> Tensor:
    """The weight of a layer as ``(O, I, *kernel)``, a view; with groups, of a convolution that is
    not transposed, ``(O, I / groups, *kernel)``."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.transpose(0, output_dim(layer))


def shrink(net: nn.Module, plan: Plan) -> nn.Module:
    """A smaller copy of ``net`` with the weights that stay.

    It has the class of ``net``, unless ``plan.reshapes`` asks for another forward: then it is a
    :class:`torch.fx.GraphModule` traced in evaluation mode, without the parameters of ``forward``
    that keep their defaults.
    """
    small = copy.deepcopy(net)
    graphed = trace(small.eval(), plan.inputs) if plan.reshapes else None
    small = small if graphed is None else graphed
    for name, edit in plan.edits.items():
        try:
            module = small.get_submodule(name)
            new = shrunk(module, edit)
        except (AttributeError, IndexError, TypeError) as error:
            found = f"cuts of {type(net).__name__} at {name!r} ({error})"
            raise PyroccamError(found, "the network before it was cut") from error
        small.set_submodule(name, new)
    if plan.edits:
        refuse_pretrained(small)
    if graphed is None:
        return small
    nodes = {node.name: node for node in graphed.graph.nodes}
    for name, new_size in plan.reshapes.items():
        if name not in nodes:
            raise PyroccamError(f"The forward of {type(net).__name__} has no step {name!r} to cut.")
        nodes[name].args = resized(nodes[name].args, *new_size)
    graphed.recompile()
    return graphed


def shrunk(module: nn.Module, edit: Edit) -> nn.Module:
    """A smaller copy of a module."""
    if is_select(module):
        assert edit.select is not None
        made = select(edit.select, selected_dim(module), fills_zeros(module))
        return made.to(module.index.device)
    new = copy.deepcopy(module)
    if isinstance(new, Heads):
        new.query_sizes = _sizes_left(new.query_sizes, edit.inputs)
        new.value_sizes = _sizes_left(new.value_sizes, edit.outputs)
        return new
    if isinstance(new, Cell):
        new.set_submodule("hh", shrunk(new.hh, Edit(bias=edit.bias)))
        return _between(new, edit, -1, -1)
    if isinstance(new, NORMS):
        return new if edit.outputs is None else narrowed_norm(new, edit.outputs, edit.inputs)
    if isinstance(new, nn.GroupNorm):
        each = new.num_channels // new.num_groups
        for name in ("weight", "bias"):
            _keep(new, name, 0, edit.outputs)
        new.num_channels = new.num_channels if edit.outputs is None else len(edit.outputs)
        new.num_groups = new.num_channels // each
        return new
    if isinstance(new, nn.PReLU):
        _keep(new, "weight", 0, edit.outputs)
        new.num_parameters = len(new.weight)
        return new
    if isinstance(new, _NORMS):
        for name in ("weight", "bias", "running_mean", "running_var"):
            _keep(new, name, 0, edit.outputs)
        new.num_features = new.num_features if edit.outputs is None else len(edit.outputs)
        return new
    if not isinstance(new, _LAYERS):
        raise PyroccamError(f"a {type(module).__name__} cannot be cut")
    weight, rows_along = new.weight, output_dim(new)
    if isinstance(new, nn.Embedding):
        _keep(new, "weight", 1, edit.outputs)
        new.embedding_dim = new.weight.shape[1]
        return new
    if edit.bias and new.bias is None:
        rows = weight.shape[rows_along]
        zeros = torch.zeros(rows, dtype=weight.dtype, device=weight.device)
        new.bias = nn.Parameter(zeros, requires_grad=weight.requires_grad)
    _keep(new, "bias", 0, edit.outputs)
    if (groups := getattr(new, "groups", 1)) > 1:
        outputs, inputs, groups = edit.in_groups(len(weight), weight.shape[1], groups)
        weight = weight.detach()[outputs[:, None], inputs]
        new.weight = nn.Parameter(weight, requires_grad=new.weight.requires_grad)
    else:
        _keep(new, "weight", rows_along, edit.outputs)
        _keep(new, "weight", 1 - rows_along, edit.inputs)
    rows, columns = rows_first(new).shape[:2]
    if isinstance(new, nn.Linear):
        new.out_features, new.in_features = rows, columns
    else:
        new.out_channels = rows
        new.groups, new.in_channels = groups, columns * groups
    if isinstance(new, nn.Linear):
        return _between(new, edit, -1, -1)
    return _between(new, edit, 1, 1 - new.weight.dim())


def _between(module: nn.Module, edit: Edit, before: int, after: int) -> nn.Module:
    """A module with the choices that stand around it, along these axes."""
    front = [] if edit.select is None else [select(edit.select, before)]
    back = [] if edit.place is None else [select(edit.place, after, zeros=True)]
    if not front and not back:
        return module
    device = next(module.parameters()).device
    parts = (part.to(device) for part in (*front, module, *back))
    return nn.Sequential(*parts).train(module.training)


def _sizes_left(sizes: list[int], kept: list[int] | None) -> list[int]:
    """How many of each block of features are left."""
    if kept is None:
        return sizes
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))[kept]
    return owner.bincount(minlength=len(sizes)).tolist()


def _keep(module: nn.Module, name: str, dim: int, kept: list[int] | None) -> None:
    tensor: Tensor | None = getattr(module, name)
    if tensor is None or kept is None:
        return
    index = torch.tensor(kept, dtype=torch.long, device=tensor.device)
    part = tensor.detach().index_select(dim, index)
    if isinstance(tensor, nn.Parameter):
        part = nn.Parameter(part, requires_grad=tensor.requires_grad)
    setattr(module, name, part)


def resized(args: tuple[Any, ...], axis: int, size: int) -> tuple[Any, ...]:
    """Arguments of a reshaping call that gives another size along an axis."""
    sizes = args[1:] if len(args) > 2 else args[1]
    return args[0], (*sizes[:axis], size, *sizes[axis + 1 :])
