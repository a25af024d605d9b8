"""What the search for thresholds counts as the size of what is left."""

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.shrinking import thresholds
from pyroccam.inference.shrinking.relevance import irrelevance
from pyroccam.models import priors
from random_weights import small_net, table


@pytest.mark.parametrize("prior", [priors.Normal(), priors.GroupNormalJeffreys()])
def test_the_size_is_the_number_of_weights_that_are_left(prior, monkeypatch):
    rows = table()
    model = models.BayesianNetwork(small_net(width=7), rows, prior=prior)
    guide = guides.MeanField(model)
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.3 * torch.randn_like(p))
    found = irrelevance(model, guide)
    given = {}

    def search(values, cost, *, limit, size):
        given.update(values=values, size=size)
        return dict.fromkeys(values, float("inf"))

    monkeypatch.setattr(thresholds, "search", search)
    whole = mean_network(model, guide)
    thresholds.choose_thresholds(inference.ByValidation(), found, whole, model, rows)
    names = list(found)
    for shares in ((0.5, 0.9), (1.0, 0.3), (0.2, 1.0)):
        asked = {n: float(found[n].values.quantile(s)) for n, s in zip(names, shares, strict=True)}
        left = 0
        for name in names:
            keep = found[name].values <= asked[name]
            shape = model.layers[name].affine.shape.weight
            if not found[name].grouped:
                left += int(keep.sum())
            else:  # groups are inputs, or outputs, of the layer: of as many weights each
                left += int(keep.sum()) * (shape.numel() // keep.numel())
        assert given["size"](asked) == pytest.approx(left)
    assert given["size"](dict.fromkeys(names, float("inf"))) == 3 * 7 + 7 * 2
