"""Layers with which the branches of transformers end, and inputs without their padding."""

import folders
import pytest
import torch
from pyroccam.data import Dataset, PyroccamError
from pyroccam.models import BayesianNetwork, priors
from pyroccam.models.feeding import feed
from pyroccam.models.networks import branches, perceptron
from torch import nn


@pytest.mark.parametrize("kind", folders.KINDS)
def test_branches_of_hugging_face(kind):
    library = pytest.importorskip("transformers")
    net = folders.configured(library, kind)
    found = branches(net)
    assert [(one.of, one.block) for one in found.values()] == [("heads", 8), ("inner units", 1)] * 3
    # Of 32 features: four projections of a head of 8, or two and the half of two; a unit's.
    sizes = [768.0, 96.0] if kind == "Llama" else [1024.0, 64.0]
    assert [one.weights for one in found.values()] == sizes * 3
    shapes = [{*net.get_submodule(name).weight.shape} for name in found]
    assert shapes == [{32}, {32, 48}] * 3


def test_a_network_without_branches_or_sizes_of_heads_is_refused():
    block = nn.ModuleDict({"attention": nn.ModuleDict({"out_proj": nn.Linear(4, 4)})})
    for net in (perceptron((4,), 2), nn.Sequential(nn.ModuleList([block]))):
        with pytest.raises(PyroccamError):
            branches(net)


@pytest.mark.parametrize("kind", folders.KINDS)
def test_all_of_them_are_where_the_prior_is_around(kind):
    """Transposed weights among them: what begins there predicts what the given network does."""
    net = folders.configured(pytest.importorskip("transformers"), kind)
    parts = branches(net)
    prior = {n: priors.Pretrained(net, odds=-1.0, block=part.block) for n, part in parts.items()}
    if kind == "ViT":
        x = {"pixel_values": torch.randn(4, 3, 16, 16)}
    else:
        x = {"input_ids": torch.randint(5, 45, (4, 6)), "attention_mask": torch.ones(4, 6).long()}
    y = torch.tensor([0, 1, 2, 0])
    data = Dataset.from_tensors(x, y, x, y, val_fraction=0)
    model = BayesianNetwork(net, data, prior=prior)
    for name, layer in model.layers.items():
        weight, gate = layer.latents()["weight"].prior, layer.latents()["gate"].prior
        assert weight.mean.equal(layer.start["weight"])
        assert gate.event_shape == (weight.event_shape[1] // parts[name].block,)


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
