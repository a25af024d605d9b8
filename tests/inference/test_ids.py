"""Networks that look up ids: trained, narrowed, compressed; and what an error in a network says."""

from __future__ import annotations

import re

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.inference import diagnostics, posterior
from torch import Tensor, nn


class Words(nn.Module):
    """The mean of the embeddings of some words, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.table(x)).relu().mean(1))


def words(**options: bool) -> data.Dataset:
    """Rows of which one word says the class."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(1, 20, (200, 6), generator=generator)
    y = torch.arange(200) % 2
    x[y == 1, 2] = 0
    return data.Dataset.from_tensors(x, y, x, y, **options)


@pytest.mark.parametrize("layers", [["hidden", "out"], None])
def test_ids_go_the_whole_way(layers: list[str] | None) -> None:
    torch.manual_seed(0)
    own = words(ids=True)
    prior = models.priors.GroupNormalJeffreys()
    model = models.BayesianNetwork(Words(), own, prior=prior, layers=layers)
    assert ("table" in model.layers) == (layers is None)
    fit = inference.fit(model, guides.MeanField(model), own, epochs=40, batch_size=50, lr=0.01)
    assert fit.evaluate("test")["accuracy"] > 0.95
    model, guide = inference.narrow(fit)
    fit = inference.fit(model, guide, own, epochs=2, batch_size=50)
    small = inference.shrink(fit).net
    assert small(own.x_test).argmax(1).eq(own.y_test).float().mean() > 0.95
    assert small(own.x_test[:3]).shape == (3, 2)
    assert posterior.EnsembleNetwork(fit, draws=2)(own.x_test).shape == (200, 2)
    assert all(str(finding) for finding in diagnostics.diagnose(fit))


@pytest.mark.parametrize(
    ("net", "x", "said"),
    [
        (Words(), torch.rand(20, 6), r"shape \(batch, 6\) that are no ids: .* ids=True"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2)), torch.rand(20, 8, 8),
         r"shape \(batch, 8, 8\): grey images need their one channel"),
        (nn.Linear(3, 2), torch.rand(20, 4), r"inputs of shape \(batch, 4\)\.$"),
    ],
)  # fmt: skip
def test_a_network_that_fails_says_what_it_was_given(net: nn.Module, x: Tensor, said: str) -> None:
    own = data.Dataset.from_tensors(x, torch.arange(20) % 2, x, torch.arange(20) % 2)
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    with pytest.raises(RuntimeError) as raised:
        models.BayesianNetwork(net, own, prior=models.priors.Normal(), layers=linear)
    (note,) = raised.value.__notes__
    assert re.search(said, note)
