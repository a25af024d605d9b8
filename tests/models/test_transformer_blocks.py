"""Layers with which the branches of transformers end, and inputs without their padding."""

import folders
import pytest
import torch
from pyroccam.data import Dataset, PyroccamError
from pyroccam.models.feeding import feed
from pyroccam.models.networks import branches, perceptron
from torch import nn


@pytest.mark.parametrize("kind", folders.KINDS)
def test_branches_of_hugging_face(kind):
    library = pytest.importorskip("transformers")
    net = folders.configured(library, kind)
    found = branches(net)
    assert [*found.values()] == [8, 1] * 3  # a head of four, an inner unit
    heads = [name for name, size in found.items() if size == 8]
    assert all("att" in name for name in heads)
    shapes = [{*net.get_submodule(name).weight.shape} for name in found]
    assert shapes == [{32}, {32, 48}] * 3


def test_a_network_without_branches_is_refused():
    with pytest.raises(PyroccamError):
        branches(perceptron((4,), 2))


def test_places_that_are_padding_in_every_row_are_not_computed():
    class Longest(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.seen = []

        def forward(self, ids, attention_mask):
            self.seen.append((ids.shape, attention_mask.shape))
            return self.scale * (ids * attention_mask).sum(1, keepdim=True)

    ids = torch.arange(1, 41).reshape(4, 10)
    mask = (torch.arange(10) < torch.tensor([[3], [6], [2], [10]])).long()
    x = {"ids": ids, "attention_mask": mask}
    rows = Dataset.from_tensors(x, torch.randn(4), x, torch.randn(4), val_fraction=0)
    net = feed(Longest(), rows.fields)
    expected = (ids * mask).sum(1)
    assert net(rows.x_train[:3])[:, 0].tolist() == expected[:3].tolist()
    assert net(rows.x_train)[:, 0].tolist() == expected.tolist()
    assert [shapes[0][1] for shapes in net.seen] == [6, 10]
