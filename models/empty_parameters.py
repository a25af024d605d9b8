"""Networks whose parameters have no values yet."""

from __future__ import annotations

import itertools

from torch import nn
from torch.nn.parameter import is_lazy

__all__ = ["refuse_without_values"]


def refuse_without_values(net: nn.Module) -> None:
    """Refuse a network of which a parameter or buffer is not made yet, or has no memory.

    Raises:
        ValueError: naming it.
    """
    for name, t in itertools.chain(net.named_parameters(), net.named_buffers()):
        if is_lazy(t):
            raise ValueError(
                f"{name!r} of the network has no shape yet: pass a batch through the network first "
                "(net(x)), which its lazy modules wait for."
            )
        if t.is_meta:
            raise ValueError(
                f"{name!r} of the network has no values, it is on the device meta: make the "
                "network on the cpu, or give it memory and values (net.to_empty, load_state_dict)."
            )
