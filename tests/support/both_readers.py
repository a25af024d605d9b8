"""Packed files read twice: by the package, and by the module that can be copied."""

from pathlib import Path

import torch
from pyroccam import inference
from pyroccam.inference.coding.decode_pocc import decode
from pyroccam.models.plain.named_tensors import attribute

MOST = 10**6  # numbers: Python decodes a million in seconds


def read(path, **how):
    """What ``inference.load`` gives: its tensors must be those of the other, bit for bit."""
    net = inference.load(path, **how)
    if sum(tensor.numel() for tensor in net.state_dict().values()) <= MOST:
        tensors = decode(Path(path).read_bytes())
        assert tensors
        for name, tensor in tensors.items():
            mine = attribute(net, name).detach()
            assert mine.dtype == tensor.dtype, name
            assert mine.shape == tensor.shape, name
            one, two = (t.contiguous().flatten().view(torch.uint8) for t in (mine, tensor))
            assert torch.equal(one, two), name
    return net
