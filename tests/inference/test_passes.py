"""Several draws in one pass: the same law as one after the other, and what they share once."""

import pyro
import pytest
import torch
from plain import network
from pyroccam import guides, inference, models
from pyroccam.data import Fields
from pyroccam.inference.posterior import DrawnNetwork, outputs_of, streamed
from pyroccam.inference.posterior.draws import draw_weights
from pyroccam.models import priors
from random_weights import Rows, assert_same_means, small_net, table
from torch import nn
from torch.func import functional_call

pytestmark = pytest.mark.usefixtures("clean")

COUNT = 150


def zero_mean(model):
    return guides.ZeroMean(model, scale=0.5, noise="uniform")


@torch.no_grad()
@pytest.mark.parametrize(
    ("prior", "guide"),
    [
        (priors.Normal(), zero_mean),
        (priors.GroupHorseshoe(), guides.MeanField),
        (priors.SpikeSlab(), guides.MeanField),
    ],
)
def test_grouped_passes_have_the_law_of_single_ones(prior, guide):
    model = models.BayesianNetwork(small_net(), Rows(3), prior=prior)
    drawn = DrawnNetwork(model, guide(model), "activations").eval()
    x = torch.randn(4, 3)
    together = drawn.passes(x, COUNT).tanh()  # which has all moments
    alone = torch.stack([drawn(x) for _ in range(COUNT)]).tanh()
    for power in (1, 2):
        assert_same_means(together**power, alone**power)
    assert len(together[:, 0, 0].unique()) > 0.9 * COUNT
    assert pyro.distributions.Normal(0.0, 1.0).sample().shape == ()  # as before the passes


def images(layers):
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5), nn.Unflatten(1, (5, 1, 1)),
        nn.Conv2d(5, 2, 1), nn.Flatten(),
    )  # fmt: skip
    model = models.BayesianNetwork(net, Rows(1, 6, 6), prior=priors.Normal(), layers=layers)
    return model, guides.MeanField(model)


def assert_passes(model, guide, x):
    """As those of each draw by itself."""
    net, weights = model.start_network(), draw_weights(model, guide, 7)
    each = [{name: value[s] for name, value in weights.items()} for s in range(7)]
    expected = torch.stack([functional_call(net, one, (x,)) for one in each])
    torch.testing.assert_close(outputs_of(net, weights, x), expected)


@torch.no_grad()
@pytest.mark.parametrize("layers", [["3"], None])
def test_networks_that_pass_at_once(layers, monkeypatch):
    """Convolutions that they share, before and after the random layer, and those they do not."""
    model, guide = images(layers)
    for count in (1, 21, 2**11):  # rows one by one; 3 and 1; all at once
        monkeypatch.setattr(
            "pyroccam.inference.posterior.draws.images_at_once", lambda _, n=count: n
        )
        assert_passes(model, guide, torch.randn(4, 1, 6, 6))


def few_rows(patch):
    """Four rows in a pass."""
    for module in ("draws", "predict"):
        patch.setattr(f"pyroccam.inference.posterior.{module}.rows_in_a_pass", lambda _: 4)


@pytest.mark.parametrize("noise", ["weights", "activations"])
def test_rows_in_a_pass_change_nothing_but_memory(noise, monkeypatch):
    rows, seen = table(task="classification"), []
    counted = network(lambda net, x: seen.append(len(x)) or net.parts(x), parts=small_net())
    model = models.BayesianNetwork(counted, rows, prior=priors.Normal())
    guide = guides.MeanField(model)
    fit = inference.fit(model, guide, rows, epochs=1, progress=False, compile=False)
    asked = {"draws": 5, "noise": noise}
    for how in ("ensemble", "deterministic"):
        whole = fit.predict(rows.x_test, how, **asked)
        seen.clear()
        with monkeypatch.context() as patch:
            few_rows(patch)
            few = fit.predict(rows.x_test, how, **asked)
        assert max(seen) == 4
        if noise == "weights" or how == "deterministic":
            torch.testing.assert_close(whole, few)
    seen.clear()
    few_rows(monkeypatch)
    ways, one = fit.evaluate_ways(**asked), fit.evaluate(**asked)
    assert max(seen) == 4
    assert one == pytest.approx(ways["ensemble"])


def test_texts_of_about_one_length_pass_together_and_come_back_in_their_order():
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (200,), generator=random)
    mask = (torch.arange(8) < lengths[:, None]).long()
    texts = {"input_ids": mask * torch.arange(1, 201)[:, None], "attention_mask": mask}
    fields = Fields.of("x", texts)
    seen = []

    def first(part):
        seen.append(fields.lengths(part))
        return part[None, :, :1]

    x = fields.pack("x", texts)
    assert streamed(first, x, fields).equal(x[None, :, :1])
    assert max(map(len, seen)) <= 64
    assert torch.cat(seen).equal(lengths.sort().values.to(x))
