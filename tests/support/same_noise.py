"""The same random numbers on every device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


def _on_cpu(value):
    if isinstance(value, torch.Tensor):
        return value.cpu()
    return torch.device("cpu") if isinstance(value, torch.device) else value


class SameNoise(TorchDispatchMode):
    """Draws on the CPU whatever is random, and moves it to where it is wanted."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # An LSTM of CUDA alone is tagged, for dropout between its layers.
        if torch.Tag.nondeterministic_seeded not in op.tags or "cudnn_rnn" in op.name():
            return op(*args, **kwargs)
        placed = [t.device for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        device = kwargs.get("device") or (placed or [torch.device("cpu")])[0]
        found = op(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
        if op._schema.is_mutable:
            return args[0].copy_(found)
        return tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, found)
