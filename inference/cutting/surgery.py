"""Cut groups out of a plain network: smaller, faster, and the same function as with zeros.

torch-pruning does not keep the function: it takes a whole channel for one unit behind a flatten,
and treats whatever it does not know as acting on every unit alone. So operations are asked
(:mod:`.asking`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...data import Count, NetworkError, PyroccamError, checked
from ...models import feed_like
from ...models.plain import NORMS, Edit, Plan, is_select, rows_first, shrink
from ...models.unpacked import Heads, Matrix
from .asking import Answer
from .cost import count_parameters
from .liveness import Live, find_live, why_zeros_stay
from .masks import Mask, keep_groups, masked
from .recording import Example, Inputs
from .report import CutReport, LayerCut
from .wiring import Step, Wiring, read_wiring

ROWS = 64
"""Rows of the data on which a cut network is compared with the whole one."""

PLACE = 16
"""Multiplications that take as long as to put one number into its place."""


class Cut(NamedTuple):
    """A smaller network, and what was taken away."""

    net: nn.Module
    report: CutReport


@checked
def cut(
    net: nn.Module,
    example: Inputs,
    masks: Mapping[str, Mask] | None = None,
    exact: bool = True,
    round_to: Count = 1,
) -> Cut:
    """A smaller network that computes what ``net`` computes with the masked groups at zero.

    Everything that dies of it goes too: units that nobody reads, what only fed them, units that
    became constant (they move into the next bias, or into one constant channel if a convolution
    with a border of zeros comes next). Where zeros have to be there, for a residual sum or an
    operation on all features, they are put into their places behind the layer, if that takes less
    time than it saves; or else they are left. The two networks agree in evaluation mode; that is
    checked on the example.

    Arguments:
        net: a plain network that torch.fx can trace, or whose path does not depend on values; it is
            not changed.
        example: inputs as the network is called with, ``(B, ...)``, a tuple or dict of several, or
            rows of the table that it is fed with. On their values the result is checked, so rows of
            the data serve best, and :data:`ROWS` of them will do.
        masks: by the names of the layers. Without any, only what is dead already is cut.
        exact: keep what moves the mean or variance of a normalisation over features, though it is
            read nowhere else. What is left without is another function, which is to be trained.
        round_to: keep as many features of each tensor as a multiple of this number, or all, the
            others of them as zeros: shapes that hardware and files like.

    Returns:
        The network in evaluation mode, and a report. The network has the class of ``net``, with
        smaller modules in it; if ``forward`` flattens to a size written into it
        (``x.view(-1, 800)``), it is a :class:`torch.fx.GraphModule`.

    Raises:
        PyroccamError: for masks that do not fit, or leave no path from input to output; if the
            network cannot be traced.
        NetworkError: if the result is not the masked network after all; then ``forward`` does
            something that its trace does not show.
    """
    examples = Example.of(net, example)
    zeroed = masked(net, masks or {}).eval()
    answers: dict[str, Answer | None] = {}
    wiring = read_wiring(zeroed, examples, answers)
    try:
        return _cut(net, zeroed, examples, wiring, exact, round_to, around=round_to == 1)
    except RuntimeError as error:  # layers are looked at, or an operation is not what it said
        failed = error
    for doubted in ("", *sorted(wiring.asked)):
        with suppress(RuntimeError):
            again = read_wiring(zeroed, examples, answers, doubted)
            around = doubted != "" and round_to == 1
            return _cut(net, zeroed, examples, again, exact, round_to, around)
    raise failed


def _cut(
    net: nn.Module, zeroed: nn.Module, examples: Example, wiring: Wiring, exact: bool,
    round_to: int, around: bool,
) -> Cut:  # fmt: skip
    for node, step in wiring.steps.items():
        passing = step.passing if exact else replace(step.passing, whole=None)
        wiring.steps[node] = replace(step, bare=step.bare or not around, passing=passing)
    live = find_live(wiring, round_to)
    still = {node for node, values in live.values.items() if not values.isnan().any()}
    if still.issuperset(wiring.graph.output_node().all_input_nodes):
        stopped = next((step.name for step in wiring.layers() if step.node in still), "")
        raise PyroccamError(
            f"No path is left from the input of {type(net).__name__} to its output: at layer "
            f"{stopped!r} nothing that is kept is fed"
        )
    plan = _plan(wiring, live, examples.given)
    small = feed_like(shrink(zeroed, plan), zeroed).eval()
    for step in wiring.layers():
        _settle(step, live, plan, small)
    _compare(zeroed, small, examples, exact)
    report = CutReport(
        layers={
            step.name: LayerCut.of(step.module, plan.edits.get(step.name, Edit()))
            for step in wiring.layers()
        },
        left_whole=dict(wiring.reasons),
        zeros=why_zeros_stay(wiring, live, plan.edits),
        parameters_before=count_parameters(net),
        parameters_after=count_parameters(small),
    )
    return Cut(small, report)


def inside(net: nn.Module, name: str) -> str:
    """Name of a layer in a cut network: it, or the cell it is in, may stand between choices of
    inputs and of outputs."""
    cell, _, own = name.rpartition(".")
    if cell and not hasattr(net.get_submodule(cell), own):
        return f"{inside(net, cell)}.{own}"
    around = net.get_submodule(name)
    if not isinstance(around, nn.Sequential):
        return name
    return f"{name}.{next(key for key, part in around.named_children() if not is_select(part))}"


def _plan(wiring: Wiring, live: Live, takes: int | tuple[str, ...]) -> Plan:
    edits, cells, reshapes = {}, {}, {}
    for node, step in wiring.steps.items():
        there = live.there[node]
        if step.passing.rigid and not there.all():
            reshapes[node.name] = step.port.axis, int(there.sum())
        if step.module is None:
            continue
        edit = _edit(step, live)
        if isinstance(step.module, Matrix) and (edit.bias or edit.select is not None):
            # A choice stands before its cell, which has a bias in both layers, or in none.
            cells[step.name.rpartition(".")[0]] = Edit(select=edit.select, bias=edit.bias)
            edit = replace(edit, select=None)
        if edit != Edit():
            edits[step.name] = edit
    return Plan(edits | cells, reshapes, takes)


def _edit(step: Step, live: Live) -> Edit:
    """What is left of the module of a step."""
    there = live.there[step.node]
    if isinstance(step.module, NORMS):
        zero = live.values[step.passing.links[0].source] == 0
        seen = (there | zero).nonzero()[:, 0].tolist()
        return Edit(left := _left(there), None if left is None or step.passing.whole else seen)
    if step.kind == "passing":
        heads = isinstance(step.module, Heads)
        queries = _left(live.there[step.passing.mixed[0].source]) if heads else None
        return Edit(_left(there), queries, bias=_wants_bias(step, live))
    given = live.there[step.reads] if step.aligned else torch.ones(step.width).bool()
    place = given.cumsum(0) - given.long()  # where each input now stands
    if is_select(step.module):
        # What is there but unused may point at what is gone: anything else will do.
        new = step.chosen(place, float(given.sum())) * step.chosen(given, True)
        new = new[there]
        same = torch.equal(new, step.module.index.cpu())
        return Edit(select=None if same else new.tolist())
    reads = _columns(step, live, given)
    kept = _rows(step, live, reads)
    if step.groups > 1:
        left = kept.unflatten(0, (step.groups, -1)).any(1)
        kept, reads = _evened(kept, there, left), _evened(reads, given, left)
    select = None if torch.equal(reads, given) else torch.where(given, place, 0)[reads].tolist()
    edit = Edit(_left(kept), _left(reads), select, _wants_bias(step, live))
    if torch.equal(kept, there):
        return edit
    position = torch.where(kept, kept.cumsum(0) - 1, kept.sum())
    return replace(edit, place=position[there].tolist())


def _left(mask: Tensor) -> list[int] | None:
    return None if mask.all() else mask.nonzero()[:, 0].tolist()


def _evened(kept: Tensor, first: Tensor, left: Tensor) -> Tensor:
    """What a convolution keeps if it keeps as much in each group that is ``left``, ``(groups,)``:
    further features, the ``first`` before others, are of zeros."""
    each, others = (mask.unflatten(0, (len(left), -1)) for mask in (kept, first))
    most = max(1, int(each[left].sum(1).max()))
    order = (2 * each.long() + others).argsort(dim=1, descending=True, stable=True)
    return (torch.zeros_like(each).scatter(1, order[:, :most], True) & left[:, None]).flatten()


def _rows(step: Step, live: Live, reads: Tensor) -> Tensor:
    """The outputs that a layer keeps. Zeros that have to be there are put into their places behind
    it, where that costs less than it saves."""
    rows, there = live.rows[step.name], live.there[step.node]
    zero = there & (~live.used[step.node] | (rows.constant == 0))
    if step.bare or isinstance(step.module, Matrix):
        return there
    each = int(reads.sum()) // step.groups * rows_first(step.module)[0, 0].numel()
    if each * int(zero.sum()) < PLACE * int(there.sum()):
        return there
    kept = there & ~zero
    return kept if kept.any() else torch.arange(len(there)) == int(there.long().argmax())


def _columns(step: Step, live: Live, given: Tensor) -> Tensor:
    """The inputs that a layer keeps; at least one, since no layer can be without."""
    reads = given if step.bare else live.rows[step.name].reads
    if reads.any():
        return reads
    return torch.arange(len(given)) == int(given.long().argmax())


def _wants_bias(step: Step, live: Live) -> bool:
    """True if constants have to be added to a layer that has no bias."""
    if step.name not in live.rows or getattr(step.module, "bias", None) is not None:
        return False
    return bool((_final_bias(step, live) != 0).any())


def _final_bias(step: Step, live: Live) -> Tensor:
    """``(O,)``: its own bias with all constants, zero for outputs that nobody uses."""
    rows, used = live.rows[step.name], live.used[step.node]
    bias = torch.where(rows.constant.isnan(), rows.bias, rows.constant)
    return torch.where(used, bias, 0.0)


@torch.no_grad()
def _settle(step: Step, live: Live, plan: Plan, small: nn.Module) -> None:
    """Write the constants into the bias and zeros into the rows that only fill a place."""
    edit = plan.edits.get(step.name, Edit())
    layer = small.get_submodule(inside(small, step.name))
    weight, bias = rows_first(layer), getattr(layer, "bias", None)
    rows = live.rows[step.name]
    left = slice(None) if edit.outputs is None else torch.tensor(edit.outputs)
    if rows.merged is not None and rows.reads[rows.merged[0]]:
        column = int(rows.reads[: rows.merged[0]].sum())
        weight[:, column] = rows.merged[1][left].view_as(weight[:, column]).to(weight)
    varies = live.used[step.node] & rows.constant.isnan()
    read = None
    if step.kind == "layer":  # a column that only fills a place may have weights that cancelled
        read = rows.reads if edit.inputs is None else rows.reads[torch.tensor(edit.inputs)]
    keep_groups(layer, read, varies[left])
    if isinstance(bias, Tensor):
        bias.copy_(_final_bias(step, live)[left])


def _compare(zeroed: nn.Module, small: nn.Module, example: Example, exact: bool) -> None:
    """Compare outputs, for what a trace does not show (``+=`` on a tensor that is read again).

    Raises:
        NetworkError: where the outputs differ, in evaluation mode, on the examples or near them.
    """
    try:
        with torch.no_grad():
            for inputs in (example, example.near(), example.near(10.0)):
                expected, found = (tree_leaves(inputs.call(net)) for net in (zeroed, small))
                for a, b in zip(expected, found, strict=True):
                    if isinstance(a, Tensor) and a.is_floating_point():
                        _require_alike(a, b, exact)
    except Exception as error:  # shapes that no longer fit, too
        raise NetworkError(
            f"{type(zeroed).__name__} cannot be cut: torch.fx does not see all of its forward "
            f"({error}). Avoid += on tensors that are read again, sizes of layers, and isinstance "
            "of layers."
        ) from error


def _require_alike(a: Tensor, b: Tensor, exact: bool) -> None:
    """Refuse outputs ``b`` that differ from what is expected, ``a``, or only of another shape.

    Row by row: in the shade of one that is very large, the others could be anything.
    """
    if a.shape != b.shape:
        raise ValueError(f"its output has shape {tuple(b.shape)}, expected {tuple(a.shape)}")
    if not exact or not a.numel():
        return
    # Loose, because other shapes are summed in another order, and on CUDA in another format.
    loose = torch.finfo(a.dtype).eps ** 0.5 * (10 if a.is_cuda else 1)
    rows = a.detach().double().reshape(len(a) if a.dim() else 1, -1)
    others = b.detach().double().reshape(rows.shape)
    error = torch.where(rows == others, 0.0, others - rows).abs()  # infinities may be equal
    size = rows.nan_to_num().square().mean(1, keepdim=True).sqrt()
    usual = size.median() if size.median() > 0 else size.mean()
    scale = (size + usual).clamp_min(torch.finfo(a.dtype).tiny)
    error = error.masked_fill(rows.isnan() & others.isnan(), 0.0) / scale
    if not (error <= loose).all():
        worst = int(error.nan_to_num(math.inf).amax(1).argmax())
        raise ValueError(
            f"the outputs of row {worst}, of size {float(size[worst]):.3g}, differ by "
            f"{float(error[worst].max() * scale[worst]):.3g}"
        )
