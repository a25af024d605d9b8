"""Parameters of networks as rows of one tensor."""

import copy
import pickle

import pytest
import torch
from pyroccam.inference.training.flat_parameters import FlatParameters, difference
from torch import nn


class Mixture(nn.Module):
    """Parameters of all kinds of shape and memory layout."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.scalar = nn.Parameter(torch.randn(()))
        self.vector = nn.Parameter(torch.randn(3))
        self.matrix = nn.Parameter(torch.randn(2, 5).t())  # not contiguous
        self.conv = nn.Conv2d(3, 4, (2, 3)).to(memory_format=torch.channels_last)
        self.point = nn.Conv2d(3, 2, 1).to(memory_format=torch.channels_last)
        self.volume = nn.Conv3d(2, 2, 2).to(memory_format=torch.channels_last_3d)
        self.empty = nn.Parameter(torch.zeros(0, 4))


def networks(count=3):
    return [Mixture(seed) for seed in range(count)]


def flat_of(found):
    return FlatParameters([list(one.parameters()) for one in found])


def owns(t):
    """Whether a tensor has a storage that holds nothing else."""
    return t.untyped_storage().nbytes() == t.numel() * t.element_size()


def test_parameters_keep_their_values_layout_and_identity():
    found = networks()
    before = [copy.deepcopy(dict(one.named_parameters())) for one in found]
    same = [list(one.parameters()) for one in found]
    flat = flat_of(found)
    assert flat.parameter.shape == (3, sum(p.numel() for p in found[0].parameters()))
    for one, kept, objects in zip(found, before, same, strict=True):
        assert all(p is q for p, q in zip(one.parameters(), objects, strict=True))
        for name, p in one.named_parameters():
            assert torch.equal(p, kept[name])
            assert p.requires_grad
        assert one.conv.weight.is_contiguous(memory_format=torch.channels_last)
    for k, one in enumerate(found):
        row = flat.flat([p.detach().contiguous() for p in one.parameters()])
        assert torch.equal(row, flat.parameter.detach()[k])


def test_released_parameters_own_their_memory():
    found = networks()
    found[0].vector.requires_grad_(False)
    before = [copy.deepcopy(one.state_dict()) for one in found]
    flat = flat_of(found)
    strides = [p.stride() for p in found[0].parameters()]
    flat.release()
    with torch.no_grad():
        flat.parameter.fill_(7.0)
    for one, kept in zip(found, before, strict=True):
        for name, p in one.named_parameters():
            assert torch.equal(p, kept[name])
            assert owns(p)
            assert p.grad is None
            assert p.requires_grad == (one is not found[0] or name != "vector")
    assert [p.stride() for p in found[0].parameters()] == strides
    again = pickle.loads(pickle.dumps(found[0]))
    for p, q in zip(again.parameters(), found[0].parameters(), strict=True):
        assert torch.equal(p, q)


# -- what may differ --------------------------------------------------------------------------


def shared_buffer(one, other):
    one.register_buffer("b", torch.zeros(1))
    other.register_buffer("b", one.b)


CHANGES = {  # what makes two networks differ, and what is said of it
    "nothing": (lambda one, other: None, None),
    "dtype": (lambda one, other: other.conv.double(), "dtype of 'conv.weight'"),
    "frozen": (lambda one, other: other.vector.requires_grad_(False), "requires_grad of 'vector'"),
    "shape": (lambda one, other: setattr(other, "conv", nn.Conv2d(3, 4, 2)), "'conv.weight'"),
    "layer": (lambda one, other: setattr(other, "extra", nn.Linear(1, 1)), "'extra.bias'"),
    "shared": (lambda one, other: setattr(other, "vector", one.vector), "share 'vector'"),
    "shared buffer": (shared_buffer, "they share 'b'"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_keeps_two_networks_apart(what):
    one, other = networks(2)
    change, said = CHANGES[what]
    change(one, other)
    found = difference(one, other)
    assert found is None if said is None else said in found
