"""Parameters of one or several networks in one tensor, moved by an optimiser in one operation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_CHANNELS_LAST = (0, 2, 3, 1)


def difference(one: nn.Module, other: nn.Module) -> str | None:
    """Why two networks cannot be stepped together: what differs beside values, or is shared."""
    ours = [*one.named_parameters(), *one.named_buffers()]
    theirs = [*other.named_parameters(), *other.named_buffers()]
    if (a := [name for name, _ in ours]) != (b := [name for name, _ in theirs]):
        odd = sorted({*a} ^ {*b})
        return f"only one of them has {odd[0]!r}" if odd else "their tensors are in another order"
    for (name, p), (_, q) in zip(ours, theirs, strict=True):
        if p is q:
            return f"they share {name!r} (give each a copy.deepcopy)"
        for what in ("shape", "dtype", "device", "requires_grad"):
            a, b = getattr(p, what), getattr(q, what)
            if a != b:
                return f"{what} of {name!r} is {a} in one and {b} in another"
    return None


@dataclass(frozen=True)
class Slot:
    """Place of one parameter in a row.

    Attributes:
        start, stop: in the row.
        shape: of the parameter.
        last: whether it is stored with its channels last (O, H, W, I).
    """

    start: int
    stop: int
    shape: torch.Size
    last: bool

    def view(self, rows: Tensor) -> Tensor:
        """The parameter as a view of ``(*K, P)`` rows: ``(*K, *shape)``."""
        part = rows[..., self.start : self.stop]
        if not self.last:
            return part.unflatten(-1, self.shape) if self.shape else part.squeeze(-1)
        stored = part.unflatten(-1, [self.shape[i] for i in _CHANNELS_LAST])
        return stored.movedim(-1, -3)

    def flatten(self, value: Tensor) -> Tensor:
        """``(*shape)`` to the order in which it is stored, ``(stop - start,)``."""
        return (value.permute(_CHANNELS_LAST) if self.last else value).reshape(-1)


class FlatParameters:
    """Corresponding parameters of K networks as the rows of one ``(K, P)`` tensor.

    The parameters stay what they are, in their modules, but become views of their row: what moves
    the one moves the other, and nothing is ever copied between them. Their gradients are views of
    one tensor too. One fused operation then updates all of them, for all K networks.

    Arguments:
        networks: K lists of parameters that correspond, of one dtype and on one device.
    """

    def __init__(self, networks: Sequence[Sequence[nn.Parameter]]) -> None:
        self.members = [list(one) for one in networks]
        self.slots: list[Slot] = []
        start = 0
        for p in self.members[0]:
            last = p.dim() == 4 and not p.is_contiguous()
            self.slots.append(Slot(start, start + p.numel(), p.shape, last))
            start += p.numel()
        with torch.no_grad():
            rows = torch.stack([self._row(one) for one in self.members])
        # What the optimiser sees; its gradient is always there, ``(K, P)``.
        self.parameter = nn.Parameter(rows)
        self.grad = torch.zeros_like(rows)
        self.parameter.grad = self.grad
        for k, one in enumerate(self.members):
            for slot, p in zip(self.slots, one, strict=True):
                p.data = slot.view(rows[k])
                p.grad = slot.view(self.grad[k])

    def _row(self, values: Sequence[Tensor]) -> Tensor:
        return torch.cat(
            [slot.flatten(v.detach()) for slot, v in zip(self.slots, values, strict=True)]
        )

    def views(self) -> list[Tensor]:
        """Every parameter for all K networks at once, ``(K, *shape)``, without gradient."""
        return [slot.view(self.parameter.detach()) for slot in self.slots]

    def flat(self, values: Sequence[Tensor]) -> Tensor:
        """Values for each parameter, ``(*shape)``, as one row ``(P,)`` (traceable)."""
        return torch.cat([s.flatten(v) for s, v in zip(self.slots, values, strict=True)])

    def nonzero(self) -> Tensor:
        """Which numbers are not zero, or of parameters of one dimension at most, ``(K, P)``."""
        each = [[(p != 0) | (p.dim() < 2) for p in one] for one in self.members]
        return torch.stack([self.flat(one) for one in each])

    def release(self) -> None:
        """Give every parameter storage of its own again, and no gradient."""
        for p in itertools.chain(*self.members):
            p.grad = None
            p.data = p.data.clone(memory_format=torch.preserve_format)
