"""Units of a recurrent cell: which stay zero, and which the others need."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.unpacked import GATES, Cell


def connections(cell: Cell) -> tuple[Tensor, Tensor]:
    """Weights of inputs ``(units, inputs, gates)`` and of units ``(units, units, gates)``, in
    double precision."""
    gates = GATES[cell.kind][0]
    found = []
    for matrix in (cell.ih, cell.hh):
        weight = matrix.weight.detach().cpu().to(torch.double, copy=True)
        found.append(weight.unflatten(0, (gates, -1)).permute(1, 2, 0))
    return found[0], found[1]


def constant_bias(cell: Cell, known: Tensor) -> Tensor:
    """``(gates * units,)``, the bias of the inputs with all constants taken in.

    Arguments:
        known: ``(inputs,)``, constants, NaN for all other inputs.
    """
    weight = cell.ih.weight.detach().cpu().double()
    own = torch.zeros(len(weight)).double() if cell.ih.bias is None else cell.ih.bias
    return own.detach().cpu().double() + weight @ known.nan_to_num(0.0)


def silent(cell: Cell, known: Tensor) -> Tensor:
    """``(units,)`` bool: the units that are zero at every step.

    A unit begins at zero, and stays there if its candidate is zero: if that has no bias, no input
    that varies, and no unit that is not silent itself. (A constant candidate does not make a
    constant unit, which takes its time to come there.)

    Arguments:
        known: as for :func:`constant_bias`.
    """
    inputs, units = connections(cell)
    candidate = GATES[cell.kind][1]
    still = ~(inputs[:, known.isnan(), candidate] != 0).any(1)
    biases = [constant_bias(cell, known)]
    if cell.hh.bias is not None:
        biases.append(cell.hh.bias.detach().cpu().double())
    for bias in biases:
        still &= bias.unflatten(0, (-1, len(still)))[candidate] == 0
    return ~reached(units[:, :, candidate].T != 0, ~still)


def needed(cell: Cell, read: Tensor, still: Tensor) -> Tensor:
    """``(units,)`` bool: the units that are read, and those that these read at the step before.

    Arguments:
        read: ``(units,)``, by whatever comes after the cell.
        still: of :func:`silent`, which nobody needs.
    """
    reads = (connections(cell)[1] != 0).any(2)
    return reached(reads & ~still, read & ~still)


def reached(leads: Tensor, start: Tensor) -> Tensor:
    """``(units,)`` bool: some units, and all that these lead to, ``(from, to)``, at any step."""
    while not torch.equal(more := start | leads[start].any(0), start):
        start = more
    return start
